"""Hand-written event files, and the pace and the losses that are in them."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from whyidle.trial.measured import pace_of, read

MS = 1_000_000


def told(bundle: Path, name: str, *events: object, end: str = "") -> None:
    (bundle / "processes").mkdir(parents=True, exist_ok=True)
    lines = "".join(json.dumps(event) + "\n" for event in events)
    (bundle / "processes" / f"{name}.jsonl").write_text(lines + end, encoding="utf-8")


def rows(*lengths_ms: float, first: int = 0) -> list[list[int]]:
    at, found = 10**18, []
    for number, length in enumerate(lengths_ms, first):
        found.append([number, at, at + int(length * MS), 0, 0])
        at += int(length * MS)
    return found


def test_the_pace_is_the_median_step_after_the_warm_up(tmp_path: Path) -> None:
    told(
        tmp_path,
        "1",
        {"event": "process", "rank": None, "role": "main"},
        {"event": "steps", "rows": rows(900, 700, 500, 10, 12)},
        {"event": "steps", "rows": rows(11, 10, 12, first=5)},
    )
    pace = read(tmp_path).pace
    assert pace is not None
    assert pace.median_s == pytest.approx(0.011)
    assert pace.mean_s == pytest.approx(0.011)
    assert (pace.steps, pace.counted) == (8, 5)


def test_a_warm_up_never_takes_more_than_half_of_the_steps() -> None:
    pace = pace_of([(0, 0, 9 * MS), (1, 9 * MS, 11 * MS), (2, 11 * MS, 15 * MS)], warm_up=50)
    assert pace is not None
    assert pace.counted == 2
    assert pace.median_s == pytest.approx(0.003)


def test_the_slowest_rank_sets_the_pace_and_workers_have_none(tmp_path: Path) -> None:
    for rank, length in ((0, 10), (1, 14), (2, 12)):
        told(
            tmp_path,
            str(rank),
            {"event": "process", "rank": rank, "role": "main"},
            {"event": "steps", "rows": rows(*[length] * 8)},
            {"event": "loss", "rows": [[0, 5.0 + rank], [1, 4.0 + rank]]},
        )
    told(
        tmp_path,
        "worker",
        {"event": "process", "rank": 0, "role": "worker"},
        {"event": "steps", "rows": rows(*[999] * 8)},
    )
    found = read(tmp_path)
    assert found.pace is not None
    assert found.pace.median_s == pytest.approx(0.014)
    assert (found.losses[0], found.losses[1]) == (5.0, 4.0)


def test_a_file_cut_in_the_middle_of_a_line_is_read_up_to_it(tmp_path: Path) -> None:
    told(
        tmp_path, "1", {"event": "steps", "rows": rows(10, 10)}, end='{"event":"steps","rows":[[2,'
    )
    pace = read(tmp_path).pace
    assert pace is not None
    assert pace.steps == 2


def test_events_that_make_no_sense_are_left_out(tmp_path: Path) -> None:
    told(
        tmp_path,
        "1",
        [1, 2],
        {"event": "steps", "rows": [[0, "a", 3], 5, [1], [2, 5 * MS, 4 * MS], [True, 0, 1]]},
        {"event": "steps", "rows": None},
        {"event": "process", "rank": "zero", "role": 3},
        {"event": "loss", "rows": [[0, None], [1, "x"], [2, 1.5], ["a", 2.0]]},
        end="[" * 100_000 + '\n\xff\x00\n{"event":"loss","rows":[[3,NaN],[4,' + "9" * 400 + "]]}\n",
    )
    found = read(tmp_path)
    assert found.pace is None
    assert [step for step, loss in found.losses.items() if not math.isnan(loss)] == [2]


def test_a_step_without_a_loss_is_a_gap_in_the_curve(tmp_path: Path) -> None:
    told(
        tmp_path,
        "1",
        {"event": "steps", "rows": rows(10, 10, 10)},
        {"event": "loss", "rows": [[0, 2.0], [1, 1.0]]},
    )
    losses = read(tmp_path).losses
    assert (losses[0], losses[1], math.isnan(losses[2])) == (2.0, 1.0, True)


def test_a_job_without_hooks_has_neither_pace_nor_losses(tmp_path: Path) -> None:
    found = read(tmp_path)
    assert found.pace is None
    assert found.losses == {}
