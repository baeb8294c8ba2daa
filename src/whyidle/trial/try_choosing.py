"""Which remedies to try: those asked for, or those that a first run of the job calls for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from whyidle.errors import UsageError
from whyidle.render.numerals import percent
from whyidle.trial.try_judged import Row
from whyidle.trial.try_runs import Facts, Said
from whyidle.trial.try_table import BY_NAME, NOT_OFFERED, REMEDIES, Place, Remedy, Value

if TYPE_CHECKING:
    from whyidle.diagnosis import Diagnosis

LEAST_WAIT = 0.02
"""A loader that steps wait for less than this share of their time cannot be made to pay."""

FOR_WAITS = ("loader_workers", "prefetch_factor")

Asked = Sequence[tuple[str, Value | None]]
"""Names and the values given for them; None where none was given."""


def parsed(text: str) -> list[tuple[str, Value | None]]:
    """``A,B=4`` as names and values; UsageError for a name that is not known."""
    found: list[tuple[str, Value | None]] = []
    for word in filter(None, (part.strip() for part in text.split(","))):
        name, given, value = word.partition("=")
        if name in NOT_OFFERED:
            raise UsageError(f"--remedies {name}: not offered, since {NOT_OFFERED[name]}.")
        if name not in BY_NAME:
            raise UsageError(
                f"--remedies {name}: no such remedy.\nSee all of them with: whyidle try --list"
            )
        found.append((name, _value(name, value) if given else None))
    if not found:
        raise UsageError("--remedies names none.\nSee all of them with: whyidle try --list")
    return found


NUMBERS = (
    "loader_workers",
    "prefetch_factor",
    "gc_schedule",
    "checkpoint_every",
    "threads",
    "interop_threads",
    "batch_size",
)
"""Remedies whose value is a whole number, 1 or more."""

WORDS = ("compile", "matmul_precision", "ddp_flags")
"""Remedies whose value is a word."""


def _value(name: str, text: str) -> Value:
    if name in NUMBERS and text.isascii() and text.isdigit() and int(text[:9]) > 0:
        return int(text[:9])
    if name in WORDS and text:
        return text
    wants = "a whole number, 1 or more" if name in NUMBERS else "a word"
    if name not in NUMBERS and name not in WORDS:
        raise UsageError(f"--remedies {name}={text}: {name} takes no value.")
    raise UsageError(f"--remedies {name}={text}: {name} takes {wants}.")


def to_ask(asked: Asked | None, causes: Sequence[str] | None, place: Place) -> dict[str, Value]:
    """What the first run is to be asked about, by name: all that may become a candidate."""
    if asked is not None:
        return {name: _one_of(name, value, place) for name, value in asked}
    return {remedy.name: _one_of(remedy.name, None, place) for remedy in _defaults(causes)}


def _one_of(name: str, value: Value | None, place: Place) -> Value:
    values = [value] if value is not None else [*BY_NAME[name].values(place), True]
    return values[0]


def _defaults(causes: Sequence[str] | None) -> list[Remedy]:
    """Those tried by default; given causes, those that answer them, the first cause first."""
    if causes is None:
        return [remedy for remedy in REMEDIES if remedy.by_default != "never"]
    ranked = [
        (min(causes.index(c) for c in remedy.causes if c in causes), number, remedy)
        for number, remedy in enumerate(REMEDIES)
        if any(c in causes for c in remedy.causes)
    ]
    return [remedy for _, _, remedy in sorted(ranked, key=lambda one: one[:2])]


def rows_of(
    asked: Asked | None, asked_about: Mapping[str, Value], said: Mapping[str, Said], facts: Facts
) -> list[Row]:
    """A row for each remedy and value; those that cannot act here are closed, with the reason.

    ``asked_about`` is what the first run was asked, ``said`` what it answered.
    """
    given = dict[str, list[Value]]()
    for name, value in asked or ():
        given.setdefault(name, [])
        if value is not None:
            given[name].append(value)
    rows = []
    for name in asked_about:
        remedy = BY_NAME[name]
        values = given.get(name) or [*remedy.values(facts.place)]
        why = _why_not(remedy, said.get(name), facts, chosen=name in given)
        if why is not None or not values:
            rows.append(
                Row(
                    {name: (values or [True])[0]},
                    verdict="not applicable",
                    why=why or "the job has that already",
                )
            )
            continue
        rows += [Row({name: value}) for value in values]
    return rows


def _why_not(remedy: Remedy, said: Said | None, facts: Facts, *, chosen: bool) -> str | None:
    """Why it is not tried; None if it is."""
    if not chosen and remedy.by_default == "gpu" and not facts.place.gpu:
        return "no GPU" if said is None or not said.could else "tried on a GPU, or when named"
    if not chosen and remedy.by_default == "cpu" and facts.place.gpu:
        return "tried without a GPU, or when named"
    if said is None or not said.could:
        reasons = said.why_not if said is not None else []
        return "; ".join(reasons[:2]) or "the job does nothing that it would change"
    waits = facts.wait_share
    if not chosen and remedy.name in FOR_WAITS and waits is not None and waits < LEAST_WAIT:
        return f"steps wait for the loader {percent(waits)} of their time"
    return None


def causes_in(diagnosis: Diagnosis) -> list[str]:
    """The causes found, what cost most first; those without seconds last."""
    found = [finding.cause for finding in diagnosis.findings]
    return list(dict.fromkeys([*found, *(one.cause for one in diagnosis.observations)]))
