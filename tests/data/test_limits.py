"""Limits read from folders that stand for a machine's /proc and /sys/fs/cgroup."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from whyidle.data import limits

AFFINITY = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def machine(tmp_path: Path, files: dict[str, str]) -> dict[str, Path]:
    """Folders for ``limits.read``: names begin with proc/ or groups/."""
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "groups").mkdir(exist_ok=True)
    return {"proc": tmp_path / "proc", "groups": tmp_path / "groups", "shm": tmp_path}


def test_a_quota_of_control_groups_version_2_limits_the_cpus(tmp_path: Path) -> None:
    folders = machine(
        tmp_path, {"proc/self/cgroup": "0::/job\n", "groups/job/cpu.max": "50000 100000\n"}
    )
    found = limits.read(**folders)
    assert (found.quota, found.cpus, found.affinity) == (0.5, 0.5, AFFINITY)
    assert found.held_by_quota


def test_the_least_quota_of_all_groups_above_counts(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/a/b\n",
        "groups/a/b/cpu.max": "max 100000\n",
        "groups/a/cpu.max": "30000 100000\n",
        "groups/cpu.max": "90000 100000\n",
    }
    assert limits.read(**machine(tmp_path, files)).quota == pytest.approx(0.3)


def test_a_quota_of_control_groups_version_1_is_read_too(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "4:cpu,cpuacct:/job\n2:memory:/job\n",
        "groups/cpu/job/cpu.cfs_quota_us": "25000\n",
        "groups/cpu/job/cpu.cfs_period_us": "100000\n",
        "groups/memory/job/memory.limit_in_bytes": "1000000\n",
        "groups/memory/job/memory.usage_in_bytes": "400000\n",
        "proc/meminfo": "MemTotal: 8000000 kB\nMemAvailable: 4000000 kB\n",
    }
    found = limits.read(**machine(tmp_path, files))
    assert found.quota == 0.25
    assert (found.memory_bytes, found.memory_free) == (1_000_000, 600_000)


def test_no_quota_leaves_the_affinity(tmp_path: Path) -> None:
    files = {"proc/self/cgroup": "0::/\n", "groups/cpu.max": "max 100000\n"}
    found = limits.read(**machine(tmp_path, files))
    assert found.quota is None
    assert found.cpus == AFFINITY
    assert not found.held_by_quota


def test_a_machine_without_these_files_is_no_error(tmp_path: Path) -> None:
    found = limits.read(**machine(tmp_path, {}))
    assert (found.quota, found.memory_bytes, found.load) == (None, None, None)
    assert found.shm_free is not None


def test_a_network_file_system_is_told_by_the_innermost_mount(tmp_path: Path) -> None:
    data = tmp_path / "my data"
    data.mkdir()
    at = str(data).replace(" ", "\\040")
    mounts = (
        "22 1 0:21 / / rw shared:1 - ext4 /dev/vda rw\n"
        f"40 22 0:44 / {at} rw shared:9 - nfs4 server:/share rw\n"
    )
    proc = machine(tmp_path, {"proc/self/mountinfo": mounts})["proc"]
    assert limits.file_system(str(data / "x"), proc) == "nfs4"
    assert limits.file_system("/", proc) == "ext4"
    plain = limits.read(proc, tmp_path / "groups", tmp_path)
    assert limits.with_storage(plain, str(data), proc).network is True
    assert limits.with_storage(plain, None, proc).network is None


def test_thread_variables_that_are_set_are_named(tmp_path: Path) -> None:
    folders = machine(tmp_path, {})
    found = limits.read(**folders, environment={"OMP_NUM_THREADS": "8", "HOME": "x"})
    assert found.thread_variables == {"OMP_NUM_THREADS": "8"}
