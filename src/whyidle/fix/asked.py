"""Which changes were asked for, and what a diagnosis says to them."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from whyidle.errors import UsageError
from whyidle.fix.said import NOTHING, Said

if TYPE_CHECKING:
    from whyidle.diagnosis import Diagnosis

TOO_FEW = "data_loading.loader_workers_too_few"


class Named(Protocol):
    """What a change of source code and a row of the table of settings have in common."""

    @property
    def NAME(self) -> str:
        """Its name, as --only takes it."""

    @property
    def CAUSES(self) -> tuple[str, ...]:
        """Ids of the causes that it answers."""

    @property
    def SAFE(self) -> bool:
        """Whether results stay as they are."""

    @property
    def WHY(self) -> str:
        """What it brings and what it may change."""


Kind = TypeVar("Kind", bound=Named)


def wanted(options: argparse.Namespace, names: Collection[str]) -> frozenset[str] | None:
    """Names given to --only, all of them known; None without it."""
    if options.only is None:
        return None
    found = frozenset(name.strip() for name in options.only.split(","))
    unknown = sorted(found - set(names))
    if unknown:
        raise UsageError(
            f"No change is called {unknown[0]!r}.\n`whyidle fix --list` shows what there is."
        )
    return found


def asked(
    kinds: Sequence[Kind], only: Collection[str] | None, diagnosis: Diagnosis | None
) -> list[Kind]:
    """Those that --only names and that answer the diagnosis; safe or not.

    Some need a diagnosis, or a diagnosis or --only, since without they would fit any script.
    """
    found = [k for k in kinds if only is None or k.NAME in only]
    if diagnosis is not None:
        causes = causes_of(diagnosis)
        return [k for k in found if causes & set(k.CAUSES)]
    found = [k for k in found if not getattr(k, "diagnosed", False)]
    return found if only is not None else [k for k in found if not on_request(k)]


def on_request(kind: object) -> bool:
    """Whether a change is made only where a diagnosis names its cause, or --only names it."""
    return bool(getattr(kind, "ON_REQUEST", False))


def causes_of(diagnosis: Diagnosis) -> frozenset[str]:
    """Causes of the findings and of the observations."""
    found = {f.cause for f in diagnosis.findings}
    return frozenset(found | {o.cause for o in diagnosis.observations})


def said_of(diagnosis: Diagnosis | None) -> Said:
    """What a diagnosis says to changes beside its lines."""
    if diagnosis is None:
        return NOTHING
    remedies = [r for f in diagnosis.findings if f.cause == TOO_FEW for r in f.remedies]
    remedies += [r for o in diagnosis.observations if o.cause == TOO_FEW for r in o.remedies]
    workers = [remedy.effect.get("workers") for remedy in remedies]
    counts = [n for n in workers if type(n) is int and n > 0]
    return Said(causes_of(diagnosis), max(counts) if counts else None)


def lines_named(path: str, diagnosis: Diagnosis | None) -> Collection[int]:
    """Lines of this file, from 1, that the diagnosis points at; its paths may be of elsewhere."""
    if diagnosis is None:
        return ()
    own = Path(path).resolve().parts
    found = set()
    places = [(w.file, w.line) for f in diagnosis.findings for w in f.where]
    places += [(w.file, w.line) for o in diagnosis.observations for w in o.where]
    for file, line in places:
        parts = Path(file).parts[-2:] if file else ()
        if line and parts and own[-len(parts) :] == parts:
            found.add(line)
    return found
