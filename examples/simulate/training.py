"""The simulated training job: a plan of what happens in each step, run on every rank.

``run(plan)`` returns one ``Run`` per rank. Instants are nanoseconds on a clock that all ranks
share; the window of a run is the one whyidle judges: from the first step mark to the end of the
last mark or of the last device activity, whichever is later.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from examples.simulate import optimizers, pauses
from examples.simulate.distributed import DataParallel, Meeting
from examples.simulate.framework import (
    Network,
    anomaly_check,
    boolean_mask,
    compile_once,
    read_scalar,
)
from examples.simulate.hardware import Gpu, GpuModel
from examples.simulate.host import COMPUTE_STREAM, COPY_STREAM, Host
from examples.simulate.loader import Loader
from examples.simulate.models import Model, resnet
from examples.simulate.recorder import Recorder


@dataclass(frozen=True)
class Plan:
    """Everything that a simulated run does; the defaults are a healthy run. Times in seconds."""

    model: Model = field(default_factory=resnet)
    steps: int = 6
    first_step: int = 3
    seed: int = 1
    with_stack: bool = False
    # data
    workers: int = 8
    sample_s: float = 0.0003
    worker_start_s: float = 0.0
    restart_at: tuple[int, ...] = ()
    lead_s: float = 30.0
    pinned: bool = True
    # the step
    scalar_reads: int = 0
    reads_inside: bool = False
    masks: int = 0
    synchronizes: int = 0
    python_s: float = 0.0
    loop_rows: int = 0
    cpu_op_s: float = 0.0
    optimizer: str = "fused"
    compile_at: tuple[tuple[int, float], ...] = ()
    anomaly: bool = False
    graph: str = "none"
    # memory
    empty_cache_segments: int = 0
    retry_segments: int = 0
    retries: int = 0
    # pauses
    checkpoint_at: tuple[tuple[int, float], ...] = ()
    evaluate_at: tuple[tuple[int, int, float], ...] = ()
    log_s: float = 0.0
    collect_at: tuple[tuple[int, int, float], ...] = ()
    profiler_outlier_s: float = 0.0
    # ranks
    ranks: int = 1
    bandwidth: float = 200e9
    slow_rank: int | None = None
    slow_s: float = 0.0
    accumulate: int = 1
    no_sync: bool = True
    find_unused: bool = False
    broadcast_buffers: bool = False
    bucket_copies: bool = False


@dataclass(frozen=True)
class Run:
    """What one rank recorded and when its window began and ended (nanoseconds)."""

    recorder: Recorder
    marks: tuple[tuple[int, int], ...]
    start_ns: int
    end_ns: int

    @property
    def wall_s(self) -> float:
        """Seconds of the judged window."""
        return (self.end_ns - self.start_ns) / 1e9


def run(plan: Plan, trace_name: str = "simulated") -> list[Run]:
    """Simulate every rank; the answer does not depend on how the threads are scheduled."""
    meeting = Meeting(plan.ranks, plan.bandwidth)
    if plan.ranks == 1:
        return [_Rank(plan, 0, meeting, trace_name).train()]
    with ThreadPoolExecutor(plan.ranks) as pool:
        ranks = [_Rank(plan, rank, meeting, trace_name) for rank in range(plan.ranks)]
        return list(pool.map(_Rank.train, ranks))


class _Rank:
    """One process of the job."""

    def __init__(self, plan: Plan, rank: int, meeting: Meeting, trace_name: str) -> None:
        self.plan, self.rank, self.meeting = plan, rank, meeting
        gpu = GpuModel()
        flags = {"record_shapes": 1, "with_stack": int(plan.with_stack)}
        recorder = Recorder(gpu, rank, plan.ranks, rank, trace_name, flags=flags)
        self.host = Host(recorder, Gpu(gpu), plan.seed)
        self.host.now = 50_000_000
        self.host.with_stack = plan.with_stack
        model = plan.model
        self.network = Network(self.host, model)
        self.parameters = model.parameters
        self.loader = Loader(
            self.host, model.batch, plan.workers, plan.sample_s * 1e9, plan.worker_start_s * 1e9
        )
        self.parallel = DataParallel(
            self.host,
            meeting,
            find_unused=plan.find_unused,
            broadcast_buffers=plan.broadcast_buffers,
            copies=plan.bucket_copies,
            parameters=len(self.parameters),
            buffers=sum(layer.buffers for layer in model.layers),
        )

    def train(self) -> Run:
        """The profiled steps; a rank that fails releases those that wait for it."""
        with self.meeting:
            return self._train()

    def _train(self) -> Run:
        """The profiled steps, then the wait with which the profiler ends."""
        plan, host = self.plan, self.host
        host.begin_step(plan.first_step)
        if plan.workers:
            self.loader.running_for(round(plan.lead_s * 1e9))
        host.first_call_extra_ns = round(plan.profiler_outlier_s * 1e9)
        marks: list[tuple[int, int]] = []
        for index in range(plan.steps):
            number = plan.first_step + index
            host.begin_step(number)
            begin = host.now
            mark = host.annotation(f"ProfilerStep#{number}")
            with mark, host.frame("train.py(20): train_step"):
                self._step(index)
            marks.append((begin, host.now))
            host.spend(30_000, "profiler step")
        host.synchronize(None)
        end = max(marks[-1][1], host.gpu.idle_at())
        return Run(host.recorder, tuple(marks), marks[0][0], end)

    def _step(self, index: int) -> None:
        plan, host = self.plan, self.host
        host.spend(20_000, "step python")
        if index in plan.restart_at:
            self.loader.restart()
        for micro in range(plan.accumulate):
            self.loader.next_batch()
            self._to_device()
            if micro == 0:
                optimizers.zero_grad(host, self.parameters)
            self._compute(index, last=micro == plan.accumulate - 1)
        for _ in range(plan.synchronizes):
            host.synchronize(None)
        if not plan.reads_inside:
            for _ in range(plan.scalar_reads):
                read_scalar(host)
        optimizers.step(host, self.parameters, plan.optimizer)
        self._afterwards(index)

    def _to_device(self) -> None:
        host, model = self.host, self.plan.model
        moved = model.batch * model.sample_bytes
        with host.op("aten::to"), host.op("aten::_to_copy"), host.op("aten::copy_"):
            host.copy("HtoD", moved, self.plan.pinned, COPY_STREAM if self.plan.pinned else 7)
            if self.plan.pinned:
                host.gpu.after(COMPUTE_STREAM, COPY_STREAM)
            else:
                host.synchronize()

    def _compute(self, index: int, last: bool) -> None:
        plan, host = self.plan, self.host
        for at, seconds in plan.compile_at:
            if at == index:
                compile_once(host, seconds, at)
        if plan.graph != "none":
            kernels = [k for layer in plan.model.layers for k in (*layer.forward, *layer.backward)]
            pauses.graph_launch(host, kernels, plan.graph == "recorded")
            return
        self.parallel.synchronizing = plan.ranks > 1 and (last or not plan.no_sync)
        if plan.ranks > 1:
            with host.annotation("DistributedDataParallel.forward"):
                self.parallel.before_forward()
                self.network.forward(self._between())
                self.parallel.after_forward()
        else:
            self.network.forward(self._between())
        self._before_backward()
        checked: Callable[[], None] | None = (lambda: anomaly_check(host)) if plan.anomaly else None
        self.network.backward(self.parallel.ready, checked, self.parallel.final)

    def _between(self) -> Callable[[int], None] | None:
        plan, host, count = self.plan, self.host, len(self.plan.model.layers)
        points = plan.scalar_reads if plan.reads_inside else 0

        def after(index: int) -> None:
            if points and _due(index, count, points):
                read_scalar(host)
            if plan.masks and _due(index, count, plan.masks):
                boolean_mask(host)
            if plan.retries and _due(index, count, plan.retries):
                pauses.allocator_retry(host, plan.retry_segments)
            if plan.empty_cache_segments and _due(index, count, plan.empty_cache_segments):
                pauses.allocate(host, 1)

        return after

    def _before_backward(self) -> None:
        plan, host = self.plan, self.host
        if plan.python_s:
            pauses.python_work(host, plan.python_s)
        if plan.loop_rows:
            pauses.loop_over_rows(host, plan.loop_rows)
        if plan.cpu_op_s:
            pauses.assignment_on_cpu(host, plan.cpu_op_s)
        if plan.slow_rank == self.rank:
            host.spend(plan.slow_s * 1e9, "longer input", 0.02)

    def _afterwards(self, index: int) -> None:
        plan, host = self.plan, self.host
        if plan.log_s:
            pauses.log_histograms(host, self.parameters, plan.log_s)
        for at, seconds in plan.checkpoint_at:
            if at == index:
                pauses.checkpoint(host, self.parameters, seconds)
        for at, batches, seconds in plan.evaluate_at:
            if at == index:
                pauses.evaluate(host, self.network, batches, seconds)
        for at, rank, seconds in plan.collect_at:
            if at == index and rank == self.rank:
                pauses.collect_garbage(host, seconds)
        if plan.empty_cache_segments:
            pauses.empty_cache(host, plan.empty_cache_segments)


def _due(index: int, count: int, times: int) -> bool:
    """Whether the ``times`` events spread over ``count`` layers include this layer."""
    return (index + 1) * times // count > index * times // count
