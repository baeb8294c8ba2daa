"""Lines that a hook told of take the place of the first line of the function around them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import polars as pl

from whyidle import diagnose
from whyidle.diagnosis import Finding
from whyidle.model import MOMENTS, SITES, Evidence, frame
from whyidle.stories import Story

HOME = "/srv/project/train.py"
GARBAGE = "memory.empty_cache_in_loop"
WORKERS = "data_loading.loader_workers_too_few"


def collecting() -> Story:
    """Four steps in ``main``, which begins on line 3; each collects garbage for 600 us."""
    story = Story()
    story.frame("train.py(3): main", 0, 4000)
    for number in range(4):
        begin = number * 1000
        story.step(number, begin, begin + 1000)
        story.frame("<built-in function collect>", begin, begin + 600)
        story.op("aten::mm", begin + 600, begin + 1000)
    return story


def loading() -> Story:
    """Four steps in ``main``, each of which waits 600 us for the loader."""
    story = Story()
    story.frame("train.py(3): main", 0, 4000)
    for number in range(4):
        begin = number * 1000
        story.step(number, begin, begin + 1000)
        name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
        story.annotate(name, begin, begin + 600)
        story.op("aten::mm", begin + 600, begin + 1000)
    return story


def told(story: Story, cause: str, table: str, *rows: dict[str, Any]) -> Finding:
    """The finding of a cause when hooks told these rows as well."""
    evidence = story.evidence()
    schema = {"sites": SITES, "moments": MOMENTS}[table]
    known = frame(schema, [{"source": 0, "file": HOME, **row} for row in rows])
    more: Evidence = replace(evidence, tables={**evidence.tables, table: known})
    found = diagnose(more)
    assert not found.crashed
    return next(one for one in found.findings if one.cause == cause and one.ledger == "window")


def places(finding: Finding) -> list[tuple[str | None, int | None]]:
    return [(place.file, place.line) for place in finding.where]


def test_a_call_gets_its_own_line_in_the_profilers_spelling_of_the_file() -> None:
    assert places(told(collecting(), GARBAGE, "sites", {"what": "seed", "line": 1})) == [
        ("train.py", 3)
    ]
    found = told(collecting(), GARBAGE, "sites", {"what": "gc.collect", "line": 17})
    assert places(found) == [("train.py", 17)]


def test_a_pause_tells_the_line_of_its_call() -> None:
    pause = {"kind": "collector", "what": "gc.collect", "line": 17, "start_ns": 0, "end_ns": 1}
    assert places(told(collecting(), GARBAGE, "moments", pause)) == [("train.py", 17)]


def test_two_lines_that_could_be_meant_leave_the_functions_line() -> None:
    both = [{"what": "gc.collect", "line": line} for line in (17, 30)]
    assert places(told(collecting(), GARBAGE, "sites", *both)) == [("train.py", 3)]


def test_a_call_in_another_file_is_not_meant() -> None:
    other = {"what": "gc.collect", "line": 17, "file": "/srv/project/tidy.py"}
    assert places(told(collecting(), GARBAGE, "sites", other)) == [("train.py", 3)]


def test_a_cause_that_lies_where_the_loader_is_made_names_that_line() -> None:
    found = told(loading(), WORKERS, "sites", {"what": "loader", "line": 9})
    assert places(found) == [("train.py", 9)]
    elsewhere = {"what": "loader", "line": 9, "file": "/srv/project/data.py"}
    found = told(loading(), WORKERS, "sites", elsewhere)
    assert places(found) == [("/srv/project/data.py", 9)]


def test_of_two_loaders_the_line_of_the_one_that_steps_waited_for_is_named() -> None:
    rows: list[dict[str, Any]] = [
        {"what": what, "line": line, "detail": json.dumps({"loader": loader, "waited_ns": ns})}
        for loader, ns, made in ((0, 900, 11), (1, 20, 12))
        for what, line in (("loader_iterated", 50), ("loader_made", made))
    ]
    both = [{"what": "loader", "line": line} for line in (11, 12)]
    profiled = [{**row, "detail": json.dumps({"waited_ns": 20, "profiled_ns": 9})} for row in rows]
    assert places(told(loading(), WORKERS, "sites", *both, *rows[:2], profiled[3])) == [
        ("train.py", 12)
    ]
    assert places(told(loading(), WORKERS, "sites", *both)) == [("train.py", 3)]
    assert places(told(loading(), WORKERS, "sites", *both, *rows)) == [("train.py", 11)]


def test_lines_of_another_rank_say_nothing_of_this_one() -> None:
    other = {"what": "loader", "line": 9, "rank": 5}
    assert places(told(loading(), WORKERS, "sites", other)) == [("train.py", 3)]


def test_seconds_stay_as_they_are() -> None:
    without = told(loading(), WORKERS, "sites", {"what": "seed", "line": 1})
    found = told(loading(), WORKERS, "sites", {"what": "loader", "line": 9})
    assert found.lost_s == without.lost_s
    assert pl.Series([p.lost_s for p in found.where]).sum() == found.lost_s
