"""A proof as plain text and as Markdown for a pull request."""

from __future__ import annotations

import shlex
import statistics
from collections.abc import Callable

from whyidle.render.markdown import code, table, text
from whyidle.render.numerals import count, digits, duration, percent
from whyidle.render.plain import clean, clean_block, elide
from whyidle.trial.proof import Proof, RatioRecord, SideRecord

_HEAD = ("", "Runs", "Median", "Fastest", "Slowest", "Last loss", "Command")


def drawn(proof: Proof, format: str, width: int) -> str:
    """The proof as ``terminal``, ``markdown`` or ``json``; ``width`` in columns of a terminal."""
    if format == "json":
        return proof.to_json()
    return _markdown(proof) if format == "markdown" else _terminal(proof, width)


def headline(proof: Proof) -> str:
    """One sentence: what the proof found."""
    verb = "Proven" if proof.proven else "Not proven"
    if proof.verdict == "failed" or proof.ratio is None:
        return f"{verb}: a run failed."
    if proof.verdict == "changes training":
        return f"{verb}: the change also changes training; speed {_range(proof.ratio)}."
    if proof.verdict == "no difference":
        return f"{verb}: no difference, speed {_range(proof.ratio)}."
    return f"{verb}: {proof.verdict}, speed {_range(proof.ratio)}."


def _range(ratio: RatioRecord) -> str:
    sure = f"{ratio.confidence * 100:.0f}%"
    return f"{digits(ratio.mid)}x ({sure} interval {digits(ratio.low)}x to {digits(ratio.high)}x)"


def _loss(proof: Proof) -> str:
    loss = proof.loss
    differs = loss.largest_relative_difference
    size = "" if differs is None else f", largest difference {percent(differs)}"
    return f"Loss: {loss.verdict}{size} ({loss.why}; {percent(loss.tolerance)} is tolerated)."


def _basis(proof: Proof) -> str:
    pairs = min(len(proof.before.runs), len(proof.after.runs))
    return (
        f"Measured: {proof.measure.what}, {proof.measure.why}; {count(pairs, 'pair')} of runs "
        f"in turn, on {count(proof.machine.cpus, 'CPU')}."
    )


def _trees(proof: Proof) -> list[str]:
    if proof.before.tree is None or proof.after.tree is None:
        return []
    return [clean(f"Before: {proof.before.tree}; after: {proof.after.tree}.")]


def _row(name: str, side: SideRecord, command: Callable[[str], str]) -> tuple[str, ...]:
    known = [value for value in (side.median, side.low, side.high) if value is not None]
    figures = [duration(value) for value in known] or ["", "", ""]
    last = [run.loss_last for run in side.runs if run.loss_last is not None]
    loss = f"{statistics.median(last):.4g}" if last else ""
    return (name, str(len(side.runs)), *figures, loss, command(shlex.join(side.command)))


def _terminal(proof: Proof, width: int) -> str:
    rows = [
        _HEAD,
        _row("before", proof.before, clean),
        _row("after", proof.after, clean),
    ]
    widths = [max(len(row[i]) for row in rows) for i in range(len(_HEAD) - 1)]
    room = max(12, width - sum(widths) - 2 * len(widths))
    lines = [
        "  ".join(
            [row[0].ljust(widths[0])]
            + [row[i].rjust(widths[i]) for i in range(1, len(widths))]
            + [elide(row[-1], room)]
        ).rstrip()
        for row in rows
    ]
    blocks = [headline(proof), "\n".join(lines), clean_block("\n".join(proof.reasons))]
    blocks.append("\n".join([*_trees(proof), _basis(proof), _loss(proof), *proof.notes]))
    return "\n\n".join(block for block in blocks if block) + "\n"


def _markdown(proof: Proof) -> str:
    rows = [
        _row(name, side, lambda told: code(told, cell=True))
        for name, side in (("before", proof.before), ("after", proof.after))
    ]
    blocks = [
        f"### whyidle: {text(headline(proof))}",
        text(" ".join(proof.reasons)),
        table(_HEAD, rows, {1, 2, 3, 4, 5}),
        "<br>".join(map(text, [*_trees(proof), _basis(proof), _loss(proof), *proof.notes])),
        f"<sub>{text(proof.started)}, {text(proof.machine.platform)}, "
        f"digest {code(proof.digest[:16])}</sub>",
    ]
    return "\n\n".join(block.strip() for block in blocks if block.strip()) + "\n"
