"""Whatever is done to a file of readings, it gives tables of their schema or one clear sentence."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

import pytest

from tests.readers.test_nvidia_smi import DMON, GPM, GPU, HEADER, SESSION, row, xml
from tests.readers.test_prometheus_and_dcgm import DCGMI, LABELS, answer, scrape
from tests.readers.test_rocm_smi import METRIC_CSV
from tests.readers.test_topology import SPACES, SYSTEM, TABS
from tests.readers.test_training_logs import AS_FLOAT, FIRST, RECORDED, event, record
from whyidle.errors import WhyidleError
from whyidle.model import SAMPLES
from whyidle.readers import read

SEEDS: list[bytes] = [
    (HEADER + row(0, 0, "10") + row(1, 1, "[N/A]")).encode(),
    DMON.encode(),
    SESSION.encode(),
    xml(GPU).encode(),
    DCGMI.encode(),
    scrape(f"DCGM_FI_DEV_GPU_UTIL{{{LABELS}}} 97 1700000000123").encode(),
    answer({"metric": {"__name__": "DCGM_FI_DEV_GPU_UTIL"}, "values": [[1.7e9, "5"]]}).encode(),
    TABS.encode(),
    SPACES.encode(),
    SYSTEM.encode(),
    METRIC_CSV.encode(),
    GPM.encode(),
    b'{"card0": {"GPU use (%)": "37", "sclk clock speed:": "(137Mhz)"}}',
    FIRST + record(event("loss", AS_FLOAT)) * 3,
    (RECORDED / "three_steps.wandb").read_bytes(),
]
PIECES = (
    b"\n", b",", b" ", b"\x00", b"[N/A]", b"1e999", b"-", b'"', b"99999999999999999999", b"\xff",
    b"#", b"<a>", b"{", b"nan", b"#SBATCH", b"GPU0", b"\x1b[4m",
)  # fmt: skip


def changed(data: bytes, rng: random.Random) -> bytes:
    """The bytes after a few random edits."""
    for _ in range(rng.choice([1, 2, 5, 20])):
        at = rng.randrange(len(data) + 1)
        how = rng.randrange(5)
        if how == 0:
            data = data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]
        elif how == 1:
            data = data[:at] + data[at + rng.choice([1, 3, 50]) :]
        elif how == 2:
            data = data[:at] + rng.choice(PIECES) + data[at:]
        elif how == 3:
            data = data[:at] + data[at : at + rng.choice([5, 80])] + data[at:]
        else:
            data = data[: max(at, 4)]
    return data


def outcome(data: bytes) -> str:
    """``read``, ``refused``, or what is wrong with what reading gave."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "readings.txt"
        path.write_bytes(data)
        try:
            samples = read([path]).table("samples")
        except WhyidleError as error:
            lines = str(error).splitlines()
            return "refused" if 1 <= len(lines) <= 3 else f"{len(lines)} lines: {error}"
    if dict(samples.schema) != SAMPLES:
        return f"another schema: {samples.schema}"
    mute = samples.filter(samples["value"].is_null() & samples["reason"].is_null())
    return f"unknown without a reason: {mute}" if mute.height else "read"


@pytest.mark.parametrize("seed", range(len(SEEDS)))
def test_a_few_broken_files_of_each_kind_are_read_or_refused(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(12):
        assert outcome(changed(SEEDS[seed], rng)) in {"read", "refused"}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_many_broken_files_are_read_or_refused(seed: int) -> None:
    rng = random.Random(1000 + seed)
    for _ in range(60):
        assert outcome(changed(rng.choice(SEEDS), rng)) in {"read", "refused"}
