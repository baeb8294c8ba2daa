"""What data sheets promise of GPUs: arithmetic per second and memory bandwidth."""

from __future__ import annotations

import re
from dataclasses import dataclass

from whyidle.errors import UsageError

HELP = "say how busy this GPU, such as H200, could at most be behind the job's data loader"
"""What the option ``--gpu`` does."""


@dataclass(frozen=True)
class Peak:
    """One GPU. FLOP/s count a multiply-add as two, dense; bandwidth is in bytes per second.

    ``single`` is float32 without tensor cores, as PyTorch multiplies unless told otherwise;
    ``half`` is float16 or bfloat16 on tensor or matrix cores.
    """

    name: str
    single: float
    half: float
    bandwidth: float


_TABLE = (  # TFLOP/s float32, TFLOP/s float16, GB/s; the vendors' data sheets, boost clock
    ("B200", 75, 2250, 8000),
    ("H200", 67, 989, 4800),
    ("H100", 67, 989, 3350),
    ("H100 PCIe", 51, 756, 2000),
    ("A100", 19.5, 312, 2039),
    ("A100 40GB", 19.5, 312, 1555),
    ("V100", 15.7, 125, 900),
    ("L40S", 91.6, 362, 864),
    ("L4", 30.3, 121, 300),
    ("A10", 31.2, 125, 600),
    ("T4", 8.1, 65, 320),
    ("RTX 4090", 82.6, 165, 1008),
    ("RTX 3090", 35.6, 71, 936),
    ("MI300X", 163, 1307, 5300),
    ("MI250X", 47.9, 383, 3200),
)

PEAKS = {
    name: Peak(name, single * 1e12, half * 1e12, bandwidth * 1e9)
    for name, single, half, bandwidth in _TABLE
}
"""Name -> GPU; one without a further word is the SXM form, and the A100 that of 80 GB."""


def named(name: str) -> Peak:
    """The GPU that the user names, however it is spelt; UsageError lists all."""
    by_key = {_key(known): peak for known, peak in PEAKS.items()}
    found = by_key.get(_key(name))
    if found is None:
        raise UsageError(f"--gpu {name}: not a GPU known here.\nKnown are {', '.join(PEAKS)}.")
    return found


def _key(name: str) -> str:
    return re.sub(r"[^a-z0-9]|nvidia|geforce|amd|instinct|sxm\d?", "", name.lower())
