"""The real traces by what they hold, and the product's answer on each, asked once."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.evidence_dir import WHY_ABSENT, traces

if TYPE_CHECKING:
    from whyidle.diagnosis import Device, Diagnosis

BROKEN = (
    "derived__empty.json",
    "derived__no_events.json",
    "derived__truncated_gzip.pt.trace.json.gz",
    "hta__execution_trace__benchmark_simple_add_et.json.gz",
    "hta__memory_analysis__memory_timeline.raw.gz",
    "lens__tracediff_test__cpu_op_map.json",
    "lens__tracediff_test__cpu_op_map_trace1.json",
    "lens__tracediff_test__cpu_op_map_trace2.json",
)
"""Files that are no trace, or a trace that holds nothing."""

HOST_ONLY = (
    "hta__cpu_only__rank-34.Jul_15_10_52_41.1074.pt.trace.json.gz",
    "hta__distributed_info_unavailable__distributed_info_not_found.json.gz",
    "hta__rank_non_gpu__rank_non_gpu.json.gz",
)
"""Traces with host events and one marked step, and no device events."""

NO_CATEGORY = "aiu__sample_flex_3062_job_4.json"
"""Begin/end events without a category: neither framework operators nor device work."""


def with_device_events() -> list[str]:
    """Names of every trace that should hold device events; empty where there is no evidence."""
    folder = traces()
    if folder is None:
        return []
    others = {*BROKEN, *HOST_ONLY, NO_CATEGORY}
    files = [p.name for p in folder.iterdir() if p.suffix in (".json", ".gz")]
    return sorted(name for name in files if name not in others)


def path_of(name: str) -> Path:
    """The trace of this name; skips the calling test where it is absent."""
    folder = traces()
    if folder is None:
        pytest.skip(WHY_ABSENT)
    if not (folder / name).is_file():
        pytest.skip(f"{name} is not among the real evidence here")
    return folder / name


@cache
def diagnosis_of(name: str) -> Diagnosis:
    """What the product says of one trace by itself."""
    import whyidle

    return whyidle.diagnose(whyidle.read(path_of(name)))


@cache
def device_of(name: str) -> Device:
    """The only device of a trace."""
    (device,) = diagnosis_of(name).devices
    return device
