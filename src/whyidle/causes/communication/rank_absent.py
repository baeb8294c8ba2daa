"""A rank never enters a collective in which the others wait, or its device never finishes one.

Looks like: the job hangs, then dies with a watchdog or collective timeout on ranks that are not at
fault; their GPUs show full use, since a kernel of the collective waits on each.

How we tell: dumps of the NCCL flight recorder are put side by side. Each rank waits in the oldest
operation that it entered and did not finish; it waits for the ranks that have not entered it, whose
devices have not begun it, or that are still in something older. Following that from rank to rank
ends at ranks that wait for nobody. A rank whose own operations are done everywhere but on itself
has a device that no longer finishes work. Ranks that left no dump are named, as suspected, only
where waiting ends at them and no rank with a dump explains it.

Change: look at the rank that is named, not at the one that timed out: its Python stack (py-spy
dump), its data loader, its log for an exception, its GPU for Xid errors.

May be wrong: dumps of a job that still ran show ordinary waiting. A rank that ended its loop early,
because it had less data, looks like one that hangs. Dumps written far apart from each other may
show as done what was pending in an earlier one.

Sources: Flight Recorder for debugging stuck jobs, in the PyTorch documentation; tests
of fault attribution in NVIDIA/nvidia-resiliency-ext.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from whyidle.diagnosis import Remedy, Sign
from whyidle.flight_stories import flights_told
from whyidle.views.flight_blame import Fault, faults
from whyidle.views.flight_checks import mismatches
from whyidle.views.flight_words import evidence_row, last_of, operation_text, places, ranks_text

if TYPE_CHECKING:
    from whyidle.model import Evidence
    from whyidle.views import Views
    from whyidle.views.flights import Flights

TITLE = "A rank is missing from a collective"
STATUS = "preview"
OBSERVES = ("collectives",)


def observations(views: Views) -> list[Sign]:
    """One sign per operation in which ranks at fault keep others waiting."""
    found = views.flights
    differing = mismatches(found)
    odd = {rank for ranks in differing["rank"].to_list() for rank in ranks}
    return [
        _sign(views.evidence, found, fault)
        for fault in faults(found)
        if fault.kind != "stuck" and not (fault.kind == "absent" and odd.issuperset(fault.ranks))
    ]


def _sign(evidence: Evidence, found: Flights, fault: Fault) -> Sign:
    rows = [evidence_row(evidence, found, fault.row)]
    rows += [
        last_of(evidence, found, rank, fault.instance)
        for rank in fault.ranks[:8]
        if rank in found.dumped
    ]
    return Sign(
        level="suspected" if fault.kind in ("no_dump", "ring") else "deduced",
        what=_told(found, fault),
        where=places(found, fault.ranks, fault.row),
        evidence=rows,
        remedies=[_look(fault)],
    )


def _told(found: Flights, fault: Fault) -> str:
    who = ranks_text(fault.ranks)
    many = len(fault.ranks) > 1
    who = who[:1].upper() + who[1:]
    operation = operation_text(found, fault.instance, fault.row)
    if not fault.waiting:
        return (
            f"{who}: {operation} is done on other ranks and not on {'these' if many else 'this'}: "
            "a hung kernel or a device error." + _missing(found, fault)
        )
    waits = f"{ranks_text(fault.waiting)} wait" + ("" if len(fault.waiting) > 1 else "s")
    have = "have" if many else "has"
    its = "their" if many else "its"
    texts = {
        "absent": f"{who} {have} not entered {operation}, in which {waits}. All that {who.lower()} "
        f"entered before is done: the host stopped there.",
        "device": f"{who} {have} not come to {operation}, in which {waits}; and on {its} own "
        f"device work is not done that is done on other ranks: a hung kernel or a device error.",
        "not_begun": f"{who} entered {operation}, but {its} device has not begun it, and {waits} "
        "there: something before it on that device does not end.",
        "no_dump": f"{who} left no dump, and all waiting ends there: {waits} in {operation}. "
        f"{'They' if many else 'It'} may have crashed, or may wait for a rank that no dump shows.",
        "ring": f"{ranks_text(sorted({*fault.ranks, *fault.waiting})).capitalize()} wait for each "
        f"other; {who.lower()} {have} not entered {operation}, which others entered.",
    }
    return texts[fault.kind] + _missing(found, fault)


def _missing(found: Flights, fault: Fault) -> str:
    text = ""
    if fault.unseen:
        one = len(fault.unseen) == 1
        text += (
            f" {ranks_text(fault.unseen).capitalize()} of the same operation left no dump and may "
            f"be at fault too: nothing here clears {'it' if one else 'them'}."
        )
    others = [rank for rank in found.absent_dumps if rank not in (*fault.ranks, *fault.unseen)]
    if others:
        text += (
            f" No dump was given of {ranks_text(others)} either."
            if text
            else (f" No dump was given of {ranks_text(others)}.")
        )
    return text


def _look(fault: Fault) -> Remedy:
    who = ranks_text(fault.ranks)
    if fault.kind == "device":
        how = (
            f"On the machine of {who}: dmesg | grep -i xid and nvidia-smi -q -d ECC,ROW_REMAPPER; "
            "run the job with CUDA_LAUNCH_BLOCKING=1 to name a kernel that hangs. Replace the GPU "
            "when errors are counted."
        )
    elif fault.kind == "no_dump":
        how = (
            f"Read the log of {who} for an exception, an out-of-memory kill (dmesg | grep -i kill) "
            "or a lost node, and collect its dump if it wrote one."
        )
    else:
        how = (
            f"While it hangs, run py-spy dump --pid PID on {who}: a data loader, a lock, a "
            "checkpoint or an evaluation that only some ranks do. Let every rank take the same "
            "branches and the same number of steps (join(), drop_last=True)."
        )
    return Remedy(
        what=f"Look at {who}, not at the rank that timed out",
        how=how,
        safe=True,
        why_safe="It only looks; the job is already stuck.",
        effect={"kind": "none"},
        prove="Run past the same step; if it hangs again, dump again and see if it is the same "
        "rank (code or data) or the same machine (hardware).",
    )


def observed_example() -> tuple[Evidence, str]:
    """Four ranks; rank 2 stops before the third all-reduce."""
    evidence = flights_told(ranks=4, collectives=3, stops={2: 2})
    return evidence, "Rank 2 has not entered nccl:all_reduce number 3"
