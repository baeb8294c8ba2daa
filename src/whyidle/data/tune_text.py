"""What tuning found, as text for a terminal or as Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from whyidle.data.tune_bounds import size
from whyidle.data.tune_record import Trial, Tune
from whyidle.data.tune_trials import named
from whyidle.render.numerals import about, count, digits, duration
from whyidle.render.plain import clean, clean_block

Row = Sequence[str]


def terminal(found: Tune) -> str:
    """Plain text with aligned tables; no line is wrapped."""
    lines = [_head(found), "", *_aligned(_trials(found)), "", f"Set  {found.code}", ""]
    if found.chosen.loader == "Loader":
        lines += ["with  from whyidle.data import Loader", ""]
    for title, told in _sections(found):
        lines += [title, *(f"  {one}" for one in told), ""]
    return "\n".join(clean_block(line) for line in lines).rstrip() + "\n"


def markdown(found: Tune) -> str:
    """The same as Markdown."""
    head, *rest = _trials(found)
    lines = [f"# {_head(found)}", "", _bar(head), _bar(["---"] * len(head)), *map(_bar, rest), ""]
    lines += ["```python", found.code, "```", ""]
    for title, told in _sections(found):
        lines += [f"## {title}", "", *(f"- {one}" for one in told), ""]
    return "\n".join(lines).rstrip() + "\n"


def _head(found: Tune) -> str:
    of = "" if found.samples is None else f" of {count(found.samples, 'sample')}"
    had = "" if found.workers is None else f", now {count(found.workers, 'worker')}"
    return f"Tuned {clean(found.spec)}{of}: batches of {found.batch_size}{had}"


def _trials(found: Tune) -> list[Row]:
    rows: list[Row] = [("setting", "samples/s", "runs", "predicted", "first batch", "a worker", "")]
    predicted = {one.workers: one.rate for one in found.predictions}
    for one in found.trials:
        of_processes = one.setting.loader == "DataLoader"
        guess = predicted.get(one.setting.workers) if of_processes else None
        rows.append((
            named(one.setting), digits(one.rate) if one.rate else "-",
            " ".join(digits(rate) for rate in one.rates) or "-",
            digits(guess) if guess else "-",
            duration(one.first_s) if one.first_s is not None else "-",
            size(one.worker_bytes) if one.worker_bytes else "-", _remark(found, one),
        ))  # fmt: skip
    return rows


def _remark(found: Tune, one: Trial) -> str:
    if one.failed is not None:
        return f"not run: {clean(one.failed)}"
    words = []
    same = one.setting.loader == found.chosen.loader
    if same and one.setting.workers == found.chosen.num_workers:
        words.append("chosen")
    if one.setting.loader == "DataLoader" and one.setting.workers == found.workers:
        words.append("as it is")
    return ", ".join(words)


def _sections(found: Tune) -> list[tuple[str, list[str]]]:
    parts = [("What that gives", _gives(found)), ("Why", found.reasons)]
    parts.append(("Limits kept", [_bound(one.name, one.most, one.what) for one in found.bounds]))
    parts.append(("What no setting can help, and what would", _rest(found)))
    parts.append(("Notes", found.notes))
    return [(title, told) for title, told in parts if told]


def _gives(found: Tune) -> list[str]:
    if found.rate is None or found.low is None or found.high is None:
        return []
    told = (
        f"{digits(found.rate)} samples/s ({digits(found.low)} to {digits(found.high)} in its runs)"
    )
    guess = found.predicted
    if guess is not None:
        told += f"; predicted {digits(guess.rate)} ({digits(guess.low)} to {digits(guess.high)})"
    lines = [told + "."]
    if found.now:
        lines.append(f"{found.rate / found.now:.2f} times what the loader gives as it is.")
    if found.limit:
        lines.append(
            f"{about(found.rate / found.limit)} of the {digits(found.limit)} samples/s at which "
            "these CPUs decode and transform."
        )
    if found.enough is not None:
        kept = "keeps up with" if found.rate >= found.enough else "falls short of"
        lines.append(
            f"That {kept} the {digits(found.enough)} samples/s that a step of "
            f"{duration(found.step_s or 0.0)} takes; a faster loader gains nothing beyond."
        )
    return lines


def _bound(name: str, most: int | None, what: str) -> str:
    return f"{name}: {'no limit' if most is None else f'{most} at most'} ({what})"


def _rest(found: Tune) -> list[str]:
    lines = []
    for one in found.findings[:4]:
        for remedy in one.remedies[:1]:
            gain = "" if remedy.gain is None else f" ({remedy.gain.speedup_mid:.2f} times)"
            lines.append(f"{one.title}: {remedy.what}{gain} {remedy.how}".strip())
    return [clean(one) for one in lines]


def _aligned(rows: Sequence[Row]) -> list[str]:
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    return [
        "  " + "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _bar(cells: Row) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
