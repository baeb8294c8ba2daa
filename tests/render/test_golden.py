"""Reports as they look today, line by line. To accept a new look, run the tests once with
WHYIDLE_DRAW_GOLDEN=1 and read the difference before you commit it.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.render.cases import CASES
from whyidle.render import markdown, terminal

GOLDEN = Path(__file__).parents[1] / "golden" / "reports"
SCREENS = [(name, 100) for name in CASES] + [("loader_bound", 80), ("many_ranks", 40)]


def check(name: str, text: str) -> None:
    file = GOLDEN / name
    if os.environ.get("WHYIDLE_DRAW_GOLDEN"):
        GOLDEN.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8")


@pytest.mark.parametrize(("name", "width"), SCREENS)
def test_the_screen_looks_as_it_did(name: str, width: int) -> None:
    check(f"{name}.{width}.txt", terminal.render(CASES[name](), width=width, color=False))


@pytest.mark.parametrize(
    "name",
    [
        "loader_bound",
        "mostly_unrecorded",
        "many_ranks",
        "hostile",
        "sampled_only",
        "timed_run",
        "signs_only",
    ],
)
def test_the_comment_looks_as_it_did(name: str) -> None:
    check(f"{name}.md", markdown.render(CASES[name]()))
