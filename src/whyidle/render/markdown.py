"""GitHub-flavoured Markdown for a pull-request comment or a CI job summary."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from whyidle.diagnosis import Device, Diagnosis, Finding, Remedy
from whyidle.render import outlook, phrases, sampled
from whyidle.render.numerals import count, duration, percent
from whyidle.render.plain import clean, clean_block, elide, reads_as_code
from whyidle.render.slices import cells, finding_marks, slices

_BAR_CELLS = 40
_PLACES = 3
_ROWS = 20
_DETAILED = 8
_GLYPHS = {"useful": "█", "other": "+", "unexplained": "░", "unrecorded": "·"}
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#+!|~$])")


def render(diagnosis: Diagnosis) -> str:
    """The report as Markdown; ends with a line break."""
    blocks = [
        f"### whyidle: {text(diagnosis_title(diagnosis))}",
        f"**{text(phrases.sentences(diagnosis)[0])}** "
        + text(" ".join(phrases.sentences(diagnosis)[1:])),
        text(phrases.scope(diagnosis)),
    ]
    if diagnosis.wall_s > 0:
        blocks.append(_time_table(diagnosis))
    if diagnosis.findings:
        blocks += ["#### What to change", _finding_table(diagnosis), _details(diagnosis)]
    blocks += [_plan(diagnosis), _observations(diagnosis), _devices(diagnosis)]
    blocks.append(_samples(diagnosis))
    blocks += _remarks(diagnosis)
    return "\n\n".join(block.strip() for block in blocks if block.strip()) + "\n"


def diagnosis_title(diagnosis: Diagnosis) -> str:
    """What was read, short enough for a heading."""
    return elide(phrases.source_names(diagnosis), 80)


def text(raw: str) -> str:
    """Plain text in which nothing is markup and nobody is mentioned."""
    escaped = _SPECIAL.sub(r"\\\1", clean(raw).replace("&", "&amp;"))
    return escaped.replace("@", "@&#8203;").replace("://", ":&#8203;//")


def code(raw: str, *, cell: bool = False) -> str:
    """A code span; inside a table ``cell`` its bars are escaped. Long names lose their middle."""
    inside = elide(clean(raw), 200)
    if cell:
        inside = inside.replace("|", "\\|")
    if not inside:
        return ""
    longest = max((len(run) for run in re.findall(r"`+", inside)), default=0)
    fence = "`" * (longest + 1)
    edge = " " if inside[0] == "`" or inside[-1] == "`" else ""
    return f"{fence}{edge}{inside}{edge}{fence}"


def block(raw: str, language: str = "") -> str:
    """A fenced block that its content cannot leave."""
    inside = clean_block(raw)
    longest = max((len(run) for run in re.findall(r"`+", inside)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{inside}\n{fence}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]], right: set[int]) -> str:
    """A table of finished cells; columns in ``right`` are set to the right."""
    rule = ["---:" if i in right else "---" for i in range(len(head))]
    lines = [head, rule, *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def folded(summary: str, body: str) -> str:
    """A part that opens on demand; both are finished Markdown or HTML."""
    return f"<details><summary>{summary}</summary>\n\n{body}\n\n</details>"


def _time_table(diagnosis: Diagnosis) -> str:
    parts = slices(diagnosis, causes=6)
    bar = "".join(
        _GLYPHS.get(part.part, part.mark) * filled
        for part, filled in zip(parts, cells(parts, _BAR_CELLS), strict=True)
    )
    rows = [
        (
            f"`{_GLYPHS.get(part.part, part.mark)}`",
            text(elide(part.label, 120)) + (f" ({part.reason_title})" if part.reason_title else ""),
            percent(part.share),
            duration(part.seconds),
        )
        for part in parts
    ]
    shown = table(("", "Where the time went", "Share", "Time"), rows, {2, 3})
    return f"`{bar}`\n\n{shown}"


def _finding_table(diagnosis: Diagnosis) -> str:
    rows = []
    marked = zip(finding_marks(diagnosis), diagnosis.findings, strict=True)
    for mark, finding in list(marked)[:_ROWS]:
        each = phrases.per_step(finding, diagnosis)
        found = phrases.places(finding, diagnosis)
        where = code(found[0][0], cell=True) if found else "not known"
        if len(found) > 1:
            where += f" and {len(found) - 1} more"
        share = percent(finding.share) + (" of the run" if finding.ledger == "job" else "")
        first = text(finding.remedies[0].what) if finding.remedies else ""
        rows.append(
            (
                mark,
                f"**{text(elide(clean(finding.title), 120))}**",
                share,
                duration(each) if each is not None else "",
                finding.level + (", preview" if finding.status == "preview" else ""),
                where,
                first,
            )
        )
    head = ("#", "Cause", "Lost", "Per step", "Certainty", "Where", "Do first")
    more = len(diagnosis.findings) - _ROWS
    rest = f"\n\nand {more} smaller, in the JSON report" if more > 0 else ""
    return table(head, rows, {0, 2, 3}) + rest


def _details(diagnosis: Diagnosis) -> str:
    marked = zip(finding_marks(diagnosis), diagnosis.findings, strict=True)
    parts = [
        _finding_details(mark, finding, diagnosis)
        for mark, finding in list(marked)[:_DETAILED]
        if finding.remedies or finding.evidence or len(finding.where) > 1
    ]
    return folded("How to change it, and the evidence", "\n\n".join(parts)) if parts else ""


def _finding_details(mark: str, finding: Finding, diagnosis: Diagnosis) -> str:
    lines = [f"**{mark}. {text(elide(clean(finding.title), 120))}** ({code(finding.cause)})"]
    for name, lost_s in phrases.places(finding, diagnosis)[:_PLACES]:
        lines.append(f"- where: {code(name)}, {duration(lost_s)}")
    for row in finding.evidence[:_PLACES]:
        at = "" if row.row is None else f", event {row.row:,}"
        lines.append(f"- evidence: {text(row.what)} ({code(row.source)}{at})")
    cost = outlook.job_cost(finding, diagnosis)
    if cost:
        lines.append(f"- {cost}")
    body = "\n".join([lines[0], "", *lines[1:]])
    error = outlook.replay_error(diagnosis)
    return "\n\n".join([body, *(_remedy(remedy, error) for remedy in finding.remedies)])


def _remedy(remedy: Remedy, error: str | None) -> str:
    lines = [f"Change: {text(remedy.what)}"]
    gain = outlook.gain(remedy)
    if gain:
        lines.append(f"Predicted: {gain}" + (f" · {error}" if error else ""))
    warning = phrases.caution(remedy)
    if warning:
        lines.append(f"Careful: {text(warning)}")
    if clean(remedy.how):
        lines.append(block(remedy.how) if reads_as_code(remedy.how) else text(remedy.how))
    if remedy.patch:
        lines.append(block(remedy.patch, "diff"))
    if clean(remedy.prove):
        as_code = reads_as_code(remedy.prove)
        lines.append(f"To prove it: {code(remedy.prove) if as_code else text(remedy.prove)}")
    return "\n\n".join(lines)


def _plan(diagnosis: Diagnosis) -> str:
    """All changes together, and how well the replay behind the predictions meets the step."""
    said, replay = outlook.plan(diagnosis), outlook.replay(diagnosis)
    parts = []
    if diagnosis.plan is not None and said:
        steps = [
            f"{i}. {text(elide(clean(step.what), 300))}"
            for i, step in enumerate(diagnosis.plan.remedies, 1)
        ]
        parts += [f"**{outlook.plan_title(diagnosis)}:** {said}", "\n".join(steps[:_ROWS])]
    if replay:
        parts.append(f"<sub>{text(replay)} {text(outlook.HOW_PREDICTED)}</sub>")
    why_none = outlook.no_gain(diagnosis)
    if why_none:
        parts.append(text(why_none))
    return "\n\n".join(parts)


def _observations(diagnosis: Diagnosis) -> str:
    if not diagnosis.observations:
        return ""
    blocks = [f"#### {outlook.signs_title(diagnosis)}; what it costs is not known"]
    for found in diagnosis.observations[:_ROWS]:
        where = outlook.spots(found, _PLACES)
        lines = [
            f"**{text(elide(clean(found.title), 120))}** ({outlook.certainty(found)}, "
            f"{code(found.cause)}): {text(found.what)}"
        ]
        lines += [f"Where: {text(where)}"] if where else []
        lines += [_remedy(remedy, None) for remedy in found.remedies[:1]]
        blocks.append("\n\n".join(lines))
    left = len(diagnosis.observations) - _ROWS
    if left > 0:
        blocks.append(f"and {left} more, in the JSON report")
    return "\n\n".join(blocks)


def _devices(diagnosis: Diagnosis) -> str:
    said = outlook.crowd(diagnosis)
    if said is None:
        return ""
    few = len(diagnosis.devices) <= outlook.CROWD
    shown = diagnosis.devices if few else outlook.worst(diagnosis, outlook.CROWD)
    title = "Each device" if few else f"The {len(shown)} devices that lost most"
    return f"{text(said)}\n\n" + folded(title, _device_table(shown))


def _samples(diagnosis: Diagnosis) -> str:
    job = sampled.drawn(diagnosis)
    if job is None:
        return ""
    rows = [
        (
            text(sampled.name(d)),
            text(elide(clean(d.name), 60)) if d.name else "",
            *sampled.shares(d),
            sampled.strip(d, _BAR_CELLS),
        )
        for d in sampled.worst(job, outlook.CROWD)
    ]
    what = sampled.noun(job)
    head = (what[:1].upper() + what[1:], "Model", "Busy", "Lost", "Unknown", "Busy over time")
    said = f"{text(sampled.sentence(job))} {text(sampled.meaning(job))}"
    listed = table(head, rows, {2, 3, 4})
    return folded(f"The whole run: {sampled.scope(job)}", f"{said}\n\n{listed}")


def _device_table(devices: Sequence[Device]) -> str:
    rows = [
        (
            text(phrases.device_name(d.rank, d.device)),
            duration(d.wall_s),
            *(
                percent(part / d.wall_s if d.wall_s > 0 else 0.0)
                for part in (d.useful_s, d.lost_s, d.unexplained_s, d.unrecorded_s)
            ),
            duration(d.step_s) if d.step_s is not None else "",
        )
        for d in devices
    ]
    head = ("Device", "Wall", "Useful", "Lost", "Unexplained", "of it unrecorded", "Median step")
    return table(head, rows, {1, 2, 3, 4, 5, 6})


def _remarks(diagnosis: Diagnosis) -> list[str]:
    found = []
    groups = phrases.recordings(diagnosis)
    if groups:
        causes = count(len({entry.cause for entry in diagnosis.not_judged}), "cause")
        lines = []
        for group in groups:
            names = ", ".join(code(cause) for cause in group.causes)
            what = text("; ".join(group.missing)) or "a recording"
            lines.append(f"{what} (for {names}):\n\n{block(group.record_with)}")
        found.append(folded(f"Not judged: {causes}. To judge them, record", "\n\n".join(lines)))
    notes = [*diagnosis.notes, *(note for s in diagnosis.sources for note in s.notes)]
    if notes:
        found.append("Notes:\n\n" + _list(map(text, notes)))
    if diagnosis.crashed:
        lines = [text(phrases.crash(entry)) for entry in diagnosis.crashed]
        found.append("Failed causes (our fault, please report):\n\n" + _list(lines))
    return found


def _list(lines: Iterable[str]) -> str:
    found = list(lines)
    more = [f"and {len(found) - _ROWS} more"] if len(found) > _ROWS else []
    return "\n".join(f"- {line}" for line in [*found[:_ROWS], *more])
