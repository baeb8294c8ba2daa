"""What is told of a whole run, from event files written by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from whyidle.observe.events import processes
from whyidle.observe.launch import Outcome
from whyidle.observe.story import told, trainers, without_profile

MS = 1_000_000
OUTCOME = Outcome(0, None, 2.0)


def bundle(folder: Path, *events: dict[str, Any], name: str = "1-0.jsonl") -> Path:
    (folder / "processes").mkdir(exist_ok=True)
    text = "".join(json.dumps(event) + "\n" for event in events)
    (folder / "processes" / name).write_text(text)
    return folder


def stepped(count: int, step_ms: float, wait_ms: float = 0) -> dict[str, Any]:
    """Steps of one length, end to end from 0, each with a hook cost of a thousandth of a step."""
    step, wait = round(step_ms * MS), round(wait_ms * MS)
    rows = [[n, n * step, (n + 1) * step, wait, step // 1000] for n in range(count)]
    return {"event": "steps", "rows": rows}


def pauses(*rows: list[Any]) -> dict[str, Any]:
    return {"event": "pauses", "rows": list(rows)}


def test_steps_waits_and_cost_are_shares_of_settled_steps(tmp_path: Path) -> None:
    (rank,) = trainers(processes(bundle(tmp_path, stepped(20, 50, 40))))
    assert (rank.steps, rank.step_s, rank.mean_s) == (20, 0.05, 0.05)
    assert (rank.wait_share, rank.hook_share) == (0.8, 0.001)


def test_a_pause_is_a_share_of_the_time_outside_profiles(tmp_path: Path) -> None:
    """1,000 ms of steps, 50 of them the first; of 950 - 150 for the profiler, 80 ms are 10 %."""
    checkpoint = ["checkpoint", 100 * MS, 180 * MS, "/a/train.py", 7, None]
    profiler = ["profiler", 300 * MS, 450 * MS, None, None, None]
    inside = ["collector", 310 * MS, 400 * MS, None, None, "generation 2"]
    found = processes(bundle(tmp_path, stepped(20, 50), pauses(checkpoint, profiler, inside)))
    lines = "\n".join(told(found, OUTCOME))
    assert (
        "10.0% of the time after the first step went by in torch.save (1 time, train.py:7)."
        in lines
    )
    assert "the profiler took 150 ms" in lines
    assert "garbage collector" not in lines  # of the profiler's own pause


def test_the_slowest_rank_is_told(tmp_path: Path) -> None:
    bundle(tmp_path, {"event": "process", "rank": 0, "started_ns": 0}, stepped(20, 10))
    bundle(tmp_path, {"event": "process", "rank": 1}, stepped(20, 30), name="2-0.jsonl")
    lines = told(processes(tmp_path), OUTCOME)
    assert "20 steps on each of 2 ranks; the median step took 30 ms, on the slowest" in lines[1]


def test_a_line_cut_by_a_kill_and_lines_of_another_kind_are_left_out(tmp_path: Path) -> None:
    path = bundle(tmp_path, stepped(4, 10), {"event": "steps", "rows": [[1, "x"], 3, None]})
    file = next((path / "processes").iterdir())
    with file.open("ab") as stream:
        stream.write(b'[1, 2]\n\xff\xfe\n{"event":"steps","rows":[[4,')
    (rank,) = trainers(processes(path))
    assert rank.steps == 4


def test_one_step_alone_is_told_without_a_median_of_nothing(tmp_path: Path) -> None:
    lines = told(processes(bundle(tmp_path, stepped(1, 10))), OUTCOME)
    assert "1 step; the median step took 10 ms" in lines[1]


def loader(number: int, line: int) -> dict[str, Any]:
    about = {"batch_size": 4, "num_workers": 0, "dataset": "Images", "file": "/a/loop.py"}
    made = {"line": 3, "made_file": "/a/train.py", "made_line": line}
    return {"event": "loader", "loader": number, **about, **made}


def test_loaders_are_told_by_what_steps_waited_for_them(tmp_path: Path) -> None:
    waits = {"event": "waits", "rows": [[0, 10, 0], [1, 600, 1], [2, 390, 0], [1, "x", 0], [3]]}
    loaders = [loader(number, 20 + number) for number in range(3)]
    lines = told(processes(bundle(tmp_path, *loaders, waits, stepped(20, 50, 40))), OUTCOME)
    assert [line for line in lines if line.startswith(" - ")] == [
        " - Images at train.py:21 (60.0% of the waiting): batch_size=4, num_workers=0",
        " - Images at train.py:22 (39.0% of the waiting): batch_size=4, num_workers=0",
    ]


def test_a_process_that_stopped_telling_is_named(tmp_path: Path) -> None:
    found = processes(bundle(tmp_path, {"event": "process", "pid": 8}, stepped(20, 50)))
    assert any("Process 8 stopped telling after step 19" in line for line in told(found, OUTCOME))
    killed = Outcome(137, 9, 2.0)
    assert not any("stopped telling" in line for line in told(found, killed))
    ended = {"event": "end", "t_ns": 1}
    found = processes(bundle(tmp_path, stepped(20, 50), ended))
    assert not any("stopped telling" in line for line in told(found, OUTCOME))


@pytest.mark.parametrize(
    ("problem", "said"),
    [
        ("another profiler is already running", "a profiler of its own"),
        ("OSError(28)", "since that failed: OSError(28)"),
        (None, "Let it run longer"),
    ],
)
def test_why_nothing_was_profiled_is_said(tmp_path: Path, problem: str | None, said: str) -> None:
    event = {"event": "problem", "where": "window" if problem else "site", "error": problem or ""}
    found = processes(bundle(tmp_path, stepped(20, 50), event))
    assert said in " ".join(without_profile(found, {"profile": True}))


def test_damaged_events_are_left_out_of_the_story(tmp_path: Path) -> None:
    bad = [["stalled", {}, 5, None, None, None], [3, 1, 2, None, None, None],
           ["checkpoint", 1, 2, 7, None, None]]  # fmt: skip
    about = {"event": "process", "started_ns": float("nan")}
    stacks = [
        {"event": "stacks", "steps": steps, "limit_s": 60.0, "file": file, "threads": threads}
        for steps, file, threads in (
            (3, True, []), (3, None, 5), (3, None, [{"steps": True, "frames": [[1, 2, 3]]}]),
            ({}, None, []),
        )
    ]  # fmt: skip
    damaged = {**loader(0, 3), "made_file": True}
    steps = {"event": "steps", "rows": [[1 << 70, 0, 1, 0, 0], [-1, 0, 1, 0, 0]]}
    found = processes(
        bundle(tmp_path, about, damaged, *stacks, pauses(*bad), steps, stepped(4, 10, 8))
    )
    assert found[0].pauses == found[0].stacks == found[0].loaders == []
    assert "4 steps" in told(found, OUTCOME)[1]
