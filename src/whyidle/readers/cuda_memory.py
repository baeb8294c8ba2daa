"""Reads snapshots of PyTorch's CUDA memory allocator (``torch.cuda.memory._dump_snapshot``).

A snapshot becomes ``memory_blocks`` (every block of every segment at its moment),
``allocations`` (the recorded history, where there is one) and ``settings`` (how the allocator was
configured). Read are the pickles of ``torch.cuda.memory._snapshot()`` since 2.0, of the C++
``_memory_snapshot_pickled``, and the bare list of segments of ``torch.cuda.memory_snapshot()``;
old blocks keep their stack in ``history`` and have no address of their own.

``time_us`` is microseconds since 1970 on the host's clock, as in traces of the same process; its
conversion from the processor's counter is good to about a microsecond. Before 2.1 it is absent.
The history is a ring: when it was full, its beginning is cut, and the oldest events kept may free
what was never seen allocated.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from whyidle.errors import NothingRecorded, UnknownEvidence
from whyidle.model import MEMORY_BLOCKS, SETTINGS, Evidence, SourceInfo, frame
from whyidle.readers.memory_history import History, Stacks
from whyidle.readers.restricted_pickle import looks_pickled, plain_of, read_whole, told

NAME = "cuda_memory"

MOST_BYTES = 1 << 30
MOST_BLOCKS = 4_000_000
_SIGNS = (b"segments", b"device_traces", b"segment_type", b"active_size", b"allocated_size")
_STATES = {"active_awaiting_free": "active_pending_free"}
_RANK = re.compile(r"(?<![A-Za-z])rank[-_.]?(\d{1,6})(?!\d)", re.I)
_AGAIN = (
    "Record with torch.cuda.memory._record_memory_history() before the steps and "
    "torch.cuda.memory._dump_snapshot(file) after them."
)


def sniff(path: Path, head: bytes) -> bool:
    """Whether the first bytes, decompressed, look like a snapshot."""
    return looks_pickled(head) and any(sign in head for sign in _SIGNS)


def read(path: Path, progress: Callable[[int, int], None] | None = None) -> Evidence:
    """The blocks and the history of one process; an EvidenceError for what is no snapshot."""
    data, digest = read_whole(path, MOST_BYTES, progress)
    history = History()
    found = plain_of(path, data, "memory snapshot", absorb=history.absorb)
    del data
    if isinstance(found, list):
        found = {"segments": found}
    if not isinstance(found, dict) or not isinstance(found.get("segments", []), list):
        raise UnknownEvidence(str(path), "a pickle that holds no memory snapshot", _AGAIN)
    traces = found.get("device_traces", [])
    if not isinstance(traces, list) or not ("segments" in found or traces):
        raise UnknownEvidence(str(path), "a pickle that holds no memory snapshot", _AGAIN)
    named = _RANK.search(path.name)
    rank = int(named.group(1)) if named else None
    notes = [f"rank {rank} is deduced from the file name"] if named else []
    blocks = _blocks(path, found.get("segments", []), history.stacks, rank, notes)
    allocations = history.frame(path, traces, rank)
    notes += history.notes()
    if not blocks["address"] and allocations.height == 0:
        raise NothingRecorded(str(path), "a snapshot without segments and without history", _AGAIN)
    tables = {"memory_blocks": frame(MEMORY_BLOCKS, blocks), "allocations": allocations}
    settings = _settings(found.get("allocator_settings"), rank)
    if settings["key"]:
        tables["settings"] = frame(SETTINGS, settings)
    events = len(blocks["address"]) + allocations.height
    info = SourceInfo(str(path), NAME, rank, events, digest, tuple(notes))
    return Evidence(tables, sources=(info,))


def _blocks(
    path: Path, segments: list[Any], stacks: Stacks, rank: int | None, notes: list[str]
) -> dict[str, list[Any]]:
    """One row per block, in the order of the segments."""
    rows: dict[str, list[Any]] = {name: [] for name in MEMORY_BLOCKS}
    odd = 0
    for segment in segments:
        if not isinstance(segment, dict) or not isinstance(segment.get("blocks"), list):
            odd += 1
            continue
        address = _whole(segment.get("address"))
        at = address
        for block in segment["blocks"]:
            if odd + len(rows["address"]) >= MOST_BLOCKS:
                raise UnknownEvidence(str(path), f"more than {MOST_BLOCKS} blocks", _AGAIN)
            if not isinstance(block, dict) or _whole(block.get("size")) is None:
                odd += 1
                continue
            own = _whole(block.get("address"))
            _add(rows, segment, block, address, at if own is None else own, stacks, rank)
            at = None if at is None else at + block["size"]
    if odd:
        notes.append(f"{odd} segments or blocks without what they must hold, left out")
    return rows


def _add(
    rows: dict[str, list[Any]], segment: dict[str, Any], block: dict[str, Any],
    segment_address: int | None, address: int | None, stacks: Stacks, rank: int | None,
) -> None:  # fmt: skip
    requested, frames = _origin(block)
    pool = segment.get("segment_pool_id")
    private = isinstance(pool, list | tuple) and any(pool)
    state = block.get("state")
    kind = segment.get("segment_type")
    expandable = segment.get("is_expandable")
    values = {
        "source": 0,
        "rank": rank,
        "device": _whole(segment.get("device"), 1 << 20),
        "segment": segment_address,
        "segment_bytes": _whole(segment.get("total_size")),
        "segment_kind": kind if isinstance(kind, str) else None,
        "pool": ",".join(told(part, 20) for part in pool[:4]) if private and pool else None,
        "expandable": expandable if isinstance(expandable, bool) else None,
        "lane": _whole(segment.get("stream")),
        "address": address,
        "bytes": block["size"],
        "requested_bytes": requested,
        "state": _STATES.get(state, state)[:40] if isinstance(state, str) else None,
        "stack": stacks.text(stacks.number(frames)),
    }
    for name, value in values.items():
        rows[name].append(value)


def _origin(block: dict[str, Any]) -> tuple[int | None, Any]:
    """Bytes asked for and frames; old blocks list those who had the block, newest first."""
    history = block.get("history")
    if "frames" not in block and isinstance(history, list) and history:
        newest = history[0]
        if isinstance(newest, dict):
            return _whole(newest.get("real_size")), newest.get("frames")
    return _whole(block.get("requested_size")), block.get("frames")


def _settings(found: Any, rank: int | None) -> dict[str, list[Any]]:
    """The allocator's configuration as text."""
    rows: dict[str, list[Any]] = {"source": [], "rank": [], "key": [], "value": []}
    if isinstance(found, dict):
        for key, value in list(found.items())[:64]:
            if isinstance(value, str | int | float | bool):
                rows["source"].append(0)
                rows["rank"].append(rank)
                rows["key"].append(f"allocator {str(key)[:60]}")
                rows["value"].append(str(value)[:400])
    return rows


def _whole(value: Any, below: int = 1 << 62) -> int | None:
    return int(value) if type(value) is int and 0 <= value < below else None
