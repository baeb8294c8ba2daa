"""Tells tiny runs of several ranks, for the examples of causes and for tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import polars as pl

from whyidle.model import THREADS, DeviceInfo, Evidence, Facts, frame
from whyidle.stories import Story

REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
GEMM = "ampere_bf16_s16816gemm_bf16_128x128_tn"


def side_by_side(stories: Sequence[Story], backend: str | None = "nccl") -> Evidence:
    """The stories of the ranks of one job as one evidence, one source each."""
    spans, threads, sources = [], [], []
    devices: dict[tuple[int | None, int], DeviceInfo] = {}
    first = 0
    for number, story in enumerate(stories):
        told = story.evidence()
        devices |= told.facts.devices
        spans.append(
            told.table("spans").with_columns(
                pl.lit(number, pl.UInt16).alias("source"),
                pl.col("thread") + first,
                pl.col("correlation") + number * 1_000_000,
            )
        )
        owners = told.table("threads").with_columns(pl.col("thread") + first)
        threads.append(frame(THREADS, owners))
        first += owners.height
        sources.append(replace(told.sources[0], path=f"rank{number}"))
    rows = pl.concat(spans).sort(
        "start_ns", "end_ns", descending=[False, True], maintain_order=True
    )
    rows = rows.with_columns(pl.int_range(pl.len(), dtype=pl.UInt32).alias("row"))
    tables = {"spans": rows, "threads": pl.concat(threads)}
    facts = Facts(devices=devices, world_size=len(stories), backend=backend)
    return Evidence(tables, facts, tuple(sources))


class Ranks:
    """Ranks that compute each on its own and meet in an all-reduce at the end of every step.

    A step of a rank: the host does what ``step`` is told before it launches; the device computes,
    then enters the all-reduce, which ends for all 1 ms after the last has entered. Instants and
    lengths are whole microseconds.
    """

    MOVES = 1000

    def __init__(self, count: int, elements: int | None = None) -> None:
        """So many ranks, numbered from 0, one device each; they reduce ``elements`` floats."""
        self._told = {}
        if elements is not None:
            self._told = {"shapes": f"[[{elements}]]", "types": '["float"]'}
        self.stories = [Story(rank=rank) for rank in range(count)]
        self._free = 0
        self._steps = 0

    def step(
        self,
        computes: Sequence[int],
        idles: Sequence[int] | None = None,
        slow: Sequence[float] | None = None,
    ) -> None:
        """One step: rank r's device is empty for idles[r] and then computes for computes[r].

        It computes in kernels of 1 ms, or slow[r] times that. While it is empty, its host records
        nothing.
        """
        idles = idles or [0] * len(self.stories)
        slow = slow or [1.0] * len(self.stories)
        begin = self._free
        entered = [begin + i + c for i, c in zip(idles, computes, strict=True)]
        end = max(entered) + self.MOVES
        for number, story in enumerate(self.stories):
            story.step(self._steps, begin, end)
            at = begin + idles[number]
            # launched while the device still works, unless the host was held up
            lead = 40 if at == begin and begin else 0
            run, takes = at + (0 if lead else 10), round(1000 * slow[number])
            while run < entered[number]:
                stop = min(run - (run - at) % takes + takes, entered[number])
                story.op("aten::mm", at - lead, at - lead + 2)
                story.launch(GEMM, (at - lead, at - lead + 1), (run, stop))
                run, lead = stop, lead - 3
            call = at - lead, at - lead + 2
            story.op("c10d::allreduce_", at - lead, at - lead + 3, **self._told)
            story.launch(REDUCE, call, (entered[number], end), lane=20, blocks=24)
        self._free, self._steps = end, self._steps + 1

    def evidence(self) -> Evidence:
        """All ranks told so far, on one machine: each lists all its GPUs, as PyTorch does."""
        told = side_by_side(self.stories)
        known = dict(told.facts.devices)
        count = len(self.stories)
        listed: dict[tuple[int | None, int], DeviceInfo]
        listed = {(r, d): known[r, 0] for r in range(count) for d in range(count)}
        return replace(told, facts=replace(told.facts, devices=listed))
