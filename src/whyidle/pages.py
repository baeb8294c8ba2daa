"""One page per cause, from the docstring and the example in the cause's own file.

``whyidle explain`` prints these pages and the documentation is generated from them, so a cause is
described in one place: its file.
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from whyidle.diagnosis import REASON_TITLES, REASONS, matches_cause

if TYPE_CHECKING:
    from whyidle.causes import Cause
    from whyidle.diagnosis import Diagnosis, Finding, Remedy


@dataclass(frozen=True)
class Page:
    """What is known of one cause; ``heads`` maps each head to its text."""

    cause: str
    title: str
    status: str
    reason: int
    reason_title: str
    summary: str
    heads: dict[str, str]
    needs: list[str]
    record_with: list[str]


def page_of(cause: Cause) -> Page:
    """The page of a cause."""
    from whyidle.views.needs import NEEDS

    reason = REASONS.get(cause.id.partition(".")[0], 7)
    needs = tuple(dict.fromkeys([*cause.needs, *cause.observes, *cause.job_needs]))
    return Page(
        cause=cause.id,
        title=cause.title,
        status=cause.status,
        reason=reason,
        reason_title=REASON_TITLES[reason],
        summary=cause.summary,
        heads={head: text[:1].upper() + text[1:] for head, text in cause.heads.items()},
        needs=[NEEDS[need].missing if need in NEEDS else f"table {need}" for need in needs],
        record_with=list(dict.fromkeys(NEEDS[n].record_with for n in needs if n in NEEDS)),
    )


def chosen(what: str | None) -> list[Cause]:
    """The cause called ``what``, all causes of the folder ``what``, or all when None.

    Raises UsageError, with near matches, when there is none.
    """
    from whyidle.causes import all_causes
    from whyidle.gate import check_known

    causes = all_causes()
    if what is None:
        return list(causes.values())
    check_known(what, causes, "explain")
    return [cause for cause in causes.values() if matches_cause(cause.id, what)]


def drawn(causes: list[Cause], format: str, *, width: int, listed: bool) -> str:
    """The pages of ``causes`` as json, markdown or terminal text; ``listed`` = one line each."""
    pages = [page_of(cause) for cause in causes]
    if format == "json":
        return as_json(pages)
    if format == "markdown":
        return "\n".join(as_markdown(page) for page in pages)
    if listed:
        return listing(pages, width=width)
    return "\n\n\n".join(as_text(page, width=width) for page in pages)


def demo(cause: Cause) -> tuple[Diagnosis, float | None]:
    """The diagnosis of the cause's own example, and the seconds planted in it, if any."""
    from whyidle.diagnose import diagnose

    if not cause.counts_seconds and cause.can_observe:
        return diagnose(cause.observed_example()[0]), None
    evidence, planted_s = cause.example() if cause.counts_seconds else cause.job_example()
    return diagnose(evidence), planted_s


def as_json(pages: list[Page]) -> str:
    """The pages as a JSON array of objects, one per cause."""
    return msgspec.json.format(msgspec.json.encode(pages), indent=1).decode()


def as_text(page: Page, *, width: int) -> str:
    """The page for a terminal, wrapped to ``width`` columns."""
    status = "" if page.status == "stable" else f" ({page.status})"
    lines = [
        f"{page.cause}{status}",
        f"{page.title} · reason {page.reason}: {page.reason_title}",
        "",
        *_wrapped(page.summary, width),
    ]
    for head, text in page.heads.items():
        lines += ["", head, *_wrapped(text, width, indent="  ")]
    lines += ["", "Needs in the evidence", *(f"  {need}" for need in page.needs)]
    lines += ["", f"`whyidle explain {page.cause} --demo` shows it on a small made-up run."]
    return "\n".join(lines)


def as_markdown(page: Page, example: tuple[Diagnosis, float | None] | None = None) -> str:
    """The page as Markdown; with ``demo``'s answer it also shows the example and the remedies."""
    parts = [
        f"# {page.title}",
        f"`{page.cause}` · reason {page.reason}: {page.reason_title} · {page.status}",
        page.summary,
    ]
    for head, text in page.heads.items():
        parts += [f"## {head}", text]
    parts += ["## Needs in the evidence", "\n".join(f"- {need}" for need in page.needs)]
    if page.record_with:
        parts.append("Recorded with:\n\n" + "\n".join(f"- {_code(t)}" for t in page.record_with))
    if example is not None:
        parts += _example_parts(page, *example)
    return "\n\n".join(parts) + "\n"


def listing(pages: list[Page], *, width: int) -> str:
    """All causes by the reason for low utilisation they belong to, one line each."""
    column = max((len(page.cause) for page in pages), default=0) + 2
    blocks = []
    for reason, title in REASON_TITLES.items():
        rows = [
            f"  {page.cause:<{column}}{page.title}"[:width]
            for page in pages
            if page.reason == reason
        ]
        if rows or len({page.reason for page in pages}) > 1:
            blocks.append("\n".join([f"{reason}. {title}", *(rows or ["  no cause yet"])]))
    return "\n\n".join(blocks)


def _observed_parts(page: Page, diagnosis: Diagnosis) -> list[str]:
    """The first observation on the cause's own example, which plants a sign without seconds."""
    found = next((o for o in diagnosis.observations if o.cause == page.cause), None)
    if found is None:
        return []
    said = f"On made-up evidence whyidle says, *{found.level}*: {_prose(found.what)}"
    return ["## Example", said, *(_remedy_text(remedy) for remedy in found.remedies)]


def _example_parts(page: Page, diagnosis: Diagnosis, planted_s: float | None) -> list[str]:
    if planted_s is None:
        return _observed_parts(page, diagnosis)
    found = next((f for f in diagnosis.findings if f.cause == page.cause), None)
    job = diagnosis.job if not diagnosis.devices else None
    run = "run" if job is None else "series of readings"
    wall_s, unit, factor = (diagnosis.wall_s, "ms", 1e3) if job is None else (job.wall_s, "s", 1)
    parts = [
        "## Example",
        f"A made-up {run} of {wall_s * factor:g} {unit} in which {planted_s * factor:g} {unit} are "
        "lost.",
    ]
    if found is None:
        return parts
    lost = float(f"{found.lost_s * factor:.4g}")
    parts.append(
        f"whyidle finds {lost:g} {unit} ({found.share:.1%}), *{found.level}*"
        f"{_place(found)}, and says:"
    )
    return [*parts, *(_remedy_text(remedy) for remedy in found.remedies)]


def _place(found: Finding) -> str:
    where = found.where[0] if found.where else None
    if where is None:
        return ""
    line = f"{where.file}:{where.line}" if where.file else None
    named = [name for name in (where.op, line) if name]
    return f", at {', '.join(f'`{name}`' for name in named)}" if named else ""


def _remedy_text(remedy: Remedy) -> str:
    safe = "Safe" if remedy.safe else "Not always safe"
    what, how, why, prove = map(_prose, (remedy.what, remedy.how, remedy.why_safe, remedy.prove))
    return f"> **{what}**\n>\n> {how}\n>\n> {safe}: {why}\n>\n> To prove it: {prove}"


def _prose(text: str) -> str:
    """Text with what Markdown would take for emphasis made plain, outside of code."""
    parts = text.split("`")
    parts[::2] = [re.sub(r"([*_])", r"\\\1", part) for part in parts[::2]]
    return "`".join(parts)


def _code(text: str) -> str:
    return text if "`" in text else f"`{text}`"


def _wrapped(text: str, width: int, indent: str = "") -> list[str]:
    lines: list[str] = []
    for paragraph in text.split("\n\n"):
        lines += textwrap.wrap(
            " ".join(paragraph.replace("``", "`").split()),
            width,
            initial_indent=indent,
            subsequent_indent=indent,
        )
    return lines
