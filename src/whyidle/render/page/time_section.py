"""The top of the page: the headline, four totals, and the bar with its legend."""

from __future__ import annotations

import re

from whyidle.diagnosis import Diagnosis
from whyidle.render import phrases
from whyidle.render.numerals import duration, percent
from whyidle.render.page.markup import bar, esc, swatch, table
from whyidle.render.plain import elide
from whyidle.render.slices import Slice, slices

MAIN_BAR = "whole"
"""The name under which the widths of the main bar are written."""

_NAMED = 8
_UNIT = re.compile(r"(?<=\d) (?=(?:s|ms|µs|ns|min|h)\b)")


def parts_of(diagnosis: Diagnosis) -> list[Slice]:
    """The parts that the main bar shows."""
    return slices(diagnosis, causes=_NAMED)


def draw_headline(diagnosis: Diagnosis) -> str:
    """The sentence to take home, as the page's heading, and what was judged."""
    first, *rest = phrases.sentences(diagnosis)
    lead = f'<p class="lead">{esc(" ".join(rest))}</p>' if rest else ""
    first = _UNIT.sub("\u00a0", first)
    scope = f'<p class="scope">{esc(phrases.scope(diagnosis))}</p>'
    return f"<h1>{esc(first)}</h1>{lead}{scope}"


def draw_totals(diagnosis: Diagnosis) -> str:
    """Useful, lost, unexplained and unrecorded, as four figures that sum to the wall time."""
    wall = diagnosis.wall_s
    if wall <= 0:
        return ""
    rest = max(0.0, diagnosis.unexplained_s - diagnosis.unrecorded_s)
    name = "Otherwise unexplained" if diagnosis.unrecorded_s > 0 else "Unexplained"
    tiles = (
        ("useful", "Useful", diagnosis.useful_s),
        ("lost", "Lost", diagnosis.lost_s),
        ("unexplained", name, rest),
        ("unrecorded", "Unrecorded", diagnosis.unrecorded_s),
    )
    means = phrases.meanings(diagnosis)
    inside = "".join(
        f'<div class="tile of-{key}"><dt title="{esc(means[key])}">{label}</dt>'
        f"<dd><b>{percent(value / wall)}</b> <span>{duration(value)}</span></dd></div>"
        for key, label, value in tiles
    )
    return f'<dl class="tiles">{inside}</dl>'


def draw_time(diagnosis: Diagnosis) -> str:
    """The section with the bar and its legend; empty when nothing was judged."""
    if diagnosis.wall_s <= 0:
        return ""
    parts = parts_of(diagnosis)
    return (
        '<section aria-labelledby="time-title"><h2 id="time-title">Where the time went</h2>'
        + bar(parts, MAIN_BAR, "Time by cause")
        + draw_legend(parts)
        + _draw_jump(diagnosis)
        + "</section>"
    )


def _draw_jump(diagnosis: Diagnosis) -> str:
    if diagnosis.timeline is None:
        return ""
    return '<p><a href="#timeline-title">See the worst step, moment by moment</a></p>'


def draw_legend(parts: list[Slice]) -> str:
    """The legend of a bar, which is also its table for those who cannot see it."""
    rows = [(_draw_name(part), percent(part.share), duration(part.seconds)) for part in parts]
    head = ("Part", "Share", "Time")
    return table("Time by part", head, rows, numbers=(1, 2), hide_caption=True)


def _draw_name(part: Slice) -> str:
    reason = f' <span class="reason">{esc(part.reason_title)}</span>' if part.reason else ""
    label = esc(elide(part.label, 120))
    return f'<span class="named">{swatch(part)}<span>{label}{reason}</span></span>'
