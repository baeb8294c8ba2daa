"""The rest of the page: each device, what was not judged, notes, failures, sources, the words."""

from __future__ import annotations

from whyidle.diagnosis import Device, Diagnosis
from whyidle.render import outlook, phrases
from whyidle.render.numerals import count, duration, percent
from whyidle.render.page.markup import bar, block, code, esc, folded, table
from whyidle.render.slices import Slice, slices

_NAMED = 8
_SOURCES = 64


def device_parts(diagnosis: Diagnosis) -> list[tuple[str, Device, list[Slice]]]:
    """(name of the bar, device, its parts) of each device drawn; of many, those that lost most."""
    judged = diagnosis.devices
    if len(judged) < 2:
        return []
    drawn = judged if len(judged) <= outlook.CROWD else outlook.worst(diagnosis, outlook.CROWD)
    return [
        (f"device{i}", device, slices(diagnosis, causes=_NAMED, device=device))
        for i, device in enumerate(drawn)
    ]


def draw_devices(diagnosis: Diagnosis) -> str:
    """A row per device with its own bar; empty for a single device.

    Of many devices those that lost most have a bar, and all stand in a plain table below.
    """
    found = device_parts(diagnosis)
    if not found:
        return ""
    rows = [
        (
            esc(phrases.device_name(device.rank, device.device)),
            bar(parts, name, phrases.device_name(device.rank, device.device)),
            *_shares(device),
            duration(device.wall_s),
            _step(device),
        )
        for name, device, parts in found
    ]
    head = ("Device", "Its time", *_HEAD, "Wall", "Median step")
    many = len(diagnosis.devices) > len(found)
    heading = f"The {len(found)} devices that lost most" if many else "Each device"
    listed = table(heading, head, rows, numbers=range(2, 8), hide_caption=not many)
    said = f"<p>{esc(outlook.crowd(diagnosis) or '')}</p>"
    title = f'<h2 id="devices-title">{"The devices" if many else "Each device"}</h2>'
    rest = _draw_all(diagnosis) if many else ""
    return (
        f'<section class="devices" aria-labelledby="devices-title">{title}{said}{listed}{rest}'
        "</section>"
    )


_HEAD = ("Useful", "Lost", "Unexplained", "of it unrecorded")
_MOST_DEVICES = 2000


def _draw_all(diagnosis: Diagnosis) -> str:
    shown = diagnosis.devices[:_MOST_DEVICES]
    rows = [(esc(phrases.device_name(d.rank, d.device)), *_shares(d), _step(d)) for d in shown]
    caption = f"{len(shown):,} of {len(diagnosis.devices):,} devices"
    listed = table(caption, ("Device", *_HEAD, "Median step"), rows, numbers=range(1, 6))
    return folded("All devices", listed)


def _shares(device: Device) -> tuple[str, ...]:
    parts = (device.useful_s, device.lost_s, device.unexplained_s, device.unrecorded_s)
    return tuple(percent(p / device.wall_s if device.wall_s > 0 else 0.0) for p in parts)


def _step(device: Device) -> str:
    return "not known" if device.step_s is None else duration(device.step_s)


def draw_not_judged(diagnosis: Diagnosis) -> str:
    """What could not be judged, by the recording that would show it."""
    groups = phrases.recordings(diagnosis)
    if not groups:
        return ""
    causes = count(len({entry.cause for entry in diagnosis.not_judged}), "cause")
    inside = "".join(
        f"<li><h3>{esc('; '.join(group.missing)) or 'a recording'}</h3>{block(group.record_with)}"
        f'<p class="small">for {", ".join(code(cause) for cause in group.causes)}</p></li>'
        for group in groups
    )
    return (
        '<section aria-labelledby="blind-title"><h2 id="blind-title">Not judged</h2>'
        f"<p>{causes} could not be judged from what was recorded. To judge them, record:</p>"
        f'<ul class="recordings">{inside}</ul></section>'
    )


def draw_remarks(diagnosis: Diagnosis) -> str:
    """Notes and the causes that failed."""
    found = ""
    if diagnosis.notes:
        lines = "".join(f"<li>{esc(note)}</li>" for note in diagnosis.notes)
        title = '<h2 id="notes-title">Notes</h2>'
        found += f'<section aria-labelledby="notes-title">{title}<ul>{lines}</ul></section>'
    if diagnosis.crashed:
        lines = "".join(f"<li>{esc(phrases.crash(entry))}</li>" for entry in diagnosis.crashed)
        found += (
            '<section class="failed" aria-labelledby="failed-title">'
            '<h2 id="failed-title">Failed causes</h2>'
            f"<p>This is our fault. Please report it.</p><ul>{lines}</ul></section>"
        )
    return found


def draw_sources(diagnosis: Diagnosis) -> str:
    """What was read."""
    if not diagnosis.sources:
        return ""
    rows = [
        (
            code(source.path),
            esc(source.reader),
            "not known" if source.rank is None else str(source.rank),
            f"{source.events:,}",
            "<br>".join(esc(note) for note in source.notes),
        )
        for source in diagnosis.sources[:_SOURCES]
    ]
    head = ("File", "Reader", "Rank", "Events", "Notes")
    listed = table("What was read", head, rows, numbers=(2, 3), hide_caption=True)
    left = len(diagnosis.sources) - _SOURCES
    if left > 0:
        listed += f"<p>and {count(left, 'more file')}, in the JSON report</p>"
    title = '<h2 id="sources-title">What was read</h2>'
    return f'<section aria-labelledby="sources-title">{title}{listed}</section>'


def draw_words(diagnosis: Diagnosis) -> str:
    """What the words of this page mean."""
    means = phrases.meanings(diagnosis)
    parts = "".join(f"<dt>{name}</dt><dd>{esc(meaning)}</dd>" for name, meaning in means.items())
    levels = (text.partition(": ") for text in phrases.LEVELS.values())
    parts += "".join(f"<dt>{name}</dt><dd>{esc(meaning)}</dd>" for name, _, meaning in levels)
    return (
        '<section aria-labelledby="words-title"><h2 id="words-title">The words used here</h2>'
        f'<dl class="words">{parts}</dl></section>'
    )
