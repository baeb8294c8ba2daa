"""The training scripts of ``examples/jobs``, each with one planted fault and a twin without it."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "jobs"


@dataclass(frozen=True)
class Job:
    """``line`` is a part of the line that holds the fault; ``remedy`` and ``change`` answer it.

    ``observed``: the cause is told without seconds. ``ranks``: None for a single process.
    ``redraws``: without the fault other random numbers are drawn, so that the loss differs.
    """

    name: str
    cause: str
    line: str
    change: str
    remedy: str
    observed: bool = False
    ranks: int | None = None
    redraws: bool = False

    @property
    def path(self) -> Path:
        return FOLDER / f"{self.name}.py"

    @property
    def twin(self) -> Path:
        return FOLDER / f"{self.name}_fixed.py"

    @property
    def number(self) -> int:
        """The line that holds the fault, from 1."""
        lines = self.path.read_text().splitlines()
        (found,) = [at for at, line in enumerate(lines, start=1) if self.line in line]
        return found

    def command(self, script: Path) -> list[str]:
        """What starts a script of this job."""
        if self.ranks is None:
            return [sys.executable, str(script)]
        start = "torch.distributed.run --standalone --nproc-per-node"
        return [sys.executable, "-m", *start.split(), str(self.ranks), str(script)]


TOO_FEW = "data_loading.loader_workers_too_few"
JOBS = (
    Job("vision_remote_pictures", TOO_FEW, "DataLoader(", "loader_workers", "loader_workers"),
    Job("vision_one_worker", TOO_FEW, "DataLoader(", "loader_workers", "loader_workers"),
    Job("text_tokenised_each_time", TOO_FEW, "DataLoader(", "loader_workers", "loader_workers"),
    Job(
        "tabular_worker_restart",
        "data_loading.worker_restart_per_epoch",
        "DataLoader(",
        "persistent_workers",
        "persistent_workers",
        redraws=True,
    ),
    Job(
        "text_anomaly_mode",
        "blind_spots.debug_left_on",
        "set_detect_anomaly",
        "anomaly_mode",
        "no_anomaly",
    ),
    Job(
        "vision_empty_cache",
        "memory.empty_cache_in_loop",
        "gc.collect()",
        "empty_cache",
        "no_empty_cache",
    ),
    Job(
        "text_optimizer_loop",
        "small_work.optimizer_launch_bound",
        "AdamW(",
        "optimizer_fused",
        "fused",
    ),
    Job(
        "tabular_checkpoint_each_step",
        "blind_spots.checkpoint_pause",
        "torch.save(",
        "checkpoint_every",
        "checkpoint_every",
    ),
    Job(
        "tabular_too_many_threads",
        "scheduling.threads_oversubscribed",
        "set_num_threads",
        "threads",
        "threads",
        observed=True,
    ),
    Job(
        "ddp_accumulate",
        "communication.sync_every_microstep",
        "loss.backward()",
        "no_sync",
        "no_sync",
        ranks=2,
    ),
)


def whyidle(folder: Path, *words: str, seconds: float = 300) -> subprocess.CompletedProcess[str]:
    """Run our command line in a folder; its output as text."""
    return subprocess.run(
        [sys.executable, "-m", "whyidle", *words],
        cwd=folder,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
