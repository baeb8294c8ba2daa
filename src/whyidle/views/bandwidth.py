"""Bus bandwidth of collectives, and what the links between GPUs could carry.

Bus bandwidth is what nccl-tests prints: bytes of the full buffer by time, times a factor that makes
it comparable to the speed of one link whatever the number of ranks: 2 (n - 1) / n for all-reduce,
(n - 1) / n for all-gather, reduce-scatter and all-to-all, 1 for broadcast, reduce and pairs
(NVIDIA/nccl-tests, doc/PERFORMANCE.md).

Ceilings are bytes per second in one direction: of NVLink as the vendor states it for all links of
one GPU (V100 150, A100 300, H100 and H200 450, B200 900 GB/s), of PCIe as NCCL itself plans with
(generation 3: 12, 4: 24, 5: 48 GB/s; NVIDIA/nccl, src/graph/topo.cc). Large messages on a healthy
machine reach 80 % and more.
"""

from __future__ import annotations

import re
from collections import Counter

import numpy as np
import numpy.typing as npt
import polars as pl

from whyidle.model import Facts

Floats = npt.NDArray[np.float64]
TWICE = ("all-reduce",)
PARTLY = ("all-gather", "reduce-scatter", "all-to-all")
LARGE_BYTES = 4 * 2**20
"""Smaller messages never reach the bandwidth of a link."""

HEALTHY, POOR = 0.8, 0.25
"""Shares of the ceiling that a healthy link reaches, and below which it is suspicious."""

_CEILINGS = tuple(
    (re.compile(pattern), gigabytes * 1e9, link)
    for pattern, gigabytes, link in (
        (r"V100-SXM|V100.*NVLink", 150, "NVLink 2"),
        (r"A100-SXM|A800-SXM|PG509", 300, "NVLink 3"),
        (r"(H100|H200|H800|H20)(?!.*PCIe).*", 450, "NVLink 4"),
        (r"(B100|B200|GB200|B300)", 900, "NVLink 5"),
        (r"V100-PCIE|Tesla T4|RTX 20|TITAN", 12, "PCIe 3"),
        (r"A100-PCI|A40|A30|A10|L40|L4\b|RTX 30|RTX 40|RTX A", 24, "PCIe 4"),
        (r"H100.*PCIe|RTX 50|RTX PRO", 48, "PCIe 5"),
    )
)


def ceiling(name: str | None) -> tuple[float, str] | None:
    """Bytes per second that one GPU of this name can send to its neighbours, and over what."""
    for pattern, speed, link in _CEILINGS if name else ():
        if pattern.search(name or ""):
            return speed, link
    return None


def bus_bandwidth(entries: pl.DataFrame, members: npt.NDArray[np.int64], took_ns: Floats) -> Floats:
    """Bytes per second of each entry by the convention above; NaN where bytes are not known."""
    kind = entries["collective"].to_numpy()
    n = np.maximum(members, 1).astype(np.float64)
    factor = np.where(np.isin(kind, TWICE), 2 * (n - 1) / n, 1.0)
    factor = np.where(np.isin(kind, PARTLY), (n - 1) / n, factor)
    size = entries["bytes"].cast(pl.Float64).to_numpy()
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.where(took_ns > 0, size * factor / took_ns * 1e9, np.nan))


def ceilings(windows: pl.DataFrame, facts: Facts) -> tuple[Floats, list[str]]:
    """Per window the ceiling of its GPU's link (NaN: not known), and the link's name."""
    found = [ceiling(facts.device(r, d).name) for r, d in windows.select("rank", "device").rows()]
    return np.array([f[0] if f else np.nan for f in found]), [f[1] if f else "" for f in found]


def listed_gpus(facts: Facts) -> Counter[int | None]:
    """GPUs listed for each rank's machine; groups of no more members may lie in one machine."""
    return Counter(owner for owner, _ in facts.devices)
