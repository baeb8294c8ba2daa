"""Markdown keeps its tables whole, pings nobody and lets no name become markup."""

from __future__ import annotations

import re

import pytest

from tests.render.cases import CASES, hostile, loader_bound, many_ranks, mostly_unrecorded
from whyidle.render import markdown

UNESCAPED_BAR = re.compile(r"(?<!\\)\|")


def prose(text: str) -> str:
    """The text outside fences and code spans, where markup would act."""
    text = re.sub(r"^(`{3,})[^\n]*\n.*?\n\1$", "", text, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"(?<!\\)(`+)(?!`)(.+?)(?<!`)\1(?!`)", "", text)


@pytest.mark.parametrize("name", CASES)
def test_every_row_of_a_table_has_as_many_cells_as_its_head(name: str) -> None:
    columns = 0
    for line in markdown.render(CASES[name]()).split("\n"):
        if not line.startswith("|"):
            columns = 0
            continue
        bars = len(UNESCAPED_BAR.findall(line))
        columns = columns or bars
        assert bars == columns, line


def test_no_name_becomes_markup_or_pings_a_person() -> None:
    said = prose(markdown.render(hostile()))
    tags = set(re.findall(r"(?<!\\)<[^>]*>", said))
    assert tags == {"<details>", "</details>", "<summary>", "</summary>"}
    assert "@somebody" not in said
    assert not re.search(r"(?<!\\)\[[^\]]*\]\(", said)


def test_a_code_span_survives_backticks_and_bars() -> None:
    assert markdown.code("plain") == "`plain`"
    assert markdown.code("a`b") == "``a`b``"
    assert markdown.code("`a") == "`` `a ``"
    assert markdown.code("a|b", cell=True) == "`a\\|b`"
    assert markdown.code("a|b") == "`a|b`"


def test_a_fence_is_longer_than_any_inside() -> None:
    assert markdown.block("````\nx").startswith("`````\n````")


def test_the_comment_leads_with_the_headline() -> None:
    text = markdown.render(loader_bound())
    assert text.split("\n")[2].startswith(
        "**The GPU did useful work for 47% of 1.17 s; 51% was lost.**"
    )
    assert "| 1 | **Too few loader workers** | 33.3% | 65.1 ms | seen |" in text


def test_unexplained_and_unrecorded_are_always_there() -> None:
    for text in (markdown.render(loader_bound()), markdown.render(mostly_unrecorded())):
        assert "unexplained" in text
        assert "unrecorded: likely work the recorder dropped" in text


def test_several_devices_get_a_row_each() -> None:
    text = markdown.render(many_ranks())
    assert len(re.findall(r"^\| rank \d, GPU 0 \|", text, flags=re.MULTILINE)) == 8


def test_a_comment_stays_below_the_limit_of_a_pull_request_comment() -> None:
    assert max(len(markdown.render(make())) for make in CASES.values()) < 65_536
