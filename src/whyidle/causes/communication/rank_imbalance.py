"""Some ranks have more to do than others, and all the others wait for them in collectives.

Looks like: the same collective lasts long on most ranks and is short on one; utilisation is high
everywhere, since waiting collectives spin on the GPU; the step is as long as the heaviest rank's.

How we tell: the same collective is matched on all ranks. What lies between a rank's entry and the
last one's is waiting, and goes to the rank that came last. From the last point at which both were
level until each entered, what the late rank did more than the waiting one decides: longer
computing while its kernels are as fast as elsewhere (deduced), a host that recorded nothing for
longer step after step, or nothing that was recorded (both suspected). Where the late rank lost the
time to a cause of its own, such as a loader, the wait goes to that cause instead. The places name
the late rank; every waiting GPU keeps its own seconds, and ``job_cost_s`` counts the delay once.

Change: give the ranks equal work: batches of equal token counts (sort by length, pack, bucket),
balanced table or expert placement, pipeline stages cut by measured time and not by layer count.

May be wrong: a rank that sets up something only once looks heavy in a short recording; record
several steps. Where a rank was not recorded, waiting for it stays with communication.

Sources: PyTorch Profiler distributed view; "Understanding Stragglers in Large Model Training Using
What-if Analysis" (ByteDance); cases of token imbalance with 1.5 to 3 times longer steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from whyidle.diagnosis import Finding, Remedy
from whyidle.rank_stories import Ranks

if TYPE_CHECKING:
    from whyidle.model import Evidence, Facts

TITLE = "Ranks wait for one that has more to do"
STATUS = "preview"
NEEDS = ("peers",)
WAITS = ("more_work", "held_up", "unknown")


def remedies(finding: Finding, facts: Facts) -> list[Remedy]:
    """Balance the work; look at the late rank."""
    late = next((place.rank for place in finding.where if place.rank is not None), None)
    return [_balance(), _look(late)]


def _balance() -> Remedy:
    return Remedy(
        what="Give every rank the same amount of work",
        how="Batch by token or pixel count instead of sample count (a length-grouped or packing "
        "sampler, the same on all ranks, seeded per epoch); for embedding tables and experts, "
        "place by measured load; for pipeline stages, cut where measured times are equal.",
        safe=False,
        why_safe="Samples are grouped differently, so runs are not bitwise equal; the loss must be "
        "weighted by tokens where counts differ.",
        effect={"kind": "ranks_balanced"},
        prove="Record all ranks over the same steps: the spread of kernel starts of one collective "
        "must shrink, and the step by as much.",
    )


def _look(late: int | None) -> Remedy:
    which = f"rank {late}" if late is not None else "the late rank"
    return Remedy(
        what=f"See what {which} does before it enters the collective",
        how=f"Diagnose the trace of {which} alone, recorded with with_stack=True, and compare it "
        "with another rank's: whyidle compare A B.",
        safe=True,
        why_safe="It only looks.",
        effect={"kind": "none"},
        prove="The comparison names kernels or Python that only the late rank has.",
    )


def example() -> tuple[Evidence, float]:
    """Four ranks, five steps; rank 1 computes 8 ms instead of 5: three ranks wait 3 ms a step."""
    ranks = Ranks(4)
    for _ in range(5):
        ranks.step([5000, 8000, 5000, 5000])
    return ranks.evidence(), 5 * 3 * 3e-3
