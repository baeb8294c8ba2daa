"""What ``whyidle env`` makes of files and answers whose truth is known."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.cli.running import whyidle
from whyidle.environment import Torch, cpu_quota, missing
from whyidle.gpus import Gpu, parse_amd, parse_nvidia

H100 = Gpu(index=0, name="NVIDIA H100", memory_bytes=80 * 2**30, driver="550.54")


@pytest.mark.parametrize(
    ("text", "cpus"), [("150000 100000", 1.5), ("max 100000", None), ("", None)]
)
def test_the_cpu_quota_of_a_container_is_read(
    tmp_path: Path, text: str, cpus: float | None
) -> None:
    (tmp_path / "cpu.max").write_text(text)
    assert cpu_quota(tmp_path) == cpus


def test_the_older_cgroup_files_give_the_same_quota(tmp_path: Path) -> None:
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu/cpu.cfs_quota_us").write_text("200000\n")
    (tmp_path / "cpu/cpu.cfs_period_us").write_text("100000\n")
    assert cpu_quota(tmp_path) == 2.0


def test_nvidia_rows_become_gpus_and_unknown_memory_stays_unknown() -> None:
    text = "0, NVIDIA H100 80GB HBM3, 81559, 550.54.15\n1, NVIDIA GB10, [N/A], 580.1\nnoise\n"
    first, second = parse_nvidia(text)
    assert (first.index, first.name, first.driver) == (0, "NVIDIA H100 80GB HBM3", "550.54.15")
    assert first.memory_bytes == 81559 * 1024 * 1024
    assert second.memory_bytes is None


def test_amd_cards_become_gpus() -> None:
    card = '{"Card Series": "MI300X", "VRAM Total Memory (B)": "206141652992"}'
    text = f'{{"card0": {card}, "system": {{}}}}'
    (gpu,) = parse_amd(text)
    assert (gpu.index, gpu.name, gpu.memory_bytes) == (0, "MI300X", 206141652992)
    assert parse_amd("no json") == []


def test_a_cpu_build_of_torch_beside_a_gpu_is_called_missing() -> None:
    cpu = Torch(version="2.13.0+cpu", cuda=None, rocm=None)
    cuda = Torch(version="2.13.0", cuda="12.6", rocm=None)
    assert [row.what for row in missing(cpu, [H100])] == ["a PyTorch that can use the GPU"]
    assert missing(cuda, [H100]) == []
    assert [row.what for row in missing(None, [])] == ["PyTorch", "a GPU"]


def test_torch_is_described_without_being_imported(tmp_path: Path) -> None:
    package = tmp_path / "torch"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('imported')")
    (package / "version.py").write_text(
        "__version__ = '9.9.9+cu126'\ncuda: Optional[str] = '12.6'\nhip: Optional[str] = None\n"
    )
    about = tmp_path / "torch-9.9.9+cu126.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 9.9.9+cu126\n")
    done = whyidle("env", path=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "9.9.9+cu126 (built for 12.6)" in done.stdout


def test_env_asks_a_vendor_tool_only_to_read(tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f'#!/bin/sh\necho "$@" >> {asked}\necho "0, NVIDIA T4, 15360, 535.1"\n')
    tool.chmod(0o755)
    done = whyidle("env", env={"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    assert "0: NVIDIA T4" in done.stdout
    assert asked.read_text().split()[0] == "--query-gpu=index,name,memory.total,driver_version"
