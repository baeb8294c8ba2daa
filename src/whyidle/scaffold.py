"""``whyidle new-cause``: the file of a new cause, complete and passing its contract tests.

Nothing is overwritten, and nothing but the file and missing ``__init__.py`` files is written.
"""

from __future__ import annotations

import re
from pathlib import Path

from whyidle.diagnosis import REASON_TITLES, REASONS
from whyidle.errors import OutputError, UsageError

OURS = Path("src/whyidle/causes")
"""Where this project's own causes lie, seen from the top of its checkout."""

_ID = re.compile(r"(?P<folder>[a-z_]+)\.(?P<name>[a-z][a-z0-9_]*)")


def new_cause(cause: str, into: str | None) -> Path:
    """Write the file of ``cause`` (folder.name) and return its path.

    ``into`` is the package that holds folders of causes; None means this project's own, seen from
    the current folder. Raises UsageError when the name or the place will not do.
    """
    folder, name = _parts(cause)
    from whyidle.causes import all_causes

    if cause in all_causes():
        raise UsageError(f"{cause}: a cause of that name exists already.\nChoose another name.")
    package = _package(into)
    path = package / folder / f"{name}.py"
    if path.exists():
        raise UsageError(f"{path}: exists already.\nChoose another name; nothing was written.")
    try:
        path.parent.mkdir(exist_ok=True, parents=True)
        _mark_package(package, "Causes of lost GPU time, one file each.")
        _mark_package(path.parent, f"Reason {REASONS[folder]}: {REASON_TITLES[REASONS[folder]]}.")
        with path.open("x", encoding="utf-8") as file:
            file.write(text_of(folder, name))
    except OSError as error:
        raise OutputError(
            f"{path}: cannot be written ({error.strerror or error}).\nGive a place with --into."
        ) from error
    return path


def text_of(folder: str, name: str) -> str:
    """The whole file of a new cause."""
    title = name.replace("_", " ").capitalize()
    return _TEMPLATE.replace("@ID@", f"{folder}.{name}").replace("@TITLE@", title)


def next_steps(path: Path) -> str:
    """What to do with a file that was just written."""
    package = path.parent.parent
    lines = [f"wrote {path}", "", "Next:"]
    if package.resolve() == OURS.resolve():
        return "\n".join(
            [
                *lines,
                "  1. Fill it in: the page in its docstring, then claims, remedies and example.",
                f"  2. python -m pytest tests/contract -k {path.parent.name}.{path.stem}",
                "  3. python docs/generate.py, and a news fragment in changes/.",
            ]
        )
    return "\n".join(
        [
            *lines,
            "  1. Name the package in your pyproject.toml, once, and install it:",
            '       [project.entry-points."whyidle.causes"]',
            f'       {package.parent.name or "mine"} = "{package.parent.name}.{package.name}"',
            "  2. Fill the file in: the page in its docstring, then claims, remedies and example.",
            f"  3. whyidle explain {path.parent.name}.{path.stem} --demo",
        ]
    )


def _parts(cause: str) -> tuple[str, str]:
    found = _ID.fullmatch(cause)
    if not found or found["folder"] not in REASONS:
        raise UsageError(
            f"{cause!r} is no cause id: write folder.name, in small letters and underscores.\n"
            f"Folders: {', '.join(REASONS)}."
        )
    return found["folder"], found["name"]


def _package(into: str | None) -> Path:
    package = OURS if into is None else Path(into)
    if into is None and not package.is_dir():
        raise UsageError(
            f"There is no {OURS} here.\n"
            "Say where with --into: the package of causes, such as my_package/causes."
        )
    if not package.is_dir() and not package.parent.is_dir():
        raise UsageError(f"--into {into}: the folder {package.parent} does not exist.")
    return package


def _mark_package(folder: Path, about: str) -> None:
    marker = folder / "__init__.py"
    if not marker.exists():
        marker.write_text(f'"""{about}"""\n', encoding="utf-8")


_TEMPLATE = '''"""One sentence for a stranger: some kernels run at half the speed that they could.

Looks like: what the user sees, in the words they would use.

How we tell: the rule, with its numbers. This draft takes every kernel whose name holds ``SIGN`` and
calls half of its time lost.

Change: what to do about it, best first.

May be wrong: when this rule misjudges, and what that would look like.

Sources: where the facts come from: documentation, papers, measured runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from whyidle.diagnosis import Finding, Remedy
from whyidle.model import CLAIMS, frame
from whyidle.stories import Story

if TYPE_CHECKING:
    from whyidle.model import Evidence, Facts
    from whyidle.views import Views

TITLE = "@TITLE@"
STATUS = "preview"
NEEDS = ("device",)

SIGN = "@ID@"
"""What the names of the kernels hold; part of the draft."""
LOST = 0.5
"""The part of their time that is lost; part of the draft."""


def claims(views: Views) -> pl.DataFrame:
    """Half of every kernel whose name holds SIGN.

    For time in which the device is empty, claim through the blame view instead, so that each
    instant has one owner: ``return views.blamed("loader")``, or another of its activities.
    """
    mine = pl.col("name").cast(pl.String).str.contains(SIGN, literal=True)
    rows = views.activity.filter(mine).select(
        "rank",
        "device",
        "start_ns",
        "end_ns",
        "row",
        pl.lit(LOST).alias("weight"),
        pl.lit("suspected").alias("level"),
        pl.col("name").alias("op"),
    )
    return frame(CLAIMS, rows)


def remedies(finding: Finding, facts: Facts) -> list[Remedy]:
    """What to change, best first."""
    return [
        Remedy(
            what="What to do, in a few words",
            how="How: the call, the option, the value.",
            safe=False,
            why_safe="What may change besides the speed.",
            effect={"kind": "kernels_faster", "share_removed": LOST},
            prove="Record the same steps again: these kernels must take half as long.",
        )
    ]


def example() -> tuple[Evidence, float]:
    """Three steps of 10 ms without a pause; in each, 4 ms of kernels that could take 2 ms."""
    story = Story()
    story.launch("gemm", (-200, -190), (-100, 1000))
    for number in range(3):
        begin = number * 10_000
        story.step(number, begin, begin + 10_000)
        story.launch(SIGN, (begin + 100, begin + 110), (begin + 1000, begin + 5000))
        story.launch("gemm", (begin + 200, begin + 210), (begin + 5000, begin + 11_000))
    return story.evidence(), 3 * 4e-3 * LOST
'''
