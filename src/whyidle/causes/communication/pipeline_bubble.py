"""A stage of a pipeline waits until the one before or after it has computed.

Looks like: with pipeline parallelism every GPU is idle at the beginning or the end of each step,
in a send or receive; the first stage at the end, the last one at the beginning.

How we tell: a send and the receive that belongs to it are matched on their two ranks. The one that
came first waited for the other, which was computing (deduced). The part that all schedules have is
(stages - 1) / micro-batches of a step; more than that means stages of unequal length.

Change: more micro-batches per step, an interleaved or zero-bubble schedule, stages cut by measured
time; where the model fits, fewer stages.

May be wrong: more micro-batches of a smaller size can run slower than the bubble they remove;
measured cases range from +20 % to nothing. Sends and receives of other algorithms look the same.

Sources: Megatron-LM, pipeline parallelism and its interleaved schedule (arXiv 2104.04473);
torch.distributed.pipelining documentation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from whyidle.diagnosis import Finding, Remedy
from whyidle.rank_stories import GEMM, side_by_side
from whyidle.stories import Story

if TYPE_CHECKING:
    from whyidle.model import Evidence, Facts

TITLE = "A pipeline stage waits for another"
STATUS = "preview"
NEEDS = ("peers",)
WAITS = ("upstream",)


def remedies(finding: Finding, facts: Facts) -> list[Remedy]:
    """Fill the pipeline better."""
    return [
        Remedy(
            what="Run more micro-batches per step, or interleave stages",
            how="torch.distributed.pipelining: ScheduleInterleaved1F1B with two stages per rank "
            "and n_microbatches of at least four times the stages; Megatron-LM: "
            "--num-layers-per-virtual-pipeline-stage.",
            safe=False,
            why_safe="The same sums in another order; activations of more micro-batches need "
            "memory, and smaller micro-batches may use the GPU less well.",
            effect={"kind": "ranks_balanced"},
            prove="Record the same steps on all ranks: time in sends and receives alone must fall "
            "by more than computing grows.",
        )
    ]


SEND = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"


def example() -> tuple[Evidence, float]:
    """Two stages, three steps: the second waits 4 ms for the first, then computes 4 ms itself.

    The first waits 4 ms for the gradients that come back. 8 ms a step on two devices.
    """
    first, second = Story(rank=0), Story(rank=1)
    for number in range(3):
        at = number * 10_000
        for story in (first, second):
            story.step(number, at, at + 10_000)
        there, back = (at + 4000, at + 5000), (at + 9000, at + 10_000)
        first.op("aten::mm", at, at + 10)
        begin = at + 10 if number == 0 else at
        first.launch(GEMM, (max(at - 50, 0), max(at - 40, 5)), (begin, at + 4000))
        first.launch(SEND, (at + 30, at + 35), there, lane=20, blocks=8)
        first.launch(SEND, (at + 40, at + 45), (at + 5000, at + 10_000), lane=20, blocks=8)
        waits = (begin, at + 5000)
        second.launch(SEND, (max(at - 50, 0), max(at - 40, 5)), waits, lane=20, blocks=8)
        second.op("aten::mm", at + 20, at + 30)
        second.launch(GEMM, (at + 22, at + 28), (at + 5000, at + 9000))
        second.launch(SEND, (at + 40, at + 45), back, lane=20, blocks=8)
    return side_by_side([first, second]), 3 * 8e-3 - 10e-6
