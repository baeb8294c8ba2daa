"""Collectives of ranks are matched whatever the trace says of them, and blame goes to the root."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest

from tests.ranks.told import IMBALANCE, MS, finding, lost
from whyidle.diagnose import diagnose
from whyidle.model import MESSAGES, Evidence, frame
from whyidle.partial import partial_of
from whyidle.rank_stories import GEMM, side_by_side
from whyidle.stories import Story
from whyidle.views.bandwidth import bus_bandwidth, ceiling
from whyidle.views.clocks import clocks
from whyidle.views.meetings import matched


def entries(rows: list[dict[str, Any]]) -> pl.DataFrame:
    """Entries with only what matching looks at; instants in microseconds."""
    plain = {"group": "", "sequence": None, "sender": None, "receiver": None, "kind": "all-reduce"}
    told = [plain | row for row in rows]
    return pl.DataFrame(
        {
            "member": [row["member"] for row in told],
            "group": [row["group"] for row in told],
            "sequence": pl.Series([row["sequence"] for row in told], dtype=pl.Int64),
            "sender": pl.Series([row["sender"] for row in told], dtype=pl.Int32),
            "receiver": pl.Series([row["receiver"] for row in told], dtype=pl.Int32),
            "collective": [row["kind"] for row in told],
            "order_ns": [row["at"][0] * 1000 for row in told],
            "began_ns": [row["at"][0] * 1000 for row in told],
            "settled_ns": [row["at"][1] * 1000 for row in told],
        }
    )


def test_equal_orders_meet_one_by_one() -> None:
    rows = [{"member": m, "at": (i * 100 + m, i * 100 + 50)} for m in (0, 1, 2) for i in range(3)]
    assert matched(entries(rows)).tolist() == [0, 1, 2] * 3


def test_running_numbers_decide_where_they_are_written() -> None:
    rows = [
        {"member": 0, "sequence": 7, "at": (0, 10)},
        {"member": 0, "sequence": 8, "at": (20, 30)},
        {"member": 1, "sequence": 8, "at": (21, 30)},
    ]
    found = matched(entries(rows))
    assert found.tolist() == [-1, 0, 0]


def test_a_recording_that_began_one_collective_earlier_is_moved() -> None:
    kinds = ["all-reduce", "all-gather", "all-reduce", "all-reduce", "all-gather", "barrier"]
    gaps = [0, 130, 170, 390, 480, 620]
    rows = [{"member": 0, "kind": k, "at": (t, t + 20)} for k, t in zip(kinds, gaps, strict=True)]
    # on a clock of its own, an hour ahead
    rows += [
        {"member": 1, "kind": k, "at": (t + 3_600_000_005, t + 3_600_000_020)}
        for k, t in zip(kinds[1:], gaps[1:], strict=True)
    ]
    found = matched(entries(rows))
    assert found[0] == -1
    assert found[1:6].tolist() == found[6:].tolist()
    assert len(set(found[1:6].tolist())) == 5


def test_two_process_groups_and_pairs_do_not_mix() -> None:
    rows = [
        {"member": 0, "group": "tp [0, 1]", "at": (0, 10)},
        {"member": 1, "group": "tp [0, 1]", "at": (1, 10)},
        {"member": 0, "group": "dp [0, 2]", "at": (20, 30)},
        {"member": 2, "group": "dp [0, 2]", "at": (22, 30)},
        {"member": 1, "group": "pp", "sender": 0, "receiver": 1, "kind": "send", "at": (40, 50)},
        {"member": 2, "group": "pp", "sender": 0, "receiver": 1, "kind": "send", "at": (44, 50)},
        {"member": 2, "group": "pp", "sender": 1, "receiver": 0, "kind": "send", "at": (60, 70)},
    ]
    found = matched(entries(rows)).tolist()
    assert found[0] == found[1]
    assert found[2] == found[3]
    assert found[4] == found[5]
    assert len({found[0], found[2], found[4]}) == 3
    assert found[6] == -1


def test_clocks_are_found_to_the_nanosecond_and_drift_to_a_part_in_a_million() -> None:
    count = 200
    ends = np.arange(count, dtype=np.int64) * 500_000_000  # 100 s in all
    offset, slope = 12_345_678, 2e-5
    own = ends - offset - np.rint(slope * ends).astype(np.int64)
    rank = np.repeat([0, 1, 2], count)
    meeting = np.tile(np.arange(count), 3)
    every = np.concatenate([ends, ends, own])
    found = clocks(3, rank, meeting, every, np.arange(every.size))
    assert np.abs(found.put(rank, every) - np.concatenate([ends, ends, ends])).max() < 2_000
    steady = np.concatenate([ends, ends + 7, ends - offset])
    exact = clocks(3, rank, meeting, steady, np.arange(every.size))
    assert (exact.offset_ns[2] - exact.offset_ns[0]) == offset
    assert exact.error_ns.tolist() == [1000, 1000, 1000]


def chained() -> Evidence:
    """Rank 0 computes 6 ms longer each step; ranks 0 and 1 meet, then ranks 1 and 2.

    Rank 1 waits 6 ms for rank 0 and is late for rank 2 by that and the 1 ms its bytes took.
    """
    stories = [Story(rank=rank) for rank in range(3)]
    rows: list[dict[str, Any]] = []
    for step in range(4):
        at = step * 20_000
        for rank, story in enumerate(stories):
            story.step(step, at, at + 20_000)
            works = 10_000 if rank == 0 else 4_000
            run, lead = at + (10 if step == 0 else 0), 40 if step else 0
            call = (at - lead, at - lead + 5)
            while run < at + works:
                stop = min(run - (run - at) % 1000 + 1000, at + works)
                story.op("aten::mm", call[0], call[0] + 6)
                story.launch(GEMM, call, (run, stop))
                run = stop
            if rank in (0, 1):
                one = (at + works, at + 11_000)
                story.launch("ncclDevKernel_AllReduce_one", call, one, lane=20, blocks=8)
            if rank in (1, 2):
                enters = at + (11_000 if rank == 1 else 4_000)
                two = (enters, at + 12_000)
                story.launch("ncclDevKernel_AllReduce_two", call, two, lane=21, blocks=8)
    evidence = side_by_side(stories)
    spans = evidence.table("spans").filter(pl.col("kind") == "kernel")
    for name, group in (("one", "a [0, 1]"), ("two", "b [1, 2]")):
        mine = spans.filter(pl.col("name").cast(pl.String).str.ends_with(f"AllReduce_{name}"))
        rows += [
            {"source": s, "event": e, "group": group, "size": 2, "collective": "allreduce",
             "elements": 1000, "dtype": "Float"}
            for s, e in mine.select("source", "event").rows()
        ]  # fmt: skip
    return replace(evidence, tables={**evidence.tables, "messages": frame(MESSAGES, rows)})


def test_a_wait_for_a_rank_that_waited_itself_goes_to_the_first_in_the_chain() -> None:
    found = diagnose(chained())
    told = finding(found, IMBALANCE)
    assert told is not None
    # rank 1: 6 ms; rank 2: 7 ms, of which 1 ms is the other group's bytes
    assert lost(found, IMBALANCE, 1) == pytest.approx(4 * 6 * MS, rel=0.01)
    assert lost(found, IMBALANCE, 2) == pytest.approx(4 * 6 * MS, rel=0.01)
    assert {place.rank for place in told.where} == {0}
    assert told.job_cost_s == pytest.approx(4 * 6 * MS, rel=0.05)


def test_messages_give_groups_sizes_and_bytes() -> None:
    left = partial_of(chained()).entries
    assert set(left["group"].to_list()) == {"a [0, 1]", "b [1, 2]"}
    assert set(left["size"].to_list()) == {2}
    assert set(left["bytes"].to_list()) == {4000}


def test_bus_bandwidth_follows_nccl_tests() -> None:
    # doc/PERFORMANCE.md: all-reduce 2 (n - 1) / n, all-gather (n - 1) / n, broadcast 1
    kinds = ["all-reduce", "all-gather", "broadcast", "all-reduce"]
    told = pl.DataFrame({"collective": kinds, "bytes": [10**9, 10**9, 10**9, None]})
    found = bus_bandwidth(told, np.array([8, 8, 8, 8]), np.full(4, 1e7))
    assert found[:3].tolist() == pytest.approx([175e9, 87.5e9, 100e9])
    assert np.isnan(found[3])


@pytest.mark.parametrize(
    ("name", "gigabytes"),
    [
        ("NVIDIA A100-SXM4-80GB", 300),
        ("NVIDIA H100 80GB HBM3", 450),
        ("NVIDIA H100 PCIe", 48),
        ("Tesla V100-SXM2-32GB", 150),
        ("NVIDIA B200", 900),
        ("AMD Instinct MI300X", None),
        (None, None),
    ],
)
def test_the_ceiling_of_a_link_goes_by_the_model(name: str | None, gigabytes: int | None) -> None:
    found = ceiling(name)
    assert (found[0] / 1e9 if found else None) == gigabytes
