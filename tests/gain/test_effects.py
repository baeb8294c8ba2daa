"""What each effect leaves of a step that was timed by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from msgspec import structs

from tests.gain import queue_model as queue
from tests.gain.queue_model import Step
from tests.gain.test_known_queue import CAUSE, laid_out, only_gain
from whyidle import diagnose
from whyidle.gain.competition import fastest_ns, rest_slower, workers_for
from whyidle.gain.effects import HIGH, LOW, MID, changes, removed_share
from whyidle.gain.marks import Marks
from whyidle.gain.predict import ELSEWHERE, NO_STEPS, NOT_ALONE, Replayable, begins, predict
from whyidle.model import Evidence
from whyidle.rank_stories import REDUCE
from whyidle.stories import Story
from whyidle.views.activity import COMMUNICATION, COPY

STEP_US, CLAIMED_US = 1031, 400
"""One step: 400 us of products, 600 us of moving gradients, of which 400 us are claimed."""


def reducing(steps: int = 5) -> Evidence:
    """Products, then an all-reduce on a stream of its own that the host waits for."""
    story = Story()
    for number in range(steps):
        begin = number * STEP_US
        story.step(number, begin, begin + STEP_US)
        story.op("aten::mm", begin + 5, begin + 16)
        story.launch("gemm", (begin + 10, begin + 15), (begin + 20, begin + 420))
        story.launch(REDUCE, (begin + 20, begin + 25), (begin + 425, begin + 1025), lane=20)
        story.call("cudaStreamSynchronize", begin + 30, begin + 1029)
    return story.evidence()


def none() -> np.ndarray[Any, np.dtype[np.intp]]:
    """No index."""
    return np.zeros(0, dtype=np.intp)


def claimed(found: Replayable) -> Marks:
    """400 us claimed of every all-reduce."""
    at = np.flatnonzero(found.model.device_work.state == COMMUNICATION)
    claims = np.full(at.size, CLAIMED_US * 1e3)
    return Marks(none(), none(), np.zeros(0), at, claims, none(), none(), frozenset())


def told_us(found: Replayable, marks: Marks, effect: dict[str, Any]) -> list[float]:
    """The second step at the high, mid and low end, microseconds."""
    ends = changes(found.model, marks, effect)
    assert ends is not None
    begin = begins(found.model, ends)[found.model.marks]
    return [float(t) / 1e3 for t in begin[1, 1] - begin[1, 0]]


@pytest.mark.parametrize(
    ("kind", "factor", "gone"),
    [
        ("communication_compressed", 0.25, 0.75),
        ("communication_scaled", 0.5, 0.5),
        ("link_changed", 0.4, 0.6),
        ("link_changed", 2.0, 0.0),
        ("communication_overlapped", None, 1.0),
    ],
)
def test_only_the_claimed_part_of_communication_shrinks(
    kind: str, factor: float | None, gone: float
) -> None:
    found = laid_out(reducing())
    effect = {"kind": kind} if factor is None else {"kind": kind, "factor": factor}
    high, mid, low = told_us(found, claimed(found), effect)
    assert high == pytest.approx(STEP_US - gone * CLAIMED_US, abs=1)
    assert mid == pytest.approx(STEP_US - 0.6 * gone * CLAIMED_US, abs=1)
    assert low == pytest.approx(STEP_US - 0.25 * gone * CLAIMED_US, abs=1)


def test_balanced_ranks_take_the_waiting_out_of_the_collective() -> None:
    found = laid_out(reducing())
    high, mid, low = told_us(found, claimed(found), {"kind": "ranks_balanced"})
    assert [high, mid, low] == pytest.approx([631, 711, 831], abs=1)


def test_moving_less_than_the_host_can_launch_leaves_what_the_host_takes() -> None:
    found = laid_out(reducing())
    marks = claimed(found)
    marks.lost_ns[:] = 600e3
    (high, _, _) = told_us(found, marks, {"kind": "communication_compressed", "factor": 0.0})
    assert high == pytest.approx(425 + 4 + 2, abs=1), "the products and the returning wait stay"


def paused(often: int = 1) -> Evidence:
    """Eight steps of 1 ms on the device; ``often`` of them first write a checkpoint for 5 ms."""
    story, now = Story(), 0
    for number in range(8):
        begin = now
        if 3 <= number < 3 + often:
            story.frame("torch/serialization.py(850): save", now, now + 5000)
            now += 5000
        story.op("aten::mm", now, now + 20)
        story.launch("gemm", (now + 2, now + 8), (now + 10, now + 990))
        story.op("aten::item", now + 20, now + 998)
        story.call("cudaStreamSynchronize", now + 21, now + 994)
        now += 1000
        story.step(number, begin, now)
    return story.evidence()


def test_what_strikes_one_step_in_eight_is_told_by_the_mean_step() -> None:
    gain = only_gain(diagnose(paused()), "blind_spots.checkpoint_pause")
    interior_mean_ms = (6 * 1 + 5) / 6  # the first and last of eight steps are left out
    left_ms = (6 * 1 + 0.1 * 5) / 6  # in the background a tenth of it stays
    assert gain.step_s_mid == pytest.approx(1e-3 * left_ms / interior_mean_ms, rel=0.01)


def test_what_strikes_every_step_is_told_by_the_median_step() -> None:
    gain = only_gain(diagnose(paused(often=5)), "blind_spots.checkpoint_pause")
    # the host that is left runs at most 5 % faster
    assert gain.step_s_mid == pytest.approx(1e-3 + 0.1 * 5e-3, rel=0.02)


@pytest.mark.parametrize(("often", "left_ms"), [(None, 0.5), (1, 0.5), (2, 0.5), (20, 0.0)])
def test_what_is_left_to_every_twentieth_step_is_in_no_usual_step(
    often: int | None, left_ms: float
) -> None:
    found = laid_out(paused(often=8 - 3))
    marks = found.marks["blind_spots.checkpoint_pause"]
    effect = {"kind": "spans_scaled", "factor": 0.1} | ({} if often is None else {"every": often})
    ends = changes(found.model, marks, effect)
    assert ends is not None
    begin = begins(found.model, ends)[found.model.marks]
    high, mid, low = (float(t) / 1e6 for t in begin[4, 1] - begin[4, 0])
    assert [high, mid] == pytest.approx([1 + left_ms] * 2, abs=0.02)
    assert low == pytest.approx(1 + 5 * (1 - 0.98 * 0.9), abs=0.02)


def loading(loader_us: int) -> Evidence:
    """A training process that builds its batches itself."""
    return queue.timed([Step(loader_us, ((20, 80), (10, 50), (12, 700)), waits=True)] * 6).evidence


def test_the_remedy_names_the_workers_that_keep_up() -> None:
    said = diagnose(loading(4000))
    (finding,) = (f for f in said.findings if f.cause == CAUSE["loader_wait_removed"])
    (remedy,) = finding.remedies
    rest_us = queue.timed([Step(0, ((20, 80), (10, 50), (12, 700)), waits=True)] * 6).steps[2]
    assert remedy.effect["workers"] == -(-5000 // rest_us)  # a quarter more than just enough
    assert f"{remedy.effect['workers']} workers, if there are as many cores" in remedy.how
    assert "4 ms to build" in remedy.how


def test_few_workers_bound_the_step_by_what_they_load() -> None:
    found = laid_out(loading(4000))
    marks = found.marks[CAUSE["loader_wait_removed"]]
    ends = changes(found.model, marks, {"kind": "loader_wait_removed", "workers": 2})
    assert ends is not None
    floors_ms = [change.floor_ns / 1e6 for change in ends]
    assert floors_ms == pytest.approx([4 / 2, 4 / (2 * 0.88), 4 / (2 * 0.7)])
    assert [change.slower for change in ends] == [1.0, 1.1, 1.35]


def test_a_loader_that_is_made_cheaper_brings_no_workers_and_nothing_competes() -> None:
    found = laid_out(loading(4000))
    marks = found.marks[CAUSE["loader_wait_removed"]]
    ends = changes(found.model, marks, {"kind": "loader_wait_removed", "share_removed": 0.5})
    assert ends is not None
    assert all((change.slower, change.floor_ns) == (1.0, 0.0) for change in ends)
    whole_ns = float((found.model.steps[:, 1] - found.model.steps[:, 0]).sum())
    assert removed_share(found.model, ends[HIGH]) == pytest.approx(0.5 * 6 * 4e6 / whole_ns)


@pytest.mark.parametrize(
    ("load_ms", "rest_ms", "cpus", "workers"),
    [
        (50, 100, None, 2),
        (300, 100, None, 4),
        (3000, 10, None, 16),
        (300, 100, 3.0, 2),
        (300, 100, 1.0, 1),
        (20, 0, None, 16),
        (0, 100, None, None),
    ],
)
def test_workers_are_as_many_as_keep_up_and_the_cores_allow(
    load_ms: float, rest_ms: float, cpus: float | None, workers: int | None
) -> None:
    assert workers_for(load_ms * 1e6, rest_ms * 1e6, cpus) == workers


def test_with_few_cores_all_work_of_a_step_has_to_fit_on_them() -> None:
    high, mid, low = fastest_ns(80e6, 40e6, workers=4, cpus=2)
    assert high == pytest.approx(20e6)
    assert mid == low == pytest.approx(60e6)


def test_the_pace_of_the_rest_changes_in_proportion_to_what_goes() -> None:
    assert [rest_slower(end, 0.0) for end in (HIGH, MID, LOW)] == [1.0, 1.0, 1.0]
    assert rest_slower(HIGH, 0.5) == pytest.approx(0.925)
    assert rest_slower(LOW, 1.0) == rest_slower(LOW, 3.0) == pytest.approx(1.15)


def test_a_loop_made_one_operator_takes_its_smallest_kernels_along() -> None:
    found = laid_out(
        queue.timed([Step(0, ((20, 2), (10, 50), (12, 400)), waits=True)] * 6).evidence
    )
    inside = np.arange(found.model.chains.cells.node.size)
    marks = Marks(inside, none(), np.zeros(0), none(), np.zeros(0), none(), none(), frozenset())
    ends = changes(found.model, marks, {"kind": "launches_scaled", "factor": 0.0})
    assert ends is not None
    left = (found.model.device_work.length * ends[HIGH].scale)[:3]
    assert left == pytest.approx([0, 48e3, 398e3]), "each loses the 2 us of a launch"


def test_mixed_precision_ranges_from_what_was_claimed_to_its_factor() -> None:
    found = laid_out(
        queue.timed([Step(0, ((20, 80), (10, 50), (12, 400)), waits=True)] * 6).evidence
    )
    work = np.array([2])
    claims = np.array([160e3])
    marks = Marks(none(), none(), np.zeros(0), work, claims, none(), none(), frozenset())
    for effect, left_us in (
        ({"kind": "kernels_scaled", "factor": 0.4}, (160, 200, 256)),
        ({"kind": "kernels_scaled", "factor": 0.4, "only": "claimed"}, (240, 264, 304)),
    ):
        ends = changes(found.model, marks, effect)
        assert ends is not None
        told = [float(400 * change.scale[2]) for change in ends]
        assert told == pytest.approx(left_us)


def copying(pinned: bool, steps: int = 6) -> Evidence:
    """400 us of copy and 300 us of products; 200 us of host work lie between their launches.

    A call for pageable memory returns with its copy; one for pinned memory at once.
    """
    kind = "Pinned" if pinned else "Pageable"
    story, now, done = Story(), 0, -1000
    for number in range(steps):
        begin = now
        copy = max(now + 10, done + 1)
        back = now + 12 if pinned else copy + 404
        name = f"Memcpy HtoD ({kind} -> Device)"
        call, run = (now + 2, back), (copy, copy + 400)
        story.launch(name, call, run, kind="copy", by="cudaMemcpyAsync", bytes=40_000_000)
        story.op("aten::copy_", now, back + 1)
        story.op("aten::mm", back + 1, back + 206)
        start = max(back + 200 + 9, copy + 401)
        story.launch("gemm", (back + 200, back + 205), (start, start + 300))
        done = start + 300
        story.call("cudaStreamSynchronize", back + 210, done + 4)
        now = done + 6
        story.step(number, begin, now)
    return story.evidence()


def test_pinned_copies_are_shorter_and_their_calls_return_at_once() -> None:
    found = laid_out(copying(pinned=False))
    copies = np.flatnonzero(found.model.device_work.state == COPY)
    claims = np.full(copies.size, 400e3)
    marks = Marks(none(), none(), np.zeros(0), copies, claims, none(), none(), frozenset())
    pinned = laid_out(copying(pinned=True)).step_s * 1e6
    alike = {"kind": "copies_scaled", "factor": 1.0, "asynchronous": True}
    _, mid, _ = told_us(found, marks, alike)
    assert mid == pytest.approx(pinned, abs=12), "the host's 200 us hide behind the copy"
    high, _, _ = told_us(found, marks, alike | {"factor": 0.5})
    assert high == pytest.approx(12 + 200 + 9 + 300 + 4 + 6, abs=12), "the host's 200 us bound it"


def test_every_way_to_have_no_gain_has_its_sentence() -> None:
    said = diagnose(queue.timed([Step(900, ((20, 80), (10, 300)), waits=True)] * 4).evidence)
    found = laid_out(queue.timed([Step(900, ((20, 80), (10, 300)), waits=True)] * 4).evidence)
    lost = {f.cause: f.lost_s for f in said.findings}
    assert predict(found, said.findings, lost).reason is None
    assert predict(found, said.findings, {}).reason == ELSEWHERE
    bare = [structs.replace(f, remedies=[]) for f in said.findings]
    assert predict(found, bare, lost).reason == NOT_ALONE
    assert predict(None, said.findings, lost).reason == NO_STEPS
    assert predict(found, [], {}).reason is None, "nothing to gain from needs no excuse"


def test_a_run_without_step_marks_says_so_in_its_diagnosis() -> None:
    story = Story()
    for at in (0, 3000, 6000):
        story.annotate("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at, at + 2000)
        story.op("aten::mm", at + 2000, at + 2010)
        story.launch("gemm", (at + 2002, at + 2008), (at + 2010, at + 3000))
    said = diagnose(story.evidence())
    assert said.findings and said.plan is None
    assert said.no_gain == NO_STEPS
    assert diagnose(loading(4000)).no_gain is None
