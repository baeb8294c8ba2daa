"""Ranks call different collectives, or the same one with tensors that do not fit.

Looks like: a hang or a timeout without any rank being late, or values that are wrong on some ranks;
with a debug build, "Detected mismatch between collectives on ranks".

How we tell: dumps of the NCCL flight recorder are put side by side. Operations of one group are
numbered alike on all ranks; at the first number at which the operation, the element type or a size
that must agree differs, the calls and the ranks that made them are named. Fewer ranks against more
are named first: the odd ones are probably wrong. Sizes of all-to-all, gather and scatter may differ
by rank and are not compared.

Change: let all ranks take the same branch before that line; a rank that skips one collective
(an unused branch, an early exit, a different number of layers or batches) pairs all later ones
wrongly. Pad or exchange sizes first.

May be wrong: a group that was torn down and made again under the same name may count from 1 again
on some ranks only. Which side is wrong is a matter of counting heads.

Sources: TORCH_DISTRIBUTED_DEBUG and Flight Recorder in the PyTorch documentation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from whyidle.diagnosis import Remedy, Sign
from whyidle.flight_stories import flights_told
from whyidle.views.flight_checks import mismatches
from whyidle.views.flight_words import evidence_row, places, ranks_text

if TYPE_CHECKING:
    import polars as pl

    from whyidle.model import Evidence
    from whyidle.views import Views

TITLE = "Ranks call different collectives"
STATUS = "preview"
OBSERVES = ("collectives",)
MOST_GROUPS = 8


def observations(views: Views) -> list[Sign]:
    """One sign per group whose ranks disagree, earliest first."""
    differing = mismatches(views.flights)
    created = views.flights.operations["created_ns"]
    signs = []
    for (_,), ways in differing.group_by("key", maintain_order=True):
        rows = [row for way in ways["row"].to_list() for row in way]
        times = [t for t in created.gather(rows).to_list() if t is not None]
        signs.append((min(times, default=0), _sign(views, ways)))
    signs.sort(key=lambda pair: pair[0])
    return [sign for _, sign in signs[:MOST_GROUPS]]


def _sign(views: Views, ways: pl.DataFrame) -> Sign:
    found = views.flights
    key, sequence = ways["key"][0], ways["sequence"][0]
    calls = [(r, w[0], rows[0]) for r, w, rows in ways.select("rank", "what", "row").iter_rows()]
    told = "; ".join(f"{ranks_text(ranks)}: {what}" for ranks, what, _ in calls[:4])
    odd, _, row = calls[0]
    clear = len(calls) == 2 and len(odd) < len(calls[1][0])
    named = odd if clear else [rank for ranks, _, _ in calls for rank in ranks]
    guess = (
        f" {ranks_text(odd).capitalize()} {'is' if len(odd) == 1 else 'are'} in the minority."
        if clear
        else " Neither side is in the minority."
    )
    return Sign(
        level="seen",
        what=f"The calls of number {sequence} in {found.groups[key].told()} do not fit: {told}."
        + guess,
        where=places(found, named, row),
        evidence=[evidence_row(views.evidence, found, at) for _, _, at in calls[:4]],
        remedies=[_same_calls(ranks_text(named))],
    )


def _same_calls(who: str) -> Remedy:
    return Remedy(
        what="Let all ranks call the same collectives in the same order",
        how=f"Compare the branches that {who} takes before this line with those of the others. "
        "TORCH_DISTRIBUTED_DEBUG=DETAIL stops at the first call that differs; "
        "TORCH_NCCL_TRACE_CPP_STACK=1 adds call stacks to the dump.",
        safe=False,
        why_safe="It changes which code runs on some ranks.",
        effect={"kind": "none"},
        prove="Run past the same step with TORCH_DISTRIBUTED_DEBUG=DETAIL and without a complaint.",
    )


def observed_example() -> tuple[Evidence, str]:
    """Four ranks; at the third collective rank 1 gathers where the others reduce."""
    evidence = flights_told(ranks=4, collectives=3, calls={(1, 3): "nccl:_all_gather_base"})
    return evidence, "rank 1: nccl:_all_gather_base"
