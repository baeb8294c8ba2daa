"""A trial as a table: plain text for a terminal, Markdown for a pull request."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from whyidle.render.markdown import code, table, text
from whyidle.render.numerals import count, digits, duration
from whyidle.render.plain import clean
from whyidle.trial.proof import RatioRecord
from whyidle.trial.try_record import Predicted, RowRecord, Trial

HEAD = ("Remedy", "Predicted", "Measured", "Verdict")

ORDER = ("pays", "changes training", "undecided", "does not pay", "failed", "not applicable")


def drawn(trial: Trial, format: str, width: int) -> str:
    """The trial as ``terminal``, ``markdown`` or ``json``; ``width`` in columns of a terminal."""
    if format == "json":
        return trial.to_json()
    return _markdown(trial) if format == "markdown" else _terminal(trial, width)


def headline(trial: Trial) -> str:
    """One sentence: what pays."""
    paying = [row for row in _sorted(trial.remedies) if row.verdict == "pays"]
    tried = [row for row in trial.remedies if row.runs]
    if not tried:
        return "Nothing was tried: no remedy can act on this job."
    if not paying:
        return f"Of {count(len(tried), 'remedy', 'remedies')} tried, none surely pays."
    best = trial.together if _pays(trial.together) else paying[0]
    assert best is not None and best.measured is not None
    faster = f"{digits(best.measured.mid)}x faster"
    if len(paying) == 1:
        return f"{paying[0].remedy} pays: {faster}."
    return f"{', '.join(row.remedy for row in paying)} pay: up to {faster} ({best.remedy})."


def _pays(row: RowRecord | None) -> bool:
    return row is not None and row.verdict == "pays" and row.measured is not None


def _sorted(rows: Sequence[RowRecord]) -> list[RowRecord]:
    """By verdict, then by gain."""
    return sorted(
        rows, key=lambda row: (ORDER.index(row.verdict), -(row.measured.mid if row.measured else 0))
    )


def gain(ratio: RatioRecord | Predicted | None) -> str:
    """A ratio and its interval; empty where it is not known."""
    if ratio is None:
        return ""
    return f"{digits(ratio.mid)}x ({digits(ratio.low)} to {digits(ratio.high)})"


def _cells(row: RowRecord) -> tuple[str, str, str, str]:
    return (row.remedy, gain(row.predicted), gain(row.measured), row.verdict)


def remark(row: RowRecord) -> str:
    """How to keep a remedy that pays, or why it does not or was not tried."""
    if row.verdict == "pays":
        return row.keep or row.source
    if row.verdict == "changes training":
        return f"{row.why}; {row.keep or row.source}"
    return row.why


def _basis(trial: Trial) -> list[str]:
    base = trial.baseline
    pace = "" if base.step_s is None else f"a step takes {duration(base.step_s)} as it is; "
    steps = "all steps" if trial.steps is None else count(trial.steps, "step")
    seed = "the job's own seeds" if trial.seed is None else f"seed {trial.seed} in all runs"
    return [
        f"Measured: {pace}{steps} per run, the first {trial.warm_up} not counted, at most "
        f"{count(trial.pairs, 'pair')} of runs in turn, {seed}, on "
        f"{count(trial.machine.cpus, 'CPU')}. A remedy pays when it is surely "
        f"{trial.pays_from:.2f}x or more.",
        *trial.notes,
    ]


def _rows(trial: Trial) -> list[RowRecord]:
    rows = _sorted(trial.remedies)
    return rows if trial.together is None else [*rows, trial.together]


def _terminal(trial: Trial, width: int) -> str:
    rows = _rows(trial)
    cells = [HEAD, *(tuple(clean(cell) for cell in _cells(row)) for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(HEAD))]
    start = sum(widths) + 2 * len(widths)
    room = width - start
    remarks = ["How to keep it, or why not", *(clean(remark(row)) for row in rows)]
    lines: list[str] = []
    for row, told in zip(cells, remarks, strict=True):
        left = "  ".join(cell.ljust(size) for cell, size in zip(row, widths, strict=True))
        if room >= 30:
            parts = textwrap.wrap(told, room, break_on_hyphens=False) or [""]
            lines.append(f"{left}  {parts[0]}".rstrip())
            lines += [" " * start + part for part in parts[1:]]
        else:
            lines.append(left.rstrip())
            lines += textwrap.wrap(
                told, max(width, 30), initial_indent="    ", subsequent_indent="    "
            )
    basis = "\n".join(line for told in _basis(trial) for line in textwrap.wrap(told, width))
    return "\n\n".join([clean(headline(trial)), "\n".join(lines), basis]) + "\n"


def _markdown(trial: Trial) -> str:
    rows = [
        (
            code(row.remedy, cell=True),
            gain(row.predicted),
            gain(row.measured),
            row.verdict,
            code(remark(row), cell=True) if row.verdict == "pays" else text(remark(row)),
        )
        for row in _rows(trial)
    ]
    blocks = [
        f"### whyidle: {text(headline(trial))}",
        table((*HEAD, "How to keep it, or why not"), rows, {1, 2}),
        "<br>".join(text(line) for line in _basis(trial)),
        f"<sub>{text(trial.started)}, {text(trial.machine.platform)}</sub>",
    ]
    return "\n\n".join(blocks) + "\n"
