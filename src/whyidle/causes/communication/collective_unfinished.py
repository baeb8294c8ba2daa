"""All ranks entered a collective, and it does not end on any of them.

Looks like: the job hangs in communication though every rank did its part; all devices show full
use and little power.

How we tell: dumps of the NCCL flight recorder show the collective entered by every rank of its
group, called alike, done nowhere, and with nothing older in the way on any of them.

Change: look at what lies between the ranks: a link or NIC that went down, a firewall, a switch, a
mismatch of NCCL versions or settings between machines; NCCL_DEBUG=INFO and the ring over these
ranks in nccl-tests tell which pair does not move bytes.

May be wrong: a large collective that just takes long when the dump is written looks the same. Some
dumps do not say whether a device began: then a device that hangs before it looks the same too.

Sources: Troubleshooting in the NCCL documentation; Flight Recorder in the PyTorch documentation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from whyidle.diagnosis import Remedy, Sign
from whyidle.flight_stories import flights_told
from whyidle.views.flight_blame import faults
from whyidle.views.flight_checks import mismatches
from whyidle.views.flight_words import evidence_row, operation_text, places, ranks_text

if TYPE_CHECKING:
    from whyidle.model import Evidence
    from whyidle.views import Views

TITLE = "A collective that all entered does not end"
STATUS = "preview"
OBSERVES = ("collectives",)


def observations(views: Views) -> list[Sign]:
    """One sign per collective that nothing in the dumps holds up."""
    found = views.flights
    differing = set(mismatches(found)["key"].to_list())
    signs = []
    for fault in faults(found):
        if fault.kind != "stuck" or fault.instance.key in differing:
            continue
        who = ranks_text(fault.waiting)
        began = ", began on the device" if found.operations["state"][fault.row] == "started" else ""
        operation = operation_text(found, fault.instance, fault.row)
        signs.append(
            Sign(
                level="suspected",
                what=f"{operation[:1].upper()}{operation[1:]} was entered by all of its ranks with "
                f"a dump ({who}){began}, is done on none of them, and nothing older is in its way.",
                where=places(found, fault.waiting, fault.row),
                evidence=[evidence_row(views.evidence, found, fault.row)],
                remedies=[_look_between(who)],
            )
        )
    return signs


def _look_between(who: str) -> Remedy:
    return Remedy(
        what="Look at the links between these ranks",
        how=f"Run all_reduce_perf of nccl-tests over the machines of {who}, then over halves of "
        "them, until the pair that does not move bytes is found; read NCCL_DEBUG=INFO of these "
        "ranks, ibstat, and dmesg for link errors.",
        safe=True,
        why_safe="It only measures.",
        effect={"kind": "none"},
        prove="The same collective ends in nccl-tests over the same ranks, then in the job.",
    )


def observed_example() -> tuple[Evidence, str]:
    """Four ranks; all enter the third all-reduce and none finishes it."""
    return flights_told(ranks=4, collectives=3, done=2), "was entered by all"
