"""A run without a device is blamed by its stepping thread, and nothing breaks."""

from __future__ import annotations

from whyidle import diagnose
from whyidle.stories import Story
from whyidle.views import Views


def test_blame_on_a_run_without_device_work_is_told_without_launches() -> None:
    story = Story()
    for number in range(4):
        begin = number * 1000
        story.step(number, begin, begin + 1000)
        story.frame("<built-in function collect>", begin, begin + 600)
        story.op("aten::mm", begin + 600, begin + 1000)
    evidence = story.evidence()
    views = Views(evidence)
    blamed = views.blame.filter(views.blame["activity"] == "collector")
    assert (blamed["end_ns"] - blamed["start_ns"]).sum() == 4 * 600_000
    assert diagnose(evidence).crashed == []
