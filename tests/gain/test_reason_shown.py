"""Where nothing can be predicted, every form of the report says why."""

from __future__ import annotations

from html import unescape

import pytest

from tests.gain.test_effects import loading
from whyidle import diagnose
from whyidle.diagnosis import Diagnosis
from whyidle.gain.predict import NO_STEPS
from whyidle.render import html, markdown, terminal
from whyidle.stories import Story


def unmarked() -> Diagnosis:
    """A device that waits for its loader, in a run without step marks."""
    story = Story()
    for at in (0, 3000, 6000):
        story.annotate("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at, at + 2000)
        story.op("aten::mm", at + 2000, at + 2010)
        story.launch("gemm", (at + 2002, at + 2008), (at + 2010, at + 3000))
    return diagnose(story.evidence())


def screen(said: Diagnosis) -> str:
    """The screen as one line."""
    return " ".join(terminal.render(said, width=100, color=False).split())


RENDERED = {"terminal": screen, "markdown": markdown.render, "html": html.render}


@pytest.mark.parametrize("form", RENDERED)
def test_the_reason_is_shown_where_there_is_no_gain(form: str) -> None:
    assert NO_STEPS in unescape(RENDERED[form](unmarked()))


@pytest.mark.parametrize("form", RENDERED)
def test_no_reason_is_shown_where_there_is_one(form: str) -> None:
    assert "No gain is predicted" not in unescape(RENDERED[form](diagnose(loading(4000))))


@pytest.mark.parametrize("form", RENDERED)
def test_a_run_in_which_nothing_was_lost_needs_no_reason(form: str) -> None:
    story = Story().launch("gemm", (0, 5), (0, 9000)).op("aten::mm", 0, 9000)
    assert "No gain is predicted" not in unescape(RENDERED[form](diagnose(story.evidence())))


def test_json_holds_the_reason_and_reads_back() -> None:
    said = unmarked()
    again = Diagnosis.from_json(said.to_json())
    assert again == said
    assert again.no_gain == NO_STEPS
