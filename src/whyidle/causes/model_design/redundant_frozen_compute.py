"""A frozen part of the model computes in every step what could have been computed once.

Looks like: utilisation is high and nobody complains; a pretrained encoder, teacher or text tower
runs without gradients before the part that is trained; the same samples come back every epoch.

How we tell: in a run with a backward pass, matrix products, convolutions or attention are launched
by operators outside autograd (no sequence number on any operator around them), outside the backward
pass, the optimizer and evaluation, in at least half of three or more steps, and take at least 10 %
of the computing time. It has no seconds of its own: whether the inputs come back is not in a trace.

Change: run the frozen part once over the data set and store its outputs (latents, embeddings);
where the augmented input changes every epoch, store a few augmented versions, or move the frozen
part to ``torch.inference_mode``, a lower precision or a compiled graph.

May be wrong: the inputs may differ each time (random augmentation, teachers that follow the
student, momentum encoders); then only precision and compilation help. A frozen part that runs
without ``no_grad`` has sequence numbers and is not seen here.

Sources: autograd mechanics in the PyTorch documentation; report of cached latents (5 to 3.2 minutes
an epoch).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from whyidle.diagnosis import Place, Remedy, Sign
from whyidle.stories import Story
from whyidle.views import names
from whyidle.views.activities import CODE, NODE
from whyidle.views.host import Flags
from whyidle.views.nest import inside

if TYPE_CHECKING:
    from whyidle.model import Evidence
    from whyidle.views import Views

TITLE = "Frozen layers computed in every step"
STATUS = "preview"
OBSERVES = ("device", "ops", "steps")
HEAVY = ("gemm", "conv", "attention")
LEAST_SHARE = 0.1
FEWEST_STEPS = 3


def observations(views: Views) -> list[Sign]:
    """Heavy kernels outside autograd in most steps of a training run, per rank."""
    kernels = views.kernels
    loose = kernels.filter(pl.Series(_outside_autograd(views, kernels)))
    return [
        sign
        for rank in loose["rank"].unique(maintain_order=True).to_list()
        if (sign := _sign(views, kernels, loose, rank)) is not None
    ]


def _outside_autograd(views: Views, kernels: pl.DataFrame) -> Flags:
    """Per kernel, whether it is heavy and nothing around its launch belongs to training."""
    nest, host = views.host.nest, views.host
    call = kernels["call"].to_numpy().astype(np.intp)
    family = kernels["family"].is_in(HEAVY) & ~kernels["optimizer"]
    heavy: Flags = family.to_numpy() & (call >= 0)
    if not heavy.any():
        return heavy
    nodes = names.matching(nest.spans["name"], lambda name: name.startswith(NODE)).to_numpy()
    numbered = views.evidence.table("spans")["sequence"].is_not_null().to_numpy()
    trained = inside(nest, nodes | numbered[nest.spans["row"].to_numpy()])
    judged = host.activity == CODE["evaluation"]
    learning = set(nest.spans["rank"].filter(pl.Series(nodes)).unique().to_list())
    learns = kernels["rank"].is_in(list(learning), nulls_equal=True).to_numpy()
    at = np.maximum(call, 0)
    found: Flags = heavy & learns & ~trained[at] & ~judged[at]
    return found


def _sign(
    views: Views, kernels: pl.DataFrame, loose: pl.DataFrame, rank: int | None
) -> Sign | None:
    mine = pl.col("rank").eq_missing(rank)
    rows = loose.filter(mine)
    steps = views.marks.filter(mine).select("start_ns", "end_ns").sort("start_ns")
    begin, end = steps["start_ns"].to_numpy(), steps["end_ns"].to_numpy()
    starts = np.sort(rows["start_ns"].to_numpy())
    held = np.searchsorted(starts, end) > np.searchsorted(starts, begin)
    took = (pl.col("end_ns") - pl.col("start_ns")).sum()
    spent_ns = int(rows.select(took).item())
    share = spent_ns / max(int(kernels.filter(mine).select(took).item()), 1)
    if steps.height < FEWEST_STEPS or held.sum() * 2 < steps.height or share < LEAST_SHARE:
        return None
    per_step_ms = spent_ns / steps.height / 1e6
    top = rows.group_by("op").agg(took.alias("ns")).sort("ns", "op", descending=[True, False])
    return Sign(
        level="suspected",
        what=f"{per_step_ms:.4g} ms of kernels per step ({share:.0%} of all kernel time) run "
        "without gradients. If their inputs come back, their outputs can be stored.",
        where=[Place(op=op, rank=rank) for op in top["op"].head(3).to_list()],
        remedies=_remedies(),
    )


def _remedies() -> list[Remedy]:
    return [
        Remedy(
            what="Store the outputs of the frozen part",
            how="Run it once over the data set under torch.inference_mode() and save the results "
            "(numpy.memmap or HDF5, one row per sample); let the data set return them.",
            safe=False,
            why_safe="Right only where the same input always meets the same weights: no random "
            "augmentation before it, no dropout in it, no updates to it.",
            effect={"kind": "kernels_scaled", "factor": 0.0, "only": "claimed"},
            prove="Record the same steps again: its kernels must be gone; the loss of the first "
            "steps must be the same.",
        )
    ]


def observed_example() -> tuple[Evidence, str]:
    """Four steps of 10 ms of kernels; 4 ms of them in an encoder that runs without gradients."""
    story = Story()
    for number in range(4):
        at = number * 10_000
        story.step(number, at, at + 10_000)
        story.op("aten::conv2d", at, at + 12)
        story.launch("implicit_convolve_sgemm", (at + 2, at + 8), (at + 8, at + 4008))
        story.op("aten::linear", at + 20, at + 40, sequence=number)
        story.launch("ampere_sgemm_128x64_tn", (at + 22, at + 28), (at + 4008, at + 7008))
        story.op(f"{NODE}AddmmBackward0", at + 50, at + 80, thread="backward", sequence=number)
        story.op("aten::mm", at + 52, at + 75, thread="backward")
        run = (at + 7008, at + 10_008)
        story.launch("ampere_sgemm_128x64_nt", (at + 55, at + 60), run, thread="backward")
    return story.evidence(), "4 ms of kernels per step (40% of all kernel time)"
