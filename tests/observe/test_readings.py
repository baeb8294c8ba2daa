"""Readings beside a job: its processes, the machine, and GPUs by an NVML made for the test."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from tests.observe.jobs import manifest, observe, script
from whyidle.model import HOST_METRICS, METRICS
from whyidle.observe import progress
from whyidle.observe.progress import Progress

PYTHON = sys.executable
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc is of Linux")


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@linux
def test_the_processes_of_a_job_are_measured_together(tmp_path: Path) -> None:
    """A child that holds 64 MiB, and one that burns CPU until both have run for two seconds."""
    script(
        tmp_path,
        """
        import sys, time
        held = bytearray(64 << 20) if sys.argv[1] == "hold" else None
        ends = time.monotonic() + 2.5
        while time.monotonic() < ends:
            if held: time.sleep(0.1)
        """,
        "child.py",
    )
    job = script(
        tmp_path,
        """
        import subprocess, sys
        for one in [subprocess.Popen([sys.executable, "child.py", a]) for a in ("hold", "burn")]:
            one.wait()
        """,
    )
    assert observe(tmp_path, PYTHON, str(job)).returncode == 0
    lines = read(tmp_path / "bundle" / "samples" / "host.jsonl")
    assert {line["metric"] for line in lines} <= set(HOST_METRICS)
    values: dict[str, list[float]] = {}
    for line in lines:
        values.setdefault(line["metric"], []).append(line["value"])
    assert max(values["job/processes"]) == 3
    assert max(values["job/memory_used"]) > 64 << 20
    used = [(li["value"], li["period_ns"]) for li in lines if li["metric"] == "job/cpus_used"]
    assert 0.3 < sum(value * period_ns for value, period_ns in used) / 1e9 < 4
    assert values["job/cpus"] == [len(os.sched_getaffinity(0))]
    assert all(value > 0 for value in values["host/memory_available"])
    assert all(0 <= value <= 1 for value in values["host/cpu_utilization"])
    assert 0 < manifest(tmp_path)["readings_cpu_s"] < 1


@linux
def test_what_a_process_did_is_kept_when_it_has_ended_and_its_parent_too() -> None:
    from whyidle.observe.tree import Tree

    orphan = "import subprocess, sys; subprocess.Popen(['sleep', '30']); input()"
    with subprocess.Popen([PYTHON, "-c", orphan], stdin=subprocess.PIPE) as parent:
        tree = Tree(parent.pid)
        while len(tree.read().pids) < 2:
            pass
        (sleeper,) = set(tree.read().pids) - {parent.pid}
        assert parent.stdin is not None
        parent.stdin.write(b"\n")
    try:
        assert tree.read().pids == (sleeper,)
    finally:
        os.kill(sleeper, 9)


GPUS = """
    import json, sys
    from whyidle.observe.nvml import opened
    gpus = opened()
    first = gpus.read(10**9, frozenset({11, 13}))
    later = gpus.read(3 * 10**9, frozenset({11, 13}))
    print(json.dumps([[list(r) for r in found] for found in (first, later)]))
    gpus.close()
"""


@pytest.fixture(scope="module")
def gpus(tmp_path_factory: pytest.TempPathFactory) -> list[dict[tuple[int, str, int | None], Any]]:
    """Two readings two seconds apart, as (device, metric, pid) -> (value, period_ns, reason)."""
    if find_spec("pynvml") is None:
        pytest.skip("nvidia-ml-py is not installed: pip install 'whyidle[nvml]'")
    compiler = shutil.which("cc")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("there is no C compiler (cc) to build an NVML for the test")
    folder = tmp_path_factory.mktemp("nvml")
    source = Path(__file__).parent / "nvml_stub.c"
    library = str(folder / "libnvidia-ml.so.1")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, str(source)], check=True)
    env = {**os.environ, "LD_LIBRARY_PATH": str(folder)}
    ran = subprocess.run([PYTHON, "-c", dedent(GPUS)], env=env, capture_output=True, check=True)
    return [
        {
            (device, metric, pid): (value, period_ns, reason)
            for metric, value, period_ns, reason, pid, device, _ in found
        }
        for found in json.loads(ran.stdout)
    ]


def test_gpus_are_read_in_our_names_and_units(gpus: list[dict[Any, Any]]) -> None:
    first, later = gpus
    assert {metric for found in gpus for _, metric, _ in found} <= set(METRICS)
    assert first[0, "gpu_utilization", None] == (0.8, None, None)
    assert later[0, "gpu_utilization", None] == (0.8, 2 * 10**9, None)
    assert later[1, "gpu_utilization", None][0] == 0
    assert later[0, "memory_used", None][0] == 600
    assert later[0, "power", None][0] == 250
    assert later[0, "throttle_sw_power_cap", None][0] == 1
    assert later[0, "throttle_hw_thermal_slowdown", None][0] == 1
    assert later[0, "throttle_gpu_idle", None][0] == 0
    assert later[1, "throttle_gpu_idle", None][0] == 1


def test_counters_of_the_gpu_itself_stand_for_the_time_between_readings(
    gpus: list[dict[Any, Any]],
) -> None:
    first, later = gpus
    assert (0, "sm_active", None) not in first
    assert later[0, "sm_active", None] == (0.4, 2 * 10**9, None)
    assert later[0, "tensor_active", None][0] == 0.125
    assert later[0, "pcie_tx", None][0] == 3 * 2**20
    assert (0, "nvlink_tx", None) not in later  # not supported, and so not 0
    assert (1, "sm_active", None) not in later


def test_what_a_gpu_does_not_support_is_told_once_with_the_reason(
    gpus: list[dict[Any, Any]],
) -> None:
    first, later = gpus
    assert first[1, "power", None] == (None, None, "Not Supported")
    assert (1, "power", None) not in later


def test_memory_is_told_of_the_jobs_own_processes_where_it_is_known(
    gpus: list[dict[Any, Any]],
) -> None:
    _, later = gpus
    held = {pid: value[0] for (_, metric, pid), value in later.items() if pid is not None}
    assert held == {11: 500}


def test_progress_follows_the_growth_of_event_files(tmp_path: Path) -> None:
    (tmp_path / "processes").mkdir()
    file = tmp_path / "processes" / "1-0.jsonl"
    follows = Progress(tmp_path)
    assert follows.line(5.0) == "5 s so far, no step yet"
    rows = [[n, n * 10**8, (n + 1) * 10**8, 25 * 10**6] for n in range(4)]
    lines = [json.dumps({"event": "steps", "rows": part}, separators=(",", ":")) for part in
             (rows[:3], rows[3:])]  # fmt: skip
    file.write_text('{"event":"process"}\n' + lines[0] + "\n" + lines[1][:20])
    assert follows.line(31.0).startswith("31 s so far, 3 steps, the median of the last ones 100 ms")
    with file.open("a") as stream:
        stream.write(lines[1][20:] + "\n")
    assert "4 steps" in follows.line(61.0)
    assert "25.0% of them waiting" in follows.line(61.0)


@pytest.mark.parametrize(
    ("quiet", "err", "out", "shown"),
    [
        (False, True, False, True),
        (False, True, True, False),  # the job writes to the same terminal
        (False, False, False, False),
        (True, True, False, False),
    ],
)
def test_progress_is_shown_where_it_cannot_cross_the_jobs_output(
    monkeypatch: pytest.MonkeyPatch, quiet: bool, err: bool, out: bool, shown: bool
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: err)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: out)
    assert progress.wanted(quiet=quiet) is shown


@pytest.mark.parametrize(
    ("option", "value", "told"),
    [
        ("--every", "0", "'0' is not a whole number from 1"),
        ("--every", "1.5", "'1.5' is not a whole number from 1"),
        ("--hang", "never", "'never' is not a number of seconds above 0"),
        ("--hang", "-1", "'-1' is not a number of seconds above 0"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(
    tmp_path: Path, option: str, value: str, told: str
) -> None:
    ran = observe(tmp_path, "true", options=(f"{option}={value}",))
    assert ran.returncode == 2
    assert told in ran.stderr
    assert not (tmp_path / "bundle").exists()
