"""What keeps a change from being proven, as the finding records that all verbs share."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from whyidle.diagnosis import EvidenceRow, Finding, Remedy
from whyidle.trial.proof import SideRecord, What

REASON = 7
"""These findings are about a measurement, not about a reason why a device idles."""

TITLES = {
    "prove.slower": "The change makes it slower",
    "prove.no_difference": "The change makes no difference that can be told from noise",
    "prove.too_little": "The change may gain less than was asked for",
    "prove.changes_training": "The change also changes training",
    "prove.loss_unknown": "Whether the change alters training cannot be told",
    "prove.wrong_tree": "A run used files of another tree",
    "prove.failed": "A run failed",
}
"""Id of a finding -> its title. An id is kept for ever."""

_MORE_PAIRS = ("prove.no_difference", "prove.too_little")


@dataclass(frozen=True)
class Shortfall:
    """One thing that keeps the claim from being proven; ``id`` is one of TITLES."""

    id: str
    sentence: str


def findings_of(
    found: Sequence[Shortfall], what: What, before: SideRecord, after: SideRecord
) -> list[Finding]:
    """One finding per shortfall; empty for what is proven.

    ``lost_s`` is by how many seconds of the measure the median run of *after* is longer, for a
    change that surely makes it slower, and 0 for all others; ``share`` is that over *after*.
    """
    return [_finding(one, what, before, after) for one in found]


def _finding(one: Shortfall, what: What, before: SideRecord, after: SideRecord) -> Finding:
    lost_s = share = 0.0
    if one.id == "prove.slower" and before.median is not None and after.median:
        lost_s = max(after.median - before.median, 0.0)
        share = lost_s / after.median
    source = f"{shlex.join(before.command)} -> {shlex.join(after.command)}"
    return Finding(
        cause=one.id,
        reason=REASON,
        title=TITLES[one.id],
        ledger="job" if what == "wall of the command" else "window",
        lost_s=lost_s,
        share=share,
        job_cost_s=None,
        contested_s=0.0,
        level="seen",
        status="stable",
        where=[],
        evidence=[EvidenceRow(source=source, row=None, what=one.sentence)],
        remedies=_remedies(one.id, after),
    )


def _remedies(id: str, after: SideRecord) -> list[Remedy]:
    pairs = max(2 * len(after.runs), 4)
    if id in _MORE_PAIRS:
        return [
            Remedy(
                what="Run more pairs.",
                how=f"--pairs {pairs}",
                safe=True,
                why_safe="It only takes longer.",
                effect={},
                prove="The interval gets narrower as the runs get more.",
            )
        ]
    if id == "prove.loss_unknown":
        return [
            Remedy(
                what="Fix the seed.",
                how="torch.manual_seed(0), and the seeds of NumPy and random where they are used",
                safe=True,
                why_safe="It only makes runs repeat each other.",
                effect={},
                prove="Losses of runs of one command then agree among themselves.",
            )
        ]
    return []
