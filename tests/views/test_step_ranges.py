"""Steps that a script named itself, where the profiler marked none."""

from __future__ import annotations

import pytest

from whyidle.model import Evidence, evidence_of
from whyidle.views import Views
from whyidle.views.step_ranges import family

MS = 1_000_000


def run(*ranges: tuple[str, int, int], marks: int = 0) -> Evidence:
    """One kernel over 100 ms, and annotations (name, start and end in ms) on one thread."""
    rows: list[dict[str, object]] = [
        {"kind": "kernel", "name": "k", "start_ns": 0, "end_ns": 100 * MS, "device": 0, "lane": 7}
    ]
    rows += [
        {
            "kind": "annotation",
            "name": name,
            "start_ns": start * MS,
            "end_ns": end * MS,
            "thread": 0,
        }
        for name, start, end in ranges
    ]
    rows += [
        {"kind": "annotation", "name": f"ProfilerStep#{n}", "start_ns": n * MS,
         "end_ns": (n + 1) * MS, "thread": 0}
        for n in range(marks)
    ]  # fmt: skip
    return evidence_of(rows)


def steps(evidence: Evidence) -> list[tuple[int, float, float]]:
    """(number, start, end in ms) of the steps found."""
    marks = Views(evidence).marks.select("number", "start_ns", "end_ns")
    return [(number, start / MS, end / MS) for number, start, end in marks.iter_rows()]


@pytest.mark.parametrize(
    "pattern",
    ["step {}", "iteration #{}", "Iteration#{}", "train_step {}", "train/step_{}", "iter[{}]",
     "epoch 2 batch {}", "Step: {}"],
)  # fmt: skip
def test_numbered_ranges_are_steps_that_last_until_the_next(pattern: str) -> None:
    ranges = [(pattern.format(n), 10 * (n - 7), 10 * (n - 7) + 6) for n in (7, 8, 9)]
    assert steps(run(*ranges)) == [(7, 0, 10), (8, 10, 20), (9, 20, 26)]


def test_ranges_of_one_name_are_numbered_from_nought() -> None:
    ranges = [("train_step", at, at + 5) for at in (0, 10, 20, 30)]
    assert [number for number, _, _ in steps(run(*ranges))] == [0, 1, 2, 3]


def test_micro_batches_inside_a_step_are_not_steps() -> None:
    outer = [(f"step {n}", 10 * n, 10 * n + 9) for n in range(4)]
    inner = [(f"batch {k}", 10 * n + 2 * k, 10 * n + 2 * k + 2) for n in range(4) for k in range(4)]
    assert len(steps(run(*outer, *inner))) == 4


def test_numbers_that_start_again_with_every_epoch_are_counted_through() -> None:
    ranges = [(f"epoch {e} step {k}", 20 * e + 10 * k, 20 * e + 10 * k + 9)
              for e in range(2) for k in range(2)]  # fmt: skip
    assert [number for number, _, _ in steps(run(*ranges))] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "names",
    [
        ["layer 1", "layer 2", "layer 3"],
        ["step 1", "step 2"],
        ["validation step 1", "validation step 2", "validation step 3"],
        ["Optimizer.step#SGD.step"] * 3,
        ["lr_scheduler.step", "optimizer_step 3", "optimizer_step 4"],
        ["footstep 1", "footstep 2", "footstep 3"],
    ],
)
def test_other_ranges_are_no_steps(names: list[str]) -> None:
    assert steps(run(*((name, 10 * n, 10 * n + 5) for n, name in enumerate(names)))) == []


def test_ranges_that_overlap_are_no_steps() -> None:
    assert steps(run(("step 1", 0, 30), ("step 2", 10, 40), ("step 3", 20, 50))) == []


def test_marks_of_the_profiler_win() -> None:
    ranges = [(f"step {n}", 10 * n, 10 * n + 9) for n in range(4)]
    assert [number for number, _, _ in steps(run(*ranges, marks=2))] == [0, 1]


def test_the_report_says_which_ranges_were_taken() -> None:
    views = Views(run(*((f"step {n}", 10 * n, 10 * n + 9) for n in range(4))))
    assert any("'step #'" in note for note in views.notes)
    assert not any("No steps were marked" in note for note in views.notes)
    assert not any("deduced" in note for note in Views(run(marks=3)).notes)


def test_what_differs_in_its_number_only_is_one_family() -> None:
    assert family("epoch 3 step 17") == family("epoch 4 step 2") == "epoch # step #"
    assert family("forward") is None
