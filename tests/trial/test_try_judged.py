"""The statistics and the table of a trial, on figures whose truth is known, without jobs."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest

from whyidle.causes import all_causes
from whyidle.fix.catalogue import CHANGES
from whyidle.trial.child import Ended
from whyidle.trial.losses import spread
from whyidle.trial.measured import Measured, Pace
from whyidle.trial.try_choosing import parsed
from whyidle.trial.try_judged import (
    EARLY,
    Noise,
    Row,
    interval,
    noise_of,
    settle,
    settle_early,
)
from whyidle.trial.try_recorded import source_of
from whyidle.trial.try_runs import Facts, TryRun
from whyidle.trial.try_table import APART, BY_NAME, REMEDIES, Place


def run(median_s: float, mean_s: float | None = None, loss: float = 1.0) -> TryRun:
    pace = Pace(median_s, median_s if mean_s is None else mean_s, 20, 17)
    losses = dict.fromkeys(range(20), loss)
    facts = Facts(Place(2), 1, None, None)
    return TryRun(Ended(0, 1.0), Measured(pace, losses), {}, facts, Path("output.txt"))


def row(name: str, *pairs: tuple[float, float], loss: float = 1.0) -> Row:
    return Row({name: True}, pairs=[(run(a), run(b, loss=loss)) for a, b in pairs])


def test_the_interval_from_pooled_noise_is_the_hand_computed_one() -> None:
    logs = [0.10, 0.20, 0.15]
    found = interval(logs, Noise(0.0025, 8))
    assert found is not None
    half = 2.306004 * math.sqrt(0.0025 / 3)  # Student's t, 8 degrees of freedom, 97.5 %
    assert math.log(found.mid) == pytest.approx(0.15)
    assert math.log(found.high) == pytest.approx(0.15 + half, abs=1e-6)
    assert math.log(found.low) == pytest.approx(0.15 - half, abs=1e-6)


def test_noise_is_pooled_over_rows_with_two_pairs_or_more() -> None:
    found = noise_of([[0.0, 0.2], [1.0, 1.0, 1.3], [7.0]])
    assert found is not None
    assert found.freedom == 3
    assert found.variance == pytest.approx((0.02 + 0.06) / 3)
    assert noise_of([[1.0], []]) is None


def test_a_row_that_scatters_far_more_is_judged_by_its_own_scatter() -> None:
    calm, wild = [0.1, 0.1001, 0.0999], [0.1, 0.9, -0.7]
    pooled = Noise(1e-4, 20)
    narrow, wide = interval(calm, pooled), interval(wild, pooled)
    assert narrow is not None and wide is not None
    assert narrow.high / narrow.low < 1.03
    assert wide.high / wide.low > 20


def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    noise, held, rounds = random.Random(7), 0, 400
    for _ in range(rounds):
        rows = [[noise.gauss(0.3, 0.05) for _ in range(4)] for _ in range(6)]
        found = interval(rows[0], noise_of(rows))
        assert found is not None
        held += found.low <= math.exp(0.3) <= found.high
    assert 0.92 < held / rounds < 0.98


def test_a_remedy_without_effect_seldom_pays_although_it_is_looked_at_often() -> None:
    noise, wrong, rounds = random.Random(11), 0, 200
    for _ in range(rounds):
        rows = [row(name) for name in ("foreach", "fused", "zero_grad")]
        for _ in range(5):
            for one in rows:
                if one.open:
                    pair = (math.exp(noise.gauss(0, 0.05)), math.exp(noise.gauss(0, 0.05)))
                    one.pairs.append((run(pair[0]), run(pair[1])))
            settle_early(rows)
        settle(rows, 0.02)
        wrong += sum(one.verdict == "pays" for one in rows)
    assert wrong / (3 * rounds) < 0.04


def test_rows_close_early_only_when_it_is_sure() -> None:
    gains = row("foreach", (1.0, 0.5), (1.01, 0.5), (1.0, 0.505))
    loses = row("fused", (1.0, 1.2), (1.0, 1.21))
    close = row("zero_grad", (1.0, 0.98), (1.0, 0.985), (1.0, 0.97))
    settle_early([gains, loses, close])
    assert (gains.verdict, loses.verdict) == ("pays", "does not pay")
    assert close.open
    assert EARLY > 0.95


def test_what_acts_on_few_steps_is_judged_by_the_mean_step() -> None:
    uneven = [(run(1.0, 1.05), run(1.0, 0.9)) for _ in range(2)]
    assert Row({"checkpoint_every": 10}, pairs=uneven).what == "mean step"
    even = [(run(1.0, 1.05), run(1.0, 1.0)) for _ in range(2)]
    assert Row({"foreach": True}, pairs=even).what == "median step"


def test_another_loss_counts_only_where_speed_would_pay() -> None:
    faster = row("bf16", (1.0, 0.5), (1.0, 0.5), loss=1.3)
    slower = row("compile", (1.0, 1.5), (1.0, 1.5), loss=1.3)
    settle([faster, slower], 0.02)
    assert (faster.verdict, slower.verdict) == ("changes training", "does not pay")


def test_the_spread_between_seeds_is_the_largest_between_any_two() -> None:
    curves = [dict.fromkeys(range(4), value) for value in (1.0, 1.1, 0.95)]
    assert spread(curves) == pytest.approx(0.15 / 1.1, rel=0.2)
    assert spread([{}, {}]) is None


def test_the_table_names_causes_and_changes_that_exist() -> None:
    causes, changes = set(all_causes()), {change.NAME for change in CHANGES}
    for remedy in REMEDIES:
        assert set(remedy.causes) <= causes, remedy.name
        assert remedy.fix is None or remedy.fix in changes, remedy.name
        assert remedy.by_default in ("always", "gpu", "cpu", "never")
        assert source_of(remedy.name, next(iter(remedy.values(Place(8, 4))), True))
    assert {name for pair in APART for name in pair} <= set(BY_NAME)


def test_each_remedy_of_the_table_is_known_inside_the_job() -> None:
    hook = Path(__file__).parents[2] / "src/whyidle/record/hook/_whyidle_hook"
    told = "".join(path.read_text(encoding="utf-8") for path in hook.glob("remedies_*.py"))
    assert [remedy.name for remedy in REMEDIES if f'"{remedy.name}":' not in told] == []


def test_values_given_by_hand_are_read_as_what_they_are() -> None:
    assert parsed("loader_workers=4, compile, ddp_flags=static_graph,compile=max-autotune") == [
        ("loader_workers", 4),
        ("compile", None),
        ("ddp_flags", "static_graph"),
        ("compile", "max-autotune"),
    ]


def test_the_line_for_ddp_flags_says_each_flag_as_it_must_be() -> None:
    flags = source_of("ddp_flags", "find_unused_parameters+static_graph")
    assert "find_unused_parameters=False, static_graph=True" in flags


def test_runs_of_the_job_that_scatter_widen_intervals_that_agree_by_chance() -> None:
    """Pairs agree, but the job as it is takes 60, 104 and 92 ms: whatever loads the machine did."""
    calm = row("foreach", (0.060, 0.046), (0.061, 0.047), (0.060, 0.047))
    loaded = row("foreach", (0.060, 0.046), (0.104, 0.079), (0.092, 0.070))
    settle([calm], 0.02)
    settle([loaded], 0.02)
    assert calm.verdict == "pays"
    assert loaded.verdict == "undecided"
