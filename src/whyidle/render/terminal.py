"""One screen of text: the headline, the time as a bar, what to change, and what was not judged.

The same text is drawn with and without colour; in a pipe nothing is lost but the colour, since
every part of the bar carries the mark of its line in the legend.
"""

from __future__ import annotations

from collections.abc import Iterable

from rich.text import Text

from whyidle.diagnosis import Device, Diagnosis, Finding, Remedy
from whyidle.render import outlook, phrases, sampled
from whyidle.render.colours import ink
from whyidle.render.lines import NARROWEST, WIDEST, Lines
from whyidle.render.numerals import count, duration, percent
from whyidle.render.plain import clean, elide, fitted, reads_as_code, shortened
from whyidle.render.slices import Slice, cells, finding_marks, slices

_DETAILED = 3
_PLANNED = 6
_OBSERVED = 4
_DEVICES = 4
_SAMPLED = 4
_WORTH_CHANGING = 0.001
_RECORDINGS = 4
_NOTES = 3
_BAR_GLYPHS = {"useful": "█", "other": "+", "unexplained": "░", "unrecorded": "·"}


def render(diagnosis: Diagnosis, *, width: int, color: bool) -> str:
    """The report as text of at most ``width`` columns; colour codes only when ``color``."""
    width = max(NARROWEST, min(width, WIDEST))
    page = Lines(width, color)
    _draw_head(page, diagnosis)
    if diagnosis.wall_s > 0:
        _draw_time(page, diagnosis)
    _draw_findings(page, diagnosis)
    _draw_plan(page, diagnosis)
    _draw_observations(page, diagnosis)
    _draw_devices(page, diagnosis)
    _draw_samples(page, diagnosis)
    _draw_recordings(page, diagnosis)
    _draw_remarks(page, diagnosis)
    return page.text()


def _draw_head(page: Lines, diagnosis: Diagnosis) -> None:
    name = f"whyidle {clean(diagnosis.whyidle)} · "
    files = elide(phrases.source_names(diagnosis), max(12, page.width - len(name)))
    page.line(name + files, style="dim")
    page.line(phrases.scope(diagnosis), style="dim")
    page.gap()
    said = phrases.sentences(diagnosis)
    text = Text(said[0], style="bold")
    text.append("".join(" " + sentence for sentence in said[1:]), style="not bold")
    page.line(text)


def _draw_time(page: Lines, diagnosis: Diagnosis) -> None:
    page.heading("Where the time went")
    parts = slices(diagnosis, causes=4)
    page.line(_bar(parts, page.width - 2), indent=1)
    for part in parts:
        page.line(_legend(part, page.width), indent=1)


def _bar(parts: list[Slice], width: int) -> Text:
    bar = Text(no_wrap=True)
    for part, filled in zip(parts, cells(parts, width), strict=True):
        glyph = _BAR_GLYPHS.get(part.part, part.mark)
        style = _ink_style(part) if part.part == "cause" else part.colour
        bar.append(glyph * filled, style=style)
    return bar


def _ink_style(part: Slice) -> str:
    return f"{ink(part.colour)} on {part.colour}"


def _legend(part: Slice, width: int) -> Text:
    glyph = _BAR_GLYPHS.get(part.part, part.mark)
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append(glyph, style=_ink_style(part) if part.part == "cause" else part.colour)
    text.append(f" {percent(part.share):>6} ", style="bold")
    if width >= 60:
        text.append(f"{duration(part.seconds):>9}")
    room = max(8, width - 2 - text.cell_len - 2)
    reason = f"  ({part.reason_title})" if part.reason_title and width >= 76 else ""
    label = elide(part.label, room if len(part.label) + len(reason) > room else len(part.label))
    text.append(f"  {label}")
    if reason and len(label) + len(reason) <= room:
        text.append(reason, style="dim")
    return text


def _draw_findings(page: Lines, diagnosis: Diagnosis) -> None:
    if not diagnosis.findings:
        if diagnosis.wall_s > 0:
            page.heading("No cause was found")
        return
    page.heading("What to change, largest loss first")
    marked = _marked(diagnosis, window=diagnosis.wall_s > 0)
    if not marked:
        page.line("No cause was found in the recorded steps.", indent=1)
        return
    large = [pair for pair in marked if pair[1].share >= _WORTH_CHANGING] or marked[:1]
    for mark, finding in large[:_DETAILED]:
        _draw_title(page, mark, finding, diagnosis)
        _draw_details(page, finding, diagnosis)
    rest = [finding for _, finding in marked[len(large[:_DETAILED]) :]]
    if rest:
        page.line(_smaller(rest, 2 * (page.width - 3)), indent=3, style="dim")


def _marked(diagnosis: Diagnosis, *, window: bool) -> list[tuple[str, Finding]]:
    """The findings with their marks: those of recorded steps, or else those of the whole run."""
    found = zip(finding_marks(diagnosis), diagnosis.findings, strict=True)
    return [pair for pair in found if (pair[1].ledger == "window") == window]


def _smaller(rest: list[Finding], room: int) -> str:
    """The other causes by their whole ids, as many as fit."""
    line = f"and {len(rest)} smaller: "
    names = [clean(finding.cause) for finding in rest]
    shown = [name for at, name in enumerate(names) if len(line + ", ".join(names[: at + 1])) < room]
    left = len(names) - len(shown)
    return line + ", ".join(shown or names[:1]) + (f" and {left} more" if left and shown else "")


def _draw_title(page: Lines, mark: str, finding: Finding, diagnosis: Diagnosis) -> None:
    text = Text(elide(clean(finding.title), 80), style="bold")
    certain = finding.level + (", preview" if finding.status == "preview" else "")
    text.append(f"  {phrases.cost(finding, diagnosis)} · {certain}", style="not bold")
    page.item(Text(f"{mark:>2}", style="bold"), text, indent=0)


def _draw_details(page: Lines, finding: Finding, diagnosis: Diagnosis) -> None:
    room = max(12, page.width - 12)
    found = phrases.places(finding, diagnosis)
    if found:
        more = f" and {count(len(found) - 1, 'more place')}" if len(found) > 1 else ""
        page.detail("where", fitted(found[0][0], max(12, room - len(more))) + more)
    cost = outlook.job_cost(finding, diagnosis)
    if cost:
        page.detail("job", cost)
    if finding.remedies:
        _draw_remedy(page, finding.remedies[0], room, outlook.replay_error(diagnosis))


def _draw_remedy(page: Lines, remedy: Remedy, room: int, error: str | None) -> None:
    what, how = clean(remedy.what).rstrip(".:"), clean(remedy.how)
    room = max(320, 3 * room)
    if how and how != what:
        joint = ": " if reads_as_code(how) else ". "
        what = shortened(what + joint + how, room)
    page.detail("do first", shortened(what, room))
    gain = outlook.gain(remedy)
    if gain:
        page.detail("gain", f"{gain} · {error}" if error else gain)
    warning = phrases.caution(remedy)
    if warning:
        page.detail("careful", shortened(warning, room), style="yellow")


def _draw_plan(page: Lines, diagnosis: Diagnosis) -> None:
    said, replay = outlook.plan(diagnosis), outlook.replay(diagnosis)
    if diagnosis.plan is not None and said:
        page.heading(f"{outlook.plan_title(diagnosis)}: {said}")
        steps = [clean(step.what).rstrip(".") for step in diagnosis.plan.remedies]
        told = "; ".join(f"{i} {step}" for i, step in enumerate(steps[:_PLANNED], 1))
        left = len(steps) - _PLANNED
        more = f"; and {count(left, 'more change')}" if left > 0 else ""
        page.line(elide(told, 4 * page.width) + more, indent=1)
    if replay:
        if not said:
            page.gap()
        page.line(replay, indent=1 if said else 0, style="dim")
    why_none = outlook.no_gain(diagnosis)
    if why_none:
        if not said and not replay:
            page.gap()
        page.line(why_none, style="dim")


def _draw_observations(page: Lines, diagnosis: Diagnosis) -> None:
    if not diagnosis.observations:
        return
    page.heading(f"{outlook.signs_title(diagnosis)}; what it costs is not known")
    for found in diagnosis.observations[:_OBSERVED]:
        text = Text(elide(clean(found.title), 80), style="bold")
        text.append(f"  {outlook.certainty(found)}", style="not bold")
        page.item("-", text, indent=1)
        page.line(shortened(clean(found.what), max(320, 3 * page.width)), indent=3)
        where = outlook.spots(found, 2)
        if where:
            page.detail("where", elide(where, 2 * page.width))
        if found.remedies:
            _draw_remedy(page, found.remedies[0], max(12, page.width - 12), None)
    left = len(diagnosis.observations) - _OBSERVED
    if left > 0:
        page.line(f"and {left} more: see --format markdown or html", indent=3, style="dim")


def _draw_devices(page: Lines, diagnosis: Diagnosis) -> None:
    said = outlook.crowd(diagnosis)
    if said is None:
        return
    page.heading("Each device" if len(diagnosis.devices) <= _DEVICES else "The devices")
    page.line(said)
    shown = outlook.worst(diagnosis, _DEVICES)
    if len(shown) == len(diagnosis.devices):
        shown = diagnosis.devices
    wide = page.width >= 60
    rows = [_device_row(device, wide=wide) for device in shown]
    page.table(["", "useful", "lost", *(["unexplained", "step"] if wide else [])], rows)
    left = len(diagnosis.devices) - len(shown)
    if left > 0:
        page.line(f"and {left:,} that lost less: see --format json", indent=1, style="dim")


def _device_row(device: Device, *, wide: bool) -> list[Text | str]:
    wall = device.wall_s
    parts = (device.useful_s, device.lost_s, *((device.unexplained_s,) if wide else ()))
    step = [duration(device.step_s) if device.step_s is not None else ""] if wide else []
    shares = [percent(part / wall if wall > 0 else 0.0) for part in parts]
    return [phrases.device_name(device.rank, device.device), *shares, *step]


def _draw_samples(page: Lines, diagnosis: Diagnosis) -> None:
    """The sampled GPUs that lost most, each with how busy it was over time."""
    job = sampled.drawn(diagnosis)
    if job is None:
        return
    page.heading(f"The whole run: {sampled.scope(job)}")
    if diagnosis.devices:
        page.line(sampled.sentence(job))
    shown = sampled.worst(job, _SAMPLED)
    room = page.width - 60 if page.width >= 76 else 0
    rows = [
        [sampled.name(d), *sampled.shares(d), *([sampled.strip(d, room)] if room else [])]
        for d in shown
    ]
    page.table(["", "busy", "lost", "unknown", *(["over time"] if room else [])], rows)
    left = len(job.devices) - len(shown)
    if left > 0:
        page.line(f"and {left:,} that lost less: see --format json", indent=1, style="dim")
    page.line(sampled.meaning(job), indent=1, style="dim")
    if diagnosis.wall_s > 0:
        _draw_run(page, diagnosis)


def _draw_run(page: Lines, diagnosis: Diagnosis) -> None:
    """What the whole run lost, beside the recorded steps; what to change only where that is new."""
    marked = _marked(diagnosis, window=False)
    known = {f.cause for _, f in _marked(diagnosis, window=True)[:_DETAILED]}
    large = [pair for pair in marked if pair[1].share >= _WORTH_CHANGING]
    for mark, finding in large[:_DETAILED]:
        _draw_title(page, mark, finding, diagnosis)
        if finding.cause not in known:
            _draw_details(page, finding, diagnosis)
    rest = [finding for _, finding in marked if finding not in [f for _, f in large[:_DETAILED]]]
    if rest:
        page.line(_smaller(rest, 2 * (page.width - 3)), indent=3, style="dim")


def _draw_recordings(page: Lines, diagnosis: Diagnosis) -> None:
    groups = phrases.recordings(diagnosis)
    if not groups:
        return
    causes = count(len({entry.cause for entry in diagnosis.not_judged}), "cause")
    page.heading(f"Not judged: {causes}. What to record")
    for group in groups[:_RECORDINGS]:
        text = Text(phrases.lacking(group, 160))
        text.append(f" ({count(len(group.causes), 'cause')})", style="dim")
        text.append(f": {elide(clean(group.record_with), 200)}")
        page.item("-", text, indent=1)
    if len(groups) > _RECORDINGS:
        more = count(len(groups) - _RECORDINGS, "more recording")
        page.item("-", f"{more}: see --format markdown or html", indent=1)


def _draw_remarks(page: Lines, diagnosis: Diagnosis) -> None:
    notes = list(_notes(diagnosis))
    if notes:
        page.heading("Notes")
        for note in notes[:_NOTES]:
            page.item("-", f"{shortened(note, max(200, 2 * page.width))}", indent=1)
        if len(notes) > _NOTES:
            page.item("-", f"and {len(notes) - _NOTES} more: see --format json", indent=1)
    if diagnosis.crashed:
        page.heading("Causes that failed (not your fault; please report them to their authors)")
        for entry in diagnosis.crashed[:_NOTES]:
            page.item("-", f"{elide(phrases.crash(entry), 2 * page.width)}", indent=1, style="red")
        if len(diagnosis.crashed) > _NOTES:
            page.item("-", f"and {len(diagnosis.crashed) - _NOTES} more", indent=1)
    if diagnosis.findings:
        page.gap()
        cause = clean(diagnosis.findings[0].cause)
        page.line(f"More on a cause: whyidle explain {elide(cause, 70)}", style="dim")


def _notes(diagnosis: Diagnosis) -> Iterable[str]:
    yield from (clean(note) for note in diagnosis.notes)
    for source in diagnosis.sources:
        yield from (clean(note) for note in source.notes)
