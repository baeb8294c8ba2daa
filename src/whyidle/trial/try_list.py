"""``whyidle try --list``: every remedy, what it does, and when it is tried."""

from __future__ import annotations

import textwrap

from whyidle.trial.try_choosing import NUMBERS, WORDS
from whyidle.trial.try_table import NOT_OFFERED, REMEDIES, Remedy

_WHEN = {
    "always": "",
    "gpu": " Tried on a GPU, or when named.",
    "cpu": " Tried without a GPU, or when named.",
    "never": " Tried when named.",
}


def listed() -> str:
    """The list, as plain text."""
    lines = [_entry(remedy) for remedy in REMEDIES]
    lines += [
        f"{name}  (not offered)\n" + _indented(f"{why}.") for name, why in NOT_OFFERED.items()
    ]
    return "\n".join(lines) + "\n"


def _entry(remedy: Remedy) -> str:
    takes = "=N" if remedy.name in NUMBERS else "=WORD" if remedy.name in WORDS else ""
    safe = "safe" if remedy.safe else "can change results"
    does = remedy.does if "torch." in remedy.does[:6] else remedy.does[0].upper() + remedy.does[1:]
    told = [f"{does}. {remedy.why}{_WHEN[remedy.by_default]}"]
    told.append("Answers: " + ", ".join(remedy.causes) if remedy.causes else "")
    return f"{remedy.name}{takes}  ({safe})\n" + "\n".join(_indented(t) for t in told if t)


def _indented(told: str) -> str:
    return textwrap.fill(
        told,
        98,
        initial_indent="    ",
        subsequent_indent="    ",
        break_on_hyphens=False,
        break_long_words=False,
    )
