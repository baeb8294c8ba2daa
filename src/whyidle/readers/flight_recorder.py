"""Reads dumps of PyTorch's NCCL flight recorder, pickled or JSON, one file per rank.

A dump becomes ``collectives`` (what the recorder's ring still held, oldest first) and ``groups``
(process groups, with the sequence number of the last operation that was enqueued and completed).
Layouts since 2.2 are read: a bare list of entries; dictionaries of versions 1.x (one ``seq_id``)
and 2.x (``collective_seq_id``, ``p2p_seq_id``); JSON, which writes 0 for "not yet".

What is deduced here:

- the rank: the number that ends the file's name, where all groups of the dump hold it; else the
  only rank that all of them hold;
- which status belongs to which group: the recorder keys one by a local number and the other by
  name. Entries tell pairs; where they do not, both are taken in order of creation, if the entries
  agree with that order.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from whyidle.errors import UnknownEvidence, UnreadableEvidence
from whyidle.model import COLLECTIVES, GROUPS, Evidence, Facts, SourceInfo, frame
from whyidle.readers.flight_entries import Shared, entry_row
from whyidle.readers.restricted_pickle import looks_pickled, plain_of, read_whole, told
from whyidle.readers.unknowns import whole_number

NAME = "flight_recorder"

MOST_BYTES = 256 << 20
MOST_RANKS = 1 << 20
MOST_ENTRIES = 1_000_000
MOST_MEMBERS = 1 << 24
"""Ranks of all groups together."""

_SIGNS = (b"pg_config", b"pg_status", b"nccl_version", b"comm_lib_version", b"profiling_name")
_NUMBER = re.compile(r"(?<!\d)(\d{1,6})(?:\.(?:pkl|pickle|json|bin|dump|trace|gz))*$", re.I)
_AGAIN = (
    "Record again with TORCH_NCCL_TRACE_BUFFER_SIZE=2000 and TORCH_NCCL_DUMP_ON_TIMEOUT=1 in "
    "every rank's environment."
)


def sniff(path: Path, head: bytes) -> bool:
    """Whether the first bytes, decompressed, look like a dump."""
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text.startswith(b"{"):
        quoted = (b'"' + sign + b'"' for sign in _SIGNS)
        return b'"traceEvents"' not in text and any(sign in text for sign in quoted)
    return looks_pickled(head) and any(sign in head for sign in _SIGNS)


def read(path: Path, progress: Callable[[int, int], None] | None = None) -> Evidence:
    """The collectives of one rank. Raises an EvidenceError with a sentence for what is no dump."""
    dump, digest = _loaded(path, progress)
    if isinstance(dump, list):
        dump = {"entries": dump}
    if not isinstance(dump, dict):
        raise UnknownEvidence(str(path), "a pickle that holds no flight-recorder dump", _AGAIN)
    entries = dump.get("entries", [])
    config = _table(dump.get("pg_config"))
    if not isinstance(entries, list) or (not entries and not config and "pg_status" not in dump):
        raise UnknownEvidence(str(path), "data without entries of a flight recorder", _AGAIN)
    _refuse_flood(path, entries, config)
    notes: list[str] = []
    rank = _rank(path, config, notes)
    shared = Shared()
    rows = [row for i, entry in enumerate(entries) if (row := entry_row(entry, i, rank, shared))]
    if len(rows) < len(entries):
        notes.append(f"{len(entries) - len(rows)} entries that are no operations, left out")
    groups = _groups(config, rank, _statuses(dump, config, entries))
    version = told(dump.get("version", "1"), 20)
    if version.split(".")[0] not in ("1", "2"):
        notes.append(f"version {version} of the dump is newer than those known here")
    info = SourceInfo(str(path), NAME, rank, len(rows), digest, tuple(notes))
    tables = {"collectives": frame(COLLECTIVES, rows or None), "groups": frame(GROUPS, groups)}
    return Evidence(tables, _facts(dump, config), (info,))


def _refuse_flood(path: Path, entries: list[Any], config: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise when a dump would unfold into more than any recorder's ring and any job hold."""
    lists = (about.get("ranks") for about in config.values())
    members = sum(len(ranks) for ranks in lists if isinstance(ranks, str | list))
    if len(entries) > MOST_ENTRIES or members > 8 * MOST_MEMBERS:
        raise UnreadableEvidence(
            str(path), "more operations or ranks than a flight recorder keeps", _AGAIN
        )


def _loaded(path: Path, progress: Callable[[int, int], None] | None) -> tuple[Any, str]:
    data, digest = read_whole(path, MOST_BYTES, progress)
    text = data.removeprefix(b"\xef\xbb\xbf").lstrip()
    if not text.startswith(b"{"):
        return plain_of(path, data, "flight-recorder dump"), digest
    try:
        return msgspec.json.decode(text), digest
    except (msgspec.DecodeError, RecursionError) as error:
        raise UnreadableEvidence(str(path), f"broken JSON ({error})", _AGAIN) from None


def _table(value: Any) -> dict[str, dict[str, Any]]:
    """A dictionary of dictionaries by text; entries of other kinds are left out."""
    if not isinstance(value, dict):
        return {}
    return {told(k, 400): v for k, v in value.items() if isinstance(v, dict)}


def _members(about: Mapping[str, Any]) -> list[int]:
    """The ranks of a group: the recorder writes them as text, "[0, 4]"."""
    ranks = about.get("ranks")
    if isinstance(ranks, str):
        found = [int(word) for word in re.findall(r"\d{1,9}", ranks[: 10 * MOST_RANKS])]
    elif isinstance(ranks, list):
        found = [rank for rank in ranks if type(rank) is int]
    else:
        found = []
    return [rank for rank in found if 0 <= rank < MOST_RANKS]


def _rank(path: Path, config: Mapping[str, Mapping[str, Any]], notes: list[str]) -> int | None:
    """The rank that wrote the dump; None when neither name nor content tell."""
    named = _NUMBER.search(path.name)
    number = int(named.group(1)) if named else None
    sets = [set(ranks) for about in config.values() if (ranks := _members(about))]
    common: set[int] = set.intersection(*sets) if sets else set()
    if number is not None and (number in common or not sets):
        return number
    if len(common) == 1:
        (rank,) = common
        said = "has no rank in its name" if number is None else f"is named after {number}"
        notes.append(f"the file {said}; its groups all hold rank {rank} only")
        return rank
    if number is not None:
        notes.append(f"the file is named after {number}, which its groups do not hold")
    return None


def _statuses(
    dump: Mapping[str, Any], config: Mapping[str, Any], entries: list[Any]
) -> dict[str, tuple[int | None, int | None]]:
    """Group name -> (last enqueued, last completed); groups whose status is unknown are absent."""
    status = _table(dump.get("pg_status"))
    names: dict[str, str] = {}
    for entry in entries:
        if isinstance(entry, dict) and isinstance(entry.get("process_group"), list | tuple):
            group = entry["process_group"]
            if group:
                names[told(entry.get("pg_id"), 400)] = told(group[0], 400)
    numbered = all(_sequence(key) is not None for key in (*status, *config))
    if numbered and len(status) == len(config):
        pairs = dict(zip(sorted(status, key=int), sorted(config, key=int), strict=True))
        if all(pairs.get(number, name) == name for number, name in names.items()):
            names = pairs
    found: dict[str, tuple[int | None, int | None]] = {}
    for number, about in status.items():
        if number in names:
            found[names[number]] = (
                _sequence(about.get("last_enqueued_collective")),
                _sequence(about.get("last_completed_collective")),
            )
    return found


def _sequence(value: Any) -> int | None:
    """A sequence number; JSON dumps write it as text, and -1 is "none yet"."""
    if isinstance(value, str):
        return whole_number(value)
    return value if type(value) is int and 0 <= value < 1 << 62 else None


def _groups(
    config: Mapping[str, Mapping[str, Any]],
    rank: int | None,
    statuses: Mapping[str, tuple[int | None, int | None]],
) -> dict[str, list[Any]]:
    rows: dict[str, list[Any]] = {name: [] for name in GROUPS}
    for name, about in config.items():
        enqueued, completed = statuses.get(name, (None, None))
        described = about.get("desc")
        values = (0, rank, name, told(described, 400) if described else None, _members(about))
        for column, value in zip(GROUPS, (*values, enqueued, completed), strict=True):
            rows[column].append(value)
    return rows


def _facts(dump: Mapping[str, Any], config: Mapping[str, Mapping[str, Any]]) -> Facts:
    world = [_members(about) for about in config.values() if about.get("desc") == "default_pg"]
    versions = {}
    for key in ("nccl_version", "comm_lib_version"):
        if isinstance(dump.get(key), str) and dump[key]:
            versions["nccl"] = dump[key]
    size = len(world[0]) if world and world[0] else None
    return Facts(world_size=size, backend="nccl", versions=versions)
