"""Reading a result back to the host in every step drains the launch queue.

Looks like: ``loss.item()``, ``float(loss)``, ``.cpu()``, ``.tolist()`` or ``print(loss)`` in the
loop; the CPU waits in a synchronisation, and afterwards the GPU is empty until launching has
caught up.

How we tell: ``aten::item`` / ``aten::_local_scalar_dense`` with a wait below, or a copy from the
device to pageable memory and the wait it brings. Counted are the empty time inside that call, the
time that only this copy ran (both seen), and after it the dispatch and launch time up to the launch
lead that the wait destroyed, that is the time for which the device was still busy during the wait
(deduced). A loader wait, an allocator call or Python that follows keeps its own. The rest of the
wait is the device at work: no loss.

Change: keep the value on the device and read it every N steps, or one step late: copy it with
``non_blocking=True`` into pinned memory and read it after the next step was launched.

May be wrong: typical gains are 5 to 10 %, not the length of the wait. ``aten::item`` on a CPU
tensor waits for nothing and is not counted (optimizers keep their step counters on the CPU).

Sources: CUDA semantics (asynchronous execution) and the performance tuning guide of PyTorch;
pytorch/torchtune and pytorch forum reports (item() in the log step only; +5 to +10 %).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from whyidle.diagnosis import Finding, Remedy
from whyidle.stories import Story
from whyidle.views.certainty import waiting

if TYPE_CHECKING:
    import polars as pl

    from whyidle.model import Evidence, Facts
    from whyidle.views import Views

TITLE = "Results read back to the host in the loop"
STATUS = "preview"
NEEDS = ("device", "blame")


def claims(views: Views) -> pl.DataFrame:
    """Time lost in reads of device results and by the launch lead they destroyed."""
    return views.blamed("scalar_read", level=waiting)


def remedies(finding: Finding, facts: Facts) -> list[Remedy]:
    """Read seldom, or late."""
    prove = (
        "Record the same steps again: no synchronisation in most steps, and launches that stay "
        'ahead of the device. torch.cuda.set_sync_debug_mode("warn") prints what still waits.'
    )
    return [
        Remedy(
            what="Read the value every N steps only",
            how="total += loss.detach() every step; if step % 50 == 0: print(total.item() / 50). "
            "The same for metrics, gradient norms and progress bars.",
            safe=False,
            why_safe="Training computes the same, but what you log is an average and comes later; "
            "code that branches on the value (NaN check, early stop) acts later too.",
            effect={"kind": "syncs_dropped"},
            prove=prove,
        ),
        Remedy(
            what="Read it one step late",
            how="buffer = torch.empty((), pin_memory=True); buffer.copy_(loss.detach(), "
            "non_blocking=True); event.record(); and after the next step was launched: "
            "event.synchronize(); value = buffer.item().",
            safe=False,
            why_safe="The value is the same, one step later; reading the buffer before the event "
            "is done gives an old number.",
            effect={"kind": "syncs_dropped"},
            prove=prove,
        ),
    ]


def example() -> tuple[Evidence, float]:
    """Three steps with an item() each, 25 us lost there and 10 us at the start of the next step.

    Per step: the copy runs alone for 2 us; then, empty, 10 us to the end of the synchronisation,
    3 us to the end of item(), 10 us of dispatch and launch within the lead (562 us of wait, of
    which 10 us empty). The 25 us of Python in between are not the read's. The same lead covers the
    10 us of dispatch and launch with which the next step begins.
    """
    story = Story()
    for number in range(3):
        begin = number * 1000
        story.step(number, begin, begin + 1000)
        story.op("aten::mm", begin, begin + 20)
        story.launch("gemm", (begin + 5, begin + 10), (begin + 10, begin + 600))
        story.op("aten::item", begin + 30, begin + 615)
        story.op("aten::_local_scalar_dense", begin + 30, begin + 615)
        story.launch(
            "Memcpy DtoH (Device -> Pageable)", (begin + 40, begin + 50),
            (begin + 600, begin + 602), kind="copy", by="cudaMemcpyAsync", bytes=4,
        )  # fmt: skip
        story.call("cudaStreamSynchronize", begin + 50, begin + 612)
        story.op("aten::mm", begin + 640, begin + 660)
        story.launch("gemm", (begin + 645, begin + 650), (begin + 650, begin + 1000))
    return story.evidence(), (3 * 25 + 2 * 10) * 1e-6
