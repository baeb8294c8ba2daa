"""Tells what the flight recorders of a small job kept: for the examples of causes and for tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from whyidle.model import COLLECTIVES, GROUPS, Evidence, Facts, SourceInfo, frame

ORIGIN_NS = 1_700_000_000_000_000_000
GAP_NS = 100_000_000
TOOK_NS = 2_000_000


def flights_told(
    *,
    ranks: int,
    collectives: int,
    done: int | None = None,
    stops: Mapping[int, int] | None = None,
    calls: Mapping[tuple[int, int], str] | None = None,
    late: Mapping[int, int] | None = None,
) -> Evidence:
    """One dump per rank of a job with one group that reduces every 100 ms.

    ``done``: how many collectives ended (default: all but the last); ``stops``: rank -> the last
    collective that it enters; ``calls``: (rank, number) -> what it calls there instead;
    ``late``: rank -> nanoseconds by which it comes late to each, and the others wait.
    """
    last = collectives - 1 if done is None else done
    waited = max((late or {}).values(), default=0)
    rows: list[dict[str, Any]] = []
    groups: list[dict[str, Any]] = []
    for rank in range(ranks):
        entered = min(collectives, (stops or {}).get(rank, collectives))
        for number in range(1, entered + 1):
            name = (calls or {}).get((rank, number), "nccl:all_reduce")
            own = (late or {}).get(rank, 0)
            rows.append(_row(rank, number, name, own, waited - own, ended=number <= last))
        groups.append(
            {
                "source": rank, "rank": rank, "group": "0", "description": "default_pg",
                "ranks": list(range(ranks)), "last_enqueued": entered,
                "last_completed": min(entered, last),
            }
        )  # fmt: skip
    sources = tuple(
        SourceInfo(path=f"dump_{rank}", reader="example", rank=rank, events=collectives)
        for rank in range(ranks)
    )
    tables = {"collectives": frame(COLLECTIVES, rows), "groups": frame(GROUPS, groups)}
    return Evidence(tables, Facts(world_size=ranks, backend="nccl"), sources)


def _row(rank: int, number: int, name: str, own_ns: int, wait_ns: int, *, ended: bool) -> Any:
    created = ORIGIN_NS + number * GAP_NS + own_ns
    return {
        "source": rank, "event": number - 1, "rank": rank, "group": "0", "sequence": number,
        "p2p": False, "operation": number, "name": name, "bytes_in": 4096, "bytes_out": 4096,
        "shapes": "[1024]", "types": "Float", "state": "completed" if ended else "scheduled",
        "created_ns": created, "started_ns": created + 1000 if ended else None,
        "completed_ns": created + wait_ns + TOOK_NS if ended else None,
        "duration_ns": wait_ns + TOOK_NS if ended else None,
        "timeout_ns": 600 * 10**9, "caller": "1",
        "stack": "torch/distributed/distributed_c10d.py(2806): all_reduce\n"
        "train.py(41): step\ntrain.py(80): main",
    }  # fmt: skip
