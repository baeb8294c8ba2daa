"""The benchmark's runs: each has planted causes and, by simulation, the seconds they cost.

The truth of a planted cause is counterfactual: the wall seconds of the run minus those of the same
run without the cause, summed over ranks; several causes are taken out one after the other, so that
their seconds add up. ``band`` says how far the seconds that a diagnosis reports may lie from it, as
a ratio; it is wide where the two are not the same question (a synchronisation costs more than the
empty time it owns, for example).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from examples.simulate.models import perceptron, resnet, transformer
from examples.simulate.training import Plan, Run, run


@dataclass(frozen=True)
class Planted:
    """A cause that was put in, and the changes to the plan that take it out again."""

    cause: str
    without: Mapping[str, Any]
    band: tuple[float, float] = (0.8, 1.2)
    work: float = 1.0
    """Samples of the run without the cause, in units of those with it (a larger batch has more)."""


@dataclass(frozen=True)
class Scenario:
    """A run with planted causes, the biggest first; without any, it is a healthy run."""

    name: str
    story: str
    plan: Plan
    planted: tuple[Planted, ...] = ()
    unrecorded: bool = False

    def simulate(self) -> list[Run]:
        """The run itself, one entry per rank."""
        return run(self.plan, trace_name=f"simulated/{self.name}")

    def fixed(self) -> Plan:
        """The plan without any of the planted causes."""
        changes: dict[str, Any] = {}
        for planted in self.planted:
            changes.update(planted.without)
        return replace(self.plan, **changes)

    def true_seconds(self) -> dict[str, float]:
        """Cause -> wall seconds, summed over ranks, that taking it out saves, in order."""
        plan, before, found = self.plan, wall_s(run(self.plan)), {}
        for planted in self.planted:
            plan = replace(plan, **planted.without)
            after = wall_s(run(plan)) / planted.work
            found[planted.cause] = before - after
            before = after
        return found


def wall_s(runs: list[Run]) -> float:
    """Wall seconds of the judged windows, summed over ranks."""
    return sum(one.wall_s for one in runs)


_FILLING = resnet(batch=32, size=112)
"""13 ms on the GPU, 5 ms on the host, and every kernel but the last layer's fills the GPU."""


def _one(name: str, story: str, cause: str, plan: Plan, **without: Any) -> Scenario:
    band, work = without.pop("band", (0.8, 1.2)), without.pop("work", 1.0)
    return Scenario(name, story, plan, (Planted(cause, without, band, work),))


def _data() -> list[Scenario]:
    few = "data_loading.loader_workers_too_few"
    reads = Planted("small_work.host_sync_scalar_read", {"scalar_reads": 0}, (0.3, 3.0))
    return [
        Scenario(
            "slow_loader",
            "samples are decoded on the main thread; each layer's norm is read with .item()",
            Plan(
                model=resnet(size=112),
                workers=0,
                sample_s=0.0005,
                scalar_reads=57,
                reads_inside=True,
                optimizer="foreach",
                with_stack=True,
            ),
            (Planted(few, {"workers": 16}), reads),
        ),
        _one(
            "starved_loader",
            "two workers make a batch in 70 ms, the GPU needs 13 ms",
            few,
            Plan(workers=2, sample_s=0.00055, lead_s=0.0, steps=8),
            workers=16,
            lead_s=30.0,
        ),
        _one(
            "worker_restart",
            "every third step is a new epoch that starts its workers again",
            "data_loading.worker_restart_per_epoch",
            Plan(
                restart_at=(2, 5), worker_start_s=0.009, sample_s=0.0002, steps=8, with_stack=True
            ),
            restart_at=(),
        ),
        _one(
            "pageable_copy",
            "batches of 77 MB are copied from pageable memory, waited for",
            "data_loading.h2d_copy_blocking",
            Plan(model=resnet(sample_bytes=602_112), pinned=False),
            pinned=True,
        ),
    ]


def _host() -> list[Scenario]:
    many = transformer(depth=20, batch=2, length=128, width=512)
    return [
        _one(
            "scalar_read",
            "the norm of every layer's output is read with .item()",
            "small_work.host_sync_scalar_read",
            Plan(model=_FILLING, scalar_reads=57, reads_inside=True),
            scalar_reads=0,
            band=(0.3, 1.3),
        ),
        _one(
            "boolean_mask",
            "x[mask] after every layer",
            "small_work.host_sync_implicit",
            Plan(model=_FILLING, masks=57),
            masks=0,
            band=(0.3, 1.3),
        ),
        _one(
            "optimizer_for_loop",
            "AdamW loops over 242 tensors",
            "small_work.optimizer_launch_bound",
            Plan(model=many, optimizer="for_loop", steps=4),
            optimizer="fused",
            band=(0.5, 1.2),
        ),
        _one(
            "small_kernels",
            "80 tiny layers: the launching thread is never ahead of the GPU",
            "small_work.launch_bound_small_kernels",
            Plan(model=perceptron()),
            graph="recorded",
            band=(0.7, 1.3),
        ),
    ]


def _between() -> list[Scenario]:
    return [
        _one(
            "python_between",
            "the targets are built from Python lists before each backward pass",
            "small_work.python_between_ops",
            Plan(model=_FILLING, python_s=0.03, with_stack=True),
            python_s=0.0,
        ),
        _one(
            "python_loop",
            "the loss is a Python loop over 1000 rows",
            "small_work.python_loop_unvectorised",
            Plan(model=_FILLING, loop_rows=1000, steps=4),
            loop_rows=0,
            band=(0.5, 1.3),  # the start delay of its many kernels is told apart
        ),
        _one(
            "cpu_op",
            "a matching is solved by SciPy between forward and backward",
            "small_work.cpu_op_inside_step",
            Plan(model=_FILLING, cpu_op_s=0.02),
            cpu_op_s=0.0,
        ),
        _one(
            "recompile",
            "two steps meet a shape that was never compiled",
            "small_work.recompile_dynamic_shapes",
            Plan(compile_at=((2, 0.5), (4, 0.4))),
            compile_at=(),
        ),
    ]


def _device() -> list[Scenario]:
    return [
        _one(
            "small_batch",
            "a batch of 16 leaves most multiprocessors without a block",
            "small_work.batch_too_small",
            Plan(model=resnet(batch=16, size=28), graph="recorded"),
            model=resnet(batch=256, size=28),
            work=16.0,
            band=(0.5, 1.3),
        ),
        _one(
            "fp32",
            "convolutions in FP32 on a GPU with tensor cores",
            "memory.fp32_no_tensor_cores",
            Plan(model=resnet(precision="fp32"), steps=4),
            model=resnet(precision="tf32"),
            band=(0.5, 1.5),
        ),
        _one(
            "empty_cache",
            "torch.cuda.empty_cache() at the end of every step",
            "memory.empty_cache_in_loop",
            Plan(empty_cache_segments=16, with_stack=True),
            empty_cache_segments=0,
            band=(0.5, 1.2),
        ),
        _one(
            "allocator",
            "the allocator frees and allocates several times per step near full memory",
            "memory.allocator_pressure",
            Plan(retries=3, retry_segments=4),
            retries=0,
        ),
        _one(
            "unaligned",
            "hidden size 1023 and a vocabulary of 50,257 in BF16",
            "model_design.unaligned_shapes",
            Plan(model=transformer(6, 8, 512, 1023, "bf16", 50_257), steps=4),
            model=transformer(6, 8, 512, 1024, "bf16", 50_304),
            band=(0.3, 1.7),
        ),
    ]


def _ranks() -> list[Scenario]:
    wide = transformer(depth=6, batch=8, length=256, width=768)
    return [
        _one(
            "straggler",
            "rank 1 of 4 has longer inputs and arrives 20 ms late at the all-reduce",
            "communication.rank_imbalance",
            Plan(model=_FILLING, ranks=4, slow_rank=1, slow_s=0.02, steps=5),
            slow_rank=None,
            band=(0.6, 1.2),
        ),
        _one(
            "slow_network",
            "gradients go over a 3 GB/s link",
            "communication.exposed_communication",
            Plan(model=wide, ranks=2, bandwidth=3e9, steps=4),
            bandwidth=200e9,
            band=(0.6, 1.4),
        ),
        _one(
            "wrapper",
            "buffers are broadcast, buckets copied and unused parameters searched each step",
            "communication.wrapper_host_overhead",
            Plan(
                model=resnet(batch=16),
                ranks=2,
                find_unused=True,
                broadcast_buffers=True,
                bucket_copies=True,
            ),
            find_unused=False,
            broadcast_buffers=False,
            bucket_copies=False,
            band=(0.6, 1.4),
        ),
        _one(
            "every_microstep",
            "four micro-steps per optimizer step, each reduces all gradients",
            "communication.sync_every_microstep",
            Plan(model=wide, ranks=2, bandwidth=8e9, accumulate=4, no_sync=False, steps=3),
            no_sync=True,
            band=(0.6, 1.4),
        ),
        _one(
            "garbage",
            "the collector stops one of four ranks at random",
            "communication.gc_jitter",
            Plan(
                model=_FILLING,
                ranks=4,
                steps=8,
                collect_at=((2, 0, 0.06), (4, 3, 0.08), (6, 1, 0.07)),
            ),
            collect_at=(),
            band=(0.6, 1.2),
        ),
    ]


def _blind() -> list[Scenario]:
    return [
        _one(
            "anomaly",
            "torch.autograd.set_detect_anomaly(True) was left on",
            "blind_spots.debug_left_on",
            Plan(model=_FILLING, anomaly=True),
            anomaly=False,
            band=(0.3, 1.3),
        ),
        _one(
            "checkpoint",
            "a checkpoint is written in the window",
            "blind_spots.checkpoint_pause",
            Plan(checkpoint_at=((3, 0.25),), with_stack=True),
            checkpoint_at=(),
        ),
        _one(
            "evaluation",
            "a validation pass with metrics on the CPU",
            "blind_spots.eval_pause",
            Plan(evaluate_at=((3, 6, 0.03),), with_stack=True),
            evaluate_at=(),
        ),
        _one(
            "histograms",
            "histograms of all parameters are logged every step",
            "blind_spots.logging_overhead",
            Plan(log_s=0.03, with_stack=True),
            log_s=0.0,
        ),
        _one(
            "profiler_start",
            "the first CUDA call after the profiler starts takes 180 ms",
            "blind_spots.profiler_overhead",
            Plan(profiler_outlier_s=0.18),
            profiler_outlier_s=0.0,
        ),
        Scenario(
            "graph_unrecorded",
            "a CUDA graph whose kernels the profiler did not record, then a scalar read",
            Plan(graph="unrecorded", scalar_reads=1),
            unrecorded=True,
        ),
        Scenario("clean", "a healthy run", Plan()),
        Scenario(
            "clean_ranks", "a healthy run on two ranks", Plan(model=resnet(), ranks=2, steps=4)
        ),
    ]


def all_scenarios() -> dict[str, Scenario]:
    """Every scenario by name."""
    found = [*_data(), *_host(), *_between(), *_device(), *_ranks(), *_blind()]
    return {scenario.name: scenario for scenario in found}
