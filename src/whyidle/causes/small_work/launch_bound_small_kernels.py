"""The device runs dry because the host cannot launch small kernels fast enough.

Looks like: hundreds of kernels of a few microseconds with holes between them; one CPU core at
100 %; the step takes as long with half the batch; a faster GPU changes nothing.

How we tell: the device is empty, and the thread that launches the next work is inside a framework
operator, the autograd engine or the launch call itself. Time in the optimizer, in a
synchronisation and the launch lead that one destroyed, in the loader, in the allocator, in a first
use and in Python between operators is counted elsewhere. An operator that works for more than
0.2 ms without calling the device computes on the CPU and is counted elsewhere too.

Change: launch less often. Give the device more work per launch (larger batch), fuse operators
(``torch.compile``), or replay a recorded sequence (CUDA graphs, ``mode="reduce-overhead"``).

May be wrong: recording slows every operator down, most of all with ``with_stack=True`` or
``record_shapes=True``, so that a run at the edge looks launch-bound only while it is recorded. An
operator whose CPU cost is its own (a lookup table, an index search) is not helped by graphs.

Sources: CUDA semantics (CUDA graphs) and torch.compile in the PyTorch documentation; reports of
1.2x to 5.5x with graphs or compilation: pytorch/pytorch discussions of small transformers,
deepmodeling/deepmd-kit, keras-team/keras.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from whyidle.diagnosis import Finding, Remedy
from whyidle.stories import Story

if TYPE_CHECKING:
    import polars as pl

    from whyidle.model import Evidence, Facts
    from whyidle.views import Views

TITLE = "Kernels too small to launch in time"
STATUS = "stable"
NEEDS = ("device", "calls")


def claims(views: Views) -> pl.DataFrame:
    """Empty time while the launching thread was in an operator or a launch call."""
    return views.blamed("op", "launch")


def remedies(finding: Finding, facts: Facts) -> list[Remedy]:
    """Compile or record as a graph; else more work per launch."""
    prove = (
        "Record the same steps again: fewer launch calls per step, less empty time in operators, "
        "a shorter step. Then time the step without the profiler, and compare the loss curve."
    )
    more = _more_work(prove)
    if "GraphLaunch" in (finding.where[0].op or ""):
        return [_earlier_graphs(prove), more]
    return [
        Remedy(
            what="Compile the model, with CUDA graphs where shapes are fixed",
            how="model = torch.compile(model); if the input shapes never change, "
            'torch.compile(model, mode="reduce-overhead") replays recorded graphs. Without '
            "torch.compile: torch.cuda.make_graphed_callables(module, sample_args), or "
            "torch.cuda.graph(g) around forward, backward and optimizer on static buffers.",
            safe=False,
            why_safe="Fusing changes rounding; graphs need fixed shapes, static input buffers and "
            "no synchronisation or CPU-side branch inside, and keep their memory.",
            effect={"kind": "launches_as_graph"},
            prove=prove,
        ),
        more,
    ]


def _earlier_graphs(prove: str) -> Remedy:
    return Remedy(
        what="Launch fewer and larger graphs, earlier",
        how="The host is late in launching graphs that are recorded already. Capture more of the "
        "step in one graph, prepare the next inputs before the current graph ends, and keep "
        "reads of results (.item(), .cpu()) away from between two launches.",
        safe=False,
        why_safe="Graphs need fixed shapes and static buffers; inputs that are prepared early must "
        "not overwrite those still in use.",
        effect={"kind": "launches_scaled", "factor": 0.5},
        prove=prove,
    )


def _more_work(prove: str) -> Remedy:
    return Remedy(
        what="Give each launch more work",
        how="Raise the batch size while memory stays below about 90 %, or join small "
        "operators over lists of tensors into one (torch.stack and one batched call, "
        "torch._foreach_* through foreach=True, nn.MultiheadAttention's fused kernel through "
        "torch.nn.functional.scaled_dot_product_attention).",
        safe=False,
        why_safe="A larger batch changes training: adapt the learning rate and watch the loss.",
        effect={"kind": "launches_scaled", "factor": 0.5},
        prove=prove,
    )


def example() -> tuple[Evidence, float]:
    """Three steps of ten operators; each launches 66 us after it began, so 66 us are lost each."""
    story = Story()
    for number in range(3):
        begin = number * 1000
        story.step(number, begin, begin + 1000)
        for at in range(begin, begin + 1000, 100):
            story.op("aten::add", at, at + 90)
            story.launch("vectorized_elementwise_kernel", (at + 60, at + 66), (at + 66, at + 100))
    return story.evidence(), 3 * 10 * 66e-6
