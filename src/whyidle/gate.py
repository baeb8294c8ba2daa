"""``--fail-on``: limits that turn a diagnosis into an exit code for CI.

A limit reads ``lost>30%``, ``data_loading>10%`` or ``data_loading.loader_workers_too_few>5%``.
Its base is the recorded wall of all devices: wall minus the time that was likely work the
recorder dropped, so a gap in the recording never fails a build. Where no device was traced, it is
the time of the sampled GPUs, or of the training processes of a bundle, that is known. So a bundle
with profiled steps is judged by those, and one without by its whole run.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from whyidle.diagnosis import REASONS, Diagnosis, matches_cause
from whyidle.errors import UsageError

EVERYTHING = "lost"
"""The name of the limit on all causes together."""

EXAMPLES = "'lost>30%', 'data_loading>10%' or 'data_loading.loader_workers_too_few>5%'"

_LIMIT = re.compile(r"\s*(?P<what>[A-Za-z_][\w.]*)\s*>\s*(?P<percent>\d+(?:\.\d+)?)\s*%\s*")


@dataclass(frozen=True)
class Limit:
    """The largest share (0..1) of recorded wall that ``what`` may lose.

    ``what`` is a cause id, the folder of several causes, or ``lost`` for all of them.
    """

    what: str
    share: float

    @property
    def prefix(self) -> str:
        """The start of the ids that this limit speaks of; empty for all."""
        return "" if self.what == EVERYTHING else self.what

    def __str__(self) -> str:
        return f"{self.what}>{self.share * 100:g}%"


def parse_limits(
    texts: Iterable[str],
    causes: Collection[str],
    *,
    own: Collection[str] = (),
    most: float = 1.0,
    examples: str = EXAMPLES,
) -> list[Limit]:
    """The limits that the user wrote; ``causes`` are the ids of all known causes.

    ``own`` are further names that a limit may be on, ``most`` is the largest share that makes
    sense, ``examples`` are what a message shows. Raises UsageError for text that is no limit and
    for an id that no cause has.
    """
    found = []
    for text in texts:
        limit = _parsed(text, examples)
        if limit.share > most:
            raise UsageError(f"--fail-on {text!r}: a share is at most {most * 100:g}%.")
        if limit.what not in own:
            check_known(limit.what, causes, f"--fail-on {text!r}")
        found.append(limit)
    return found


def _parsed(text: str, examples: str) -> Limit:
    found = _LIMIT.fullmatch(text)
    if not found:
        raise UsageError(
            f"--fail-on {text!r}: not a limit.\nWrite WHAT>PERCENT%, in quotes: {examples}."
        )
    return Limit(found["what"], float(found["percent"]) / 100)


def check_known(what: str, causes: Collection[str], asked: str) -> None:
    """Raise UsageError, with near matches, unless ``what`` is ``lost``, a cause or a folder."""
    folders = {cause.partition(".")[0] for cause in causes} | set(REASONS)
    if what == EVERYTHING or what in causes or what in folders:
        return
    near = near_matches(what, causes)
    hint = f"Did you mean {' or '.join(near)}?" if near else "`whyidle explain` lists all causes."
    raise UsageError(f"{asked}: no cause is called {what!r}.\n{hint}")


def near_matches(what: str, causes: Collection[str]) -> list[str]:
    """Up to three ids or folders close to ``what``, the closest first."""
    folders = {cause.partition(".")[0] for cause in causes} | set(REASONS)
    whole = difflib.get_close_matches(what, sorted({*causes, *folders}), n=3, cutoff=0.6)
    tails = {cause.rpartition(".")[2]: cause for cause in sorted(causes)}
    tail = difflib.get_close_matches(what.rpartition(".")[2], list(tails), n=3, cutoff=0.75)
    return list(dict.fromkeys([*(tails[name] for name in tail), *whole]))[:3]


def exceeded(diagnosis: Diagnosis, limits: Iterable[Limit]) -> list[str]:
    """One sentence for each limit that the diagnosis is above; empty when all hold."""
    found = []
    for limit in limits:
        share = diagnosis.share_lost(limit.prefix)
        if share > limit.share:
            found.append(
                f"{limit.what} is {share:.1%} of the recorded time, over the limit of "
                f"{limit.share * 100:g}%."
            )
    return found


def check_judged(diagnosis: Diagnosis, limits: Iterable[Limit], causes: Collection[str]) -> None:
    """Raise UsageError for a limit on causes of which the evidence can show none at all.

    A limit that nobody could measure must not look like a limit that held.
    """
    blind = {n.cause for n in diagnosis.not_judged} | {c.cause for c in diagnosis.crashed}
    for limit in limits:
        if diagnosis.recorded_s <= 0:
            raise UsageError(
                f"--fail-on '{limit}': this evidence holds no known seconds of a GPU or of "
                "training steps.\nGive a trace, a bundle of whyidle run, or a series of readings "
                "(nvidia-smi --query-gpu=timestamp,index,utilization.gpu --format=csv -l 1)."
            )
        meant = [cause for cause in causes if limit.prefix and matches_cause(cause, limit.prefix)]
        if meant and all(cause in blind for cause in meant):
            how = [n.record_with for n in diagnosis.not_judged if n.cause in meant]
            hint = f"To record what is missing: {how[0]}" if how else "The cause failed to run."
            raise UsageError(
                f"--fail-on '{limit}': this evidence cannot show {limit.what}.\n{hint}"
            )
