"""Ranks judged in batches give the diagnosis of all ranks read at once."""

from __future__ import annotations

import pickle
from dataclasses import replace

import polars as pl
import pytest

from tests.evidence_dir import WHY_ABSENT, traces
from tests.ranks.told import job, only
from whyidle.diagnose import diagnose
from whyidle.diagnosis import Diagnosis
from whyidle.errors import EvidenceConflict
from whyidle.model import Evidence
from whyidle.partial import merged, partial_of
from whyidle.rank_stories import Ranks
from whyidle.readers import read

Ledger = dict[tuple[int | None, int | str, str, str], float]


def ledger(found: Diagnosis) -> Ledger:
    return {(r.rank, r.device, r.cause, r.state): r.lost_s for r in found.ledger}


def alone(evidence: Evidence, rank: int) -> Evidence:
    """One rank as its own file would give it: one source, counted from 0."""
    mine = only(evidence, {rank})
    tables = {
        name: table.with_columns(pl.lit(0, pl.UInt16).alias("source"))
        if "source" in table.columns
        else table
        for name, table in mine.tables.items()
    }
    return replace(mine, tables=tables, sources=(evidence.sources[rank],))


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 1, 0, 2)])
def test_one_batch_per_rank_in_any_order_gives_the_same_answer(order: tuple[int, ...]) -> None:
    whole = job(1, 6)
    at_once = diagnose(whole)
    left = [pickle.loads(pickle.dumps(partial_of(alone(whole, rank)))) for rank in order]
    in_parts = merged(left)
    assert ledger(in_parts) == ledger(at_once)
    assert [d.rank for d in in_parts.devices] == [0, 1, 2, 3]
    assert in_parts.devices == at_once.devices
    assert in_parts.window == at_once.window
    told = [(f.cause, f.lost_s, f.job_cost_s, f.level) for f in in_parts.findings]
    assert told == [(f.cause, f.lost_s, f.job_cost_s, f.level) for f in at_once.findings]
    assert [f.where for f in in_parts.findings] == [f.where for f in at_once.findings]


def test_pauses_are_found_over_batches_as_well() -> None:
    ranks = Ranks(3)
    for number in range(8):
        ranks.step([10_000] * 3, {3: [0, 50_000, 0]}.get(number, [0, 0, 0]))
    whole = ranks.evidence()
    in_parts = merged([partial_of(alone(whole, rank)) for rank in range(3)])
    assert ledger(in_parts) == ledger(diagnose(whole))
    assert in_parts.findings[0].cause == "communication.gc_jitter"
    # 50 ms on the rank that pauses and on both that wait
    assert in_parts.findings[0].lost_s == pytest.approx(0.150, rel=0.01)
    assert in_parts.findings[0].job_cost_s == pytest.approx(0.050, rel=0.01)


def test_one_rank_in_two_batches_is_refused_with_a_sentence() -> None:
    twice = partial_of(alone(job(1, 6), 2))
    with pytest.raises(EvidenceConflict, match="Rank 2 was recorded twice"):
        merged([twice, twice])


def test_real_ranks_in_batches_give_the_same_ledger() -> None:
    folder = traces()
    if folder is None:
        pytest.skip(WHY_ABSENT)
    paths = [folder / f"param__dlrm_8rank__rank{rank}.pt.trace.json" for rank in range(8)]
    in_parts = merged([partial_of(read(paths[start : start + 3])) for start in (0, 3, 6)])
    at_once = diagnose(read(paths))
    assert ledger(in_parts) == ledger(at_once)
    assert [f.job_cost_s for f in in_parts.findings] == [f.job_cost_s for f in at_once.findings]
