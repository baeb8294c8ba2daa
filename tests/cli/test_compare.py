"""``whyidle compare`` as a user meets it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli import tiny_trace
from tests.cli.running import whyidle
from tests.render.cases import sampled_only
from whyidle.comparison import Comparison
from whyidle.diagnosis import Diagnosis

LOADER = "data_loading.loader_workers_too_few"


def write(path: Path, wait_us: int, steps: int = 8) -> Path:
    """The tiny trace with another wait for the loader; steps get shorter by as much."""
    saved = tiny_trace.document(steps)
    shift = tiny_trace.WAIT_US - wait_us
    kept = []
    for row in saved["traceEvents"]:
        number = (row["ts"] - 1_000_000) // tiny_trace.STEP_US
        inside = (row["ts"] - 1_000_000) % tiny_trace.STEP_US
        row["ts"] -= number * shift + (shift if inside > 10 else 0)
        if row["name"].startswith("ProfilerStep"):
            row["dur"] -= shift
        if "DataLoader" in row["name"]:
            row["dur"] = wait_us
        kept.append(row)
    path.write_text(json.dumps({**saved, "traceEvents": kept}), encoding="utf-8")
    return path


@pytest.fixture
def slow(tmp_path: Path) -> Path:
    return write(tmp_path / "slow.json", 6_000)


@pytest.fixture
def fast(tmp_path: Path) -> Path:
    return write(tmp_path / "fast.json", 1_000)


def test_two_traces_are_compared_and_the_change_is_named(slow: Path, fast: Path) -> None:
    done = whyidle("compare", slow, fast)
    assert done.returncode == 0, done.stderr
    assert "A step takes 5 ms instead of 10 ms: 2.00x as fast" in done.stdout
    assert "Waiting for the data loader" in done.stdout
    assert "\x1b" not in done.stdout


def test_saved_diagnoses_and_traces_may_be_mixed(slow: Path, fast: Path, tmp_path: Path) -> None:
    saved = tmp_path / "saved.json"
    assert whyidle("diagnose", fast, "-o", saved, "-q").returncode == 0
    mixed = whyidle("compare", slow, saved, "--format", "json")
    plain = whyidle("compare", slow, fast, "--format", "json")
    assert mixed.returncode == plain.returncode == 0
    found, expected = Comparison.from_json(mixed.stdout), Comparison.from_json(plain.stdout)
    assert found.step == expected.step
    assert found.causes == expected.causes and found.kernels == expected.kernels


def test_a_run_against_itself_exits_0_and_says_so(slow: Path) -> None:
    done = whyidle("compare", slow, slow, "--fail-on", "slower>0%", "--fail-on", "lost>0%")
    assert done.returncode == 0, done.stderr
    assert "The two show no difference at all." in done.stdout


@pytest.mark.parametrize("limit", ["slower>5%", "lost>5%", "data_loading>2%", f"{LOADER}>40%"])
def test_a_limit_that_is_passed_exits_1_with_one_sentence(
    slow: Path, fast: Path, limit: str
) -> None:
    worse = whyidle("compare", fast, slow, "--fail-on", limit, "-q")
    assert worse.returncode == 1
    assert worse.stderr.count("\n") == 1 and "over the limit" in worse.stderr
    assert whyidle("compare", slow, fast, "--fail-on", limit).returncode == 0


@pytest.mark.parametrize("limit", ["slower", "slower>-1%", "no_such_cause>5%", "slower<5%"])
def test_a_limit_that_is_none_exits_2_with_the_way_to_write_it(slow: Path, limit: str) -> None:
    done = whyidle("compare", slow, slow, "--fail-on", limit)
    assert done.returncode == 2
    assert 1 <= done.stderr.count("\n") <= 3 and "Traceback" not in done.stderr


def test_a_limit_that_too_few_steps_leave_open_exits_2(tmp_path: Path) -> None:
    before, after = write(tmp_path / "a.json", 1_000, 3), write(tmp_path / "b.json", 6_000, 3)
    done = whyidle("compare", before, after, "--fail-on", "slower>5%", "-q")
    assert done.returncode == 2
    assert "cannot be told" in done.stderr and "at least 6 marked steps" in done.stderr


def test_every_format_is_written_by_its_suffix(slow: Path, fast: Path, tmp_path: Path) -> None:
    outputs = [tmp_path / name for name in ("c.json", "c.md", "c.html", "c.txt")]
    asked = [part for path in outputs for part in ("-o", path)]
    done = whyidle("compare", slow, fast, *asked)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    heads = [path.read_text(encoding="utf-8")[:24] for path in outputs]
    assert heads[0].startswith('{\n "schema"') and heads[1].startswith("### whyidle")
    assert heads[2].startswith("<!doctype html>") and heads[3].startswith("whyidle")


def test_what_cannot_be_read_is_one_sentence(slow: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.json"
    broken.write_text('{"schema": "whyidle.diagnosis/1", "devices": 5}', encoding="utf-8")
    for other in (tmp_path / "absent.json", broken):
        done = whyidle("compare", slow, other)
        assert done.returncode == 2
        assert 1 <= done.stderr.count("\n") <= 3 and "Traceback" not in done.stderr


def test_no_output_may_overwrite_a_side(slow: Path, fast: Path) -> None:
    done = whyidle("compare", slow, fast, "-o", fast)
    assert done.returncode == 2 and "overwrite" in done.stderr


def test_a_saved_diagnosis_of_before_there_were_tables_of_steps_is_read(
    slow: Path, fast: Path, tmp_path: Path
) -> None:
    old = []
    for name, path in (("old_slow.json", slow), ("old_fast.json", fast)):
        saved = tmp_path / name
        assert whyidle("diagnose", path, "-o", saved, "-q").returncode == 0
        told = json.loads(saved.read_text(encoding="utf-8"))
        for key in ("step_costs", "kernels", "environment", "observations"):
            told.pop(key, None)
        saved.write_text(json.dumps(told), encoding="utf-8")
        assert Diagnosis.from_json(saved.read_bytes()).step_costs == []
        old.append(saved)
    done = whyidle("compare", *old)
    assert done.returncode == 0, done.stderr
    assert "2.00x as fast" in done.stdout


def test_a_limit_on_what_b_cannot_show_does_not_pass(slow: Path, fast: Path) -> None:
    limit = "memory.allocator_retries>1%"
    done = whyidle("compare", slow, fast, "--fail-on", limit, "-q")
    assert done.returncode == 2
    assert "cannot show memory.allocator_retries" in done.stderr


def test_a_limit_does_not_pass_where_b_does_not_show_what_a_lost(
    slow: Path, fast: Path, tmp_path: Path
) -> None:
    saved = tmp_path / "saved.json"
    assert whyidle("diagnose", fast, "-o", saved, "-q").returncode == 0
    told = json.loads(saved.read_text(encoding="utf-8"))
    told["not_judged"].append({"cause": LOADER, "missing": ["x"], "record_with": "y"})
    saved.write_text(json.dumps(told), encoding="utf-8")
    done = whyidle("compare", slow, saved, "--fail-on", "lost>5%", "-q")
    assert done.returncode == 2
    assert "B does not show what “Waiting for the data loader” costs" in done.stderr


def test_equal_runs_without_steps_pass_every_limit(tmp_path: Path) -> None:
    saved = tmp_path / "sampled.json"
    saved.write_text(sampled_only().to_json(), encoding="utf-8")
    done = whyidle("compare", saved, saved, "--fail-on", "lost>5%", "-q")
    assert done.returncode == 0, done.stderr
