"""A training loop told span by span, with planted waits, kernels and launch behaviour."""

from __future__ import annotations

import random
from dataclasses import replace

from whyidle.model import Evidence, Facts
from whyidle.stories import Story

LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
STEPS = 8


def training(
    *,
    seed: int = 0,
    loader_us: int = 400,
    jitter: float = 0.05,
    kernels: tuple[tuple[str, str, int], ...] = (
        ("aten::conv2d", "conv_fprop", 300),
        ("aten::mm", "ampere_sgemm_tn", 200),
        ("aten::relu", "relu_kernel", 50),
    ),
    steps: int = STEPS,
    marked: bool = True,
    rank: int | None = 0,
    versions: dict[str, str] | None = None,
) -> Evidence:
    """Each step waits for the loader, then launches the kernels well ahead of the device.

    kernels: (operator, kernel, microseconds). The device is empty for as long as the loader takes
    and 10 us more.
    """
    chance = random.Random(seed)
    story = Story(rank=rank)
    at = 0

    def took(us: int) -> int:
        return max(1, round(us * chance.uniform(1 - jitter, 1 + jitter)))

    for number in range(steps):
        begin, waited = at, took(loader_us)
        story.annotate(LOADER, at, at + waited)
        call = at + waited
        run = call + 10
        for op, name, us in kernels:
            story.op(op, call, call + 9)
            length = took(us)
            story.launch(name, (call + 2, call + 8), (run, run + length))
            call, run = call + 9, run + length
        story.call("cudaDeviceSynchronize", call, run)
        at = run
        if marked:
            story.step(number, begin, at)
    evidence = story.evidence()
    return replace(evidence, facts=_told(evidence.facts, versions or {}))


def _told(facts: Facts, versions: dict[str, str]) -> Facts:
    return replace(facts, versions=versions)
