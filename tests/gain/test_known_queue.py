"""Against a loop timed by hand, the replay is exact, as it is and with its cause taken out."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.contract import runs
from tests.gain import queue_model as queue
from tests.gain.queue_model import Step
from whyidle import diagnose
from whyidle.diagnosis import Diagnosis, Finding, Gain, LedgerRow
from whyidle.gain.effects import HIGH, changes, unchanged
from whyidle.gain.predict import Replayable, begins, predict
from whyidle.model import Evidence
from whyidle.partial import partial_of

CAUSE = {
    "loader_wait_removed": "data_loading.loader_workers_too_few",
    "syncs_dropped": "small_work.host_sync_scalar_read",
}


@st.composite
def loops(draw: st.DrawFn, loader: int = 0) -> list[Step]:
    """Four to seven steps; each teaches a latency, a gap and a wait, and has kernels of its own."""
    steps = []
    for _ in range(draw(st.integers(4, 7))):
        more = st.tuples(st.integers(6, 60), st.integers(2, 150))
        own = draw(st.lists(more, max_size=6))
        kernels = ((20, 80), (10, 50), *own, (12, 400 + 150 * len(own)))
        steps.append(Step(draw(st.integers(0, loader)), kernels, waits=True))
    return steps


def laid_out(evidence: Evidence) -> Replayable:
    """The only device of a run, ready to be replayed."""
    found = partial_of(evidence).replayable
    assert found is not None
    return found


def steps_us(found: Replayable, kind: str | None = None) -> list[float]:
    """Replayed steps in microseconds, unchanged or with an effect at its high end."""
    change = unchanged(found.model)
    if kind is not None:
        ends = changes(found.model, found.marks[CAUSE[kind]], {"kind": kind})
        assert ends is not None
        change = ends[HIGH]
    begin = begins(found.model, [change])[:, 0]
    marks = begin[found.model.marks]
    return [float(end - start) / 1000 for start, end in marks]


@given(loops(loader=300))
def test_nothing_changed_replays_to_the_nanosecond(steps: list[Step]) -> None:
    told = queue.timed(steps)
    assert steps_us(laid_out(told.evidence)) == pytest.approx(told.steps, abs=1e-3)


@given(loops())
def test_every_kernel_begins_where_it_was_seen_to_begin(steps: list[Step]) -> None:
    model = laid_out(queue.timed(steps).evidence).model
    derived = begins(model, [unchanged(model)])[model.hosts :, 0]
    assert derived == pytest.approx(model.device_work.start, abs=1.0)


@given(loops())
def test_without_the_loader_the_step_is_what_it_would_have_been(steps: list[Step]) -> None:
    starved = [Step(2000 + 100 * n, s.kernels, s.waits) for n, s in enumerate(steps)]
    truth = queue.timed(queue.without_loader(starved)).steps
    found = laid_out(queue.timed(starved).evidence)
    assert steps_us(found, "loader_wait_removed") == pytest.approx(truth, abs=1e-3)


def test_without_the_wait_the_host_runs_on_and_its_launches_still_cost_it() -> None:
    steps = [Step(0, ((20, 80), (10, 50), (100, 40), (100, 300)), waits=True)] * 6
    found = laid_out(queue.timed(steps).evidence)
    launching = sum(host + queue.CALL for host, _ in steps[0].kernels) + 2
    launching += 7  # the call itself remains, and its operator
    replayed = steps_us(found, "syncs_dropped")
    assert replayed == pytest.approx([launching] * 6, abs=1e-3)
    gain = only_gain(diagnose(queue.timed(steps).evidence), CAUSE["syncs_dropped"])
    recorded = queue.timed(steps).steps[2]
    busy = 80 + 50 + 40 + 300
    assert busy <= gain.step_s_high * 1e6 <= recorded, "the device still has all its work to do"


@given(loops(loader=3000))
def test_gains_are_ordered_and_a_plan_is_no_worse_than_its_best_part(steps: list[Step]) -> None:
    said = diagnose(queue.timed(steps).evidence)
    assert said.crashed == []
    (device,) = said.devices
    assert device.step_s is not None
    told = gains(said.findings)
    for gain in told:
        assert gain.step_s_high <= gain.step_s_mid <= gain.step_s_low <= device.step_s + 1e-12
        assert gain.speedup_mid == pytest.approx(device.step_s / gain.step_s_mid)
    if said.plan is None:
        return
    predicted = said.plan.predicted
    chosen = {(step.cause, step.what) for step in said.plan.remedies}
    parts = [
        remedy.gain
        for finding in said.findings
        for remedy in finding.remedies
        if remedy.gain and (finding.cause, remedy.what) in chosen
    ]
    assert predicted.mid <= min(part.step_s_mid for part in parts) + 1e-12
    assert predicted.high <= predicted.mid <= predicted.low
    kinds = {
        remedy.effect.get("kind")
        for finding in said.findings
        for remedy in finding.remedies
        if (finding.cause, remedy.what) in chosen
    }
    if kinds & {"batch_scaled", "kernels_scaled"}:
        return  # these take work from the device, or count it for more samples
    busy = min(sum(length for _, length in step.kernels) for step in steps) / 1e6
    claimed = sum(lost_in_kernels(row) for row in said.ledger)
    inner = queue.timed(steps).steps[1:-1]  # what is sporadic is told in terms of their mean
    usual = min(device.step_s * 1e6 * len(inner) / sum(inner), 1.0)
    assert predicted.high >= 0.95 * usual * (busy - claimed), "the device has all its work to do"
    assert len({cause for cause, _ in chosen}) == len(chosen), "one remedy per cause"


def test_gains_are_the_same_on_another_clock() -> None:
    steps = [Step(1500, ((20, 80), (10, 50), (12, 600)), waits=True)] * 5
    evidence = queue.timed(steps).evidence
    before, after = diagnose(evidence), diagnose(runs.shifted(evidence, 1_700_000_000_123))
    assert gains(after.findings) == gains(before.findings)
    assert (after.plan, after.replay) == (before.plan, before.replay)


@pytest.mark.parametrize(
    "effect", [{}, {"kind": "none"}, {"kind": "a_new_one"}, {"kind": None}, {"kind": ["x"]}]
)
def test_an_effect_that_is_not_known_has_no_gain(effect: dict[str, Any]) -> None:
    found = laid_out(queue.timed([Step(900, ((20, 80), (10, 300)), waits=True)] * 4).evidence)
    (marks, *_) = found.marks.values()
    assert changes(found.model, marks, effect) is None


@pytest.mark.parametrize("value", ["much", None, -1, True, float("nan"), float("inf")])
def test_a_strange_number_in_an_effect_does_not_break_the_prediction(value: object) -> None:
    found = laid_out(queue.timed([Step(900, ((20, 80), (10, 300)), waits=True)] * 4).evidence)
    for kind in ("loader_wait_removed", "launches_scaled", "kernels_scaled", "batch_scaled"):
        effect = {"kind": kind, "factor": value, "share_removed": value, "workers": value}
        for marks in found.marks.values():
            ends = changes(found.model, marks, effect)
            assert ends is not None
            for change in ends:
                assert (change.keep >= 0).all() and (change.scale >= 0).all()


def test_without_step_marks_no_gain_is_told_and_the_reason_is() -> None:
    predicted = predict(None, [], {})
    assert predicted.plan is None and predicted.replay is None
    assert predicted.reason is not None and "no training steps" in predicted.reason


def test_two_steps_are_too_few_to_test_the_replay_on() -> None:
    said = diagnose(queue.timed([Step(900, ((20, 80), (10, 300)), waits=True)] * 2).evidence)
    assert said.replay is None
    assert only_gain(said, CAUSE["loader_wait_removed"]).speedup_mid > 1.5


def lost_in_kernels(row: LedgerRow) -> float:
    """Seconds of a ledger row that were lost while the device computed."""
    return row.lost_s if row.state == "compute" else 0.0


def gains(findings: list[Finding]) -> list[Gain]:
    """All gains of a diagnosis, in order."""
    return [r.gain for f in findings for r in f.remedies if r.gain is not None]


def only_gain(said: Diagnosis, cause: str) -> Gain:
    """The gain of the first remedy of a cause."""
    (finding,) = (f for f in said.findings if f.cause == cause)
    gain = finding.remedies[0].gain
    assert gain is not None
    return gain
