"""A run without a device is blamed by its stepping thread, and nothing breaks."""

from __future__ import annotations

import polars as pl
import pytest

from whyidle import diagnose
from whyidle.stories import Story
from whyidle.views import Views
from whyidle.views.host import is_user_frame


def test_blame_on_a_run_without_device_work_is_told_without_launches() -> None:
    assert _blamed(collections=1) == {"collector": 600}


def test_garbage_collected_in_half_of_the_steps_is_memory_tidied_up_in_the_loop() -> None:
    assert _blamed(collections=2) == {"empty_cache": 2 * 600}
    assert _blamed(collections=4) == {"empty_cache": 4 * 600}


def _blamed(collections: int) -> dict[str, int]:
    """Microseconds by activity of four steps, of which the first ones collect garbage for 600."""
    story = Story()
    for number in range(4):
        begin = number * 1000
        story.step(number, begin, begin + 1000)
        if number < collections:
            story.frame("<built-in function collect>", begin, begin + 600)
        story.op("aten::mm", begin + 600 * (number < collections), begin + 1000)
    evidence = story.evidence()
    assert diagnose(evidence).crashed == []
    blame = Views(evidence).blame
    found: dict[str, int] = {}
    for activity, start_ns, end_ns in blame.select("activity", "start_ns", "end_ns").iter_rows():
        found[activity] = found.get(activity, 0) + (end_ns - start_ns) // 1000
    return found


def test_tracebacks_kept_in_forward_are_of_anomaly_mode() -> None:
    story = Story().step(0, 0, 1000)
    story.frame("train.py(5): step", 0, 1000)
    story.op("aten::gru_cell", 100, 600)
    story.frame("torch/fx/traceback.py(497): format_stack", 150, 550)
    story.frame("traceback.py(217): extract_stack", 200, 500)
    blame = Views(story.evidence()).blame.filter(pl.col("activity") == "anomaly")
    assert (blame["end_ns"] - blame["start_ns"]).sum() == 400_000


@pytest.mark.parametrize(
    ("name", "users"),
    [
        ("train.py(5): step", True),
        ("src/json_tools/load.py(5): read", True),
        ("project/copyreg.py(1): f", True),
        ("copyreg.py(113): __reduce_ex__", False),
        ("re/__init__.py(208): compile", False),
        ("json/encoder.py(10): encode", False),
        ("logging/__init__.py(1720): getEffectiveLevel", False),
        ("socket.py(220): __init__", False),
        ("/usr/lib/python3.11/traceback.py(3): f", False),
    ],
)
def test_frames_of_the_standard_library_are_not_the_users(name: str, users: bool) -> None:
    assert is_user_frame(name) is users


def test_time_in_the_hook_of_whyidle_run_is_the_recordings_own() -> None:
    story = Story().step(0, 0, 1000)
    story.frame("train.py(5): step", 0, 1000)
    story.op("aten::mm", 0, 600)
    story.frame("record/hook/_whyidle_hook/steps.py(70): _stepped", 700, 900)
    blame = Views(story.evidence()).blame.filter(pl.col("activity") == "profiler")
    assert (blame["end_ns"] - blame["start_ns"]).sum() == 200_000
