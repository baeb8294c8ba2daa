"""Data parallel training: buckets, buffers and the meetings of ranks in collectives.

A collective's kernel starts on each rank when that rank is ready and ends on all of them at the
same instant: the last start plus the time to move the bytes.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from examples.simulate.hardware import START_LATENCY_NS, Kernel
from examples.simulate.host import COMMUNICATION_STREAM, COMPUTE_STREAM, Host
from examples.simulate.models import elementwise

COLLECTIVE_FLOOR_NS = 14_000
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
BROADCAST = "ncclDevKernel_Broadcast_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


class Meeting:
    """Where the ranks, each simulated by its own thread, learn when the others arrived."""

    def __init__(self, world_size: int, bandwidth: float) -> None:
        """``bandwidth`` is what one rank can send, in bytes per second."""
        self.world_size = world_size
        self.bandwidth = bandwidth
        self.barrier = threading.Barrier(world_size)
        self._starts: dict[int, dict[int, int]] = defaultdict(dict)
        self._lock = threading.Lock()

    def __enter__(self) -> Meeting:
        """One rank begins."""
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """One rank is done; when it failed, the others must not wait for it."""
        if kind is not None:
            self.barrier.abort()

    def end_ns(self, index: int, rank: int, start_ns: int, moved_bytes: float) -> int:
        """When collective number ``index`` is over, for every rank."""
        with self._lock:
            self._starts[index][rank] = start_ns
        self.barrier.wait()
        share = 2 * (self.world_size - 1) / self.world_size
        transfer = COLLECTIVE_FLOOR_NS + moved_bytes * share / self.bandwidth * 1e9
        return max(self._starts[index].values()) + round(transfer)


@dataclass
class DataParallel:
    """DistributedDataParallel on one rank. ``bucket_bytes`` as in the real one, 25 MiB."""

    host: Host
    meeting: Meeting
    bucket_bytes: int = 25 * 1024 * 1024
    find_unused: bool = False
    broadcast_buffers: bool = False
    copies: bool = False
    parameters: int = 0
    buffers: int = 0
    synchronizing: bool = True
    _index: int = 0
    _filled: int = 0
    _copied: list[int] = field(default_factory=list)

    def before_forward(self) -> None:
        """Broadcast buffers, as each forward of a model with batch norm does by default."""
        if not (self.broadcast_buffers and self.synchronizing and self.buffers):
            return
        host = self.host
        with host.op("aten::flatten_dense_tensors"):
            self._views(self.buffers)
            with host.op("aten::cat"):
                host.launch(elementwise("CatArrayBatchedCopy", 9_600, "fp32"))
        self.collective("c10d::broadcast_", "nccl:broadcast", BROADCAST, 9_600)
        host.gpu.after(COMPUTE_STREAM, COMMUNICATION_STREAM)
        with host.op("aten::unflatten_dense_tensors"):
            self._views(self.buffers)
        for _ in range(self.buffers):
            with host.op("aten::copy_"):
                host.copy("DtoD", 512, pinned=True)

    def after_forward(self) -> None:
        """Walk the graph for parameters that this iteration does not use."""
        if self.find_unused and self.synchronizing:
            name = "torch.distributed.ddp.reducer::search_unused_parameters"
            with self.host.op(name):
                self.host.spend(26_000 * self.parameters, "search unused")

    def ready(self, elements: int) -> None:
        """A gradient is there: copy it to its bucket, reduce the bucket once it is full."""
        if not self.synchronizing:
            return
        if self.copies:
            with self.host.op("torch::distributed::reducer::mul_out"), self.host.op("aten::mul"):
                self.host.launch(elementwise("MulFunctor<float>", elements, "fp32"))
            self._copied.append(elements)
        self._filled += elements
        if self._filled * 4 >= self.bucket_bytes:
            self._reduce()

    def final(self) -> None:
        """Reduce what is left and make the compute stream wait for it."""
        if not self.synchronizing:
            return
        if self._filled:
            self._reduce()
        host = self.host
        host.call("cudaStreamWaitEvent", 1_500)
        host.gpu.after(COMPUTE_STREAM, COMMUNICATION_STREAM)
        for elements in self._copied:
            name = "torch.distributed.ddp.reducer::copy_bucket_to_grad"
            with host.op(name), host.op("aten::copy_"):
                host.copy("DtoD", elements * 4, pinned=True)
        self._copied.clear()

    def _reduce(self) -> None:
        filled, self._filled = self._filled, 0
        self.collective("c10d::allreduce_", "nccl:all_reduce", ALL_REDUCE, filled)

    def collective(self, op: str, annotation: str, kernel_name: str, elements: int) -> None:
        """Launch a collective on its own stream behind what the compute stream holds."""
        host, rank = self.host, self.host.recorder.rank
        size = self.meeting.world_size
        facts: dict[str, Any] = {
            "Collective name": op.split("::")[1].rstrip("_"),
            "In msg nelems": elements,
            "Out msg nelems": elements,
            "Group size": size,
            "dtype": "Float",
            "Process Group Name": "0",
            "Process Group Description": "default_pg",
            "Process Group Ranks": str(list(range(size))),
        }
        with (
            host.op(op, dims=[[[elements]]], types=["TensorList"]),
            host.op("record_param_comms", **facts),
            host.annotation(annotation),
        ):
            host.call("cudaEventRecord", 1_200)
            host.call("cudaStreamWaitEvent", 1_300)
            host.gpu.after(COMMUNICATION_STREAM, COMPUTE_STREAM)
            begin = host.now
            correlation = host.call("cudaLaunchKernelExC", 9_000)
            start = host.gpu.earliest(COMMUNICATION_STREAM, begin + START_LATENCY_NS)
            end = self.meeting.end_ns(self._index, rank, start, elements * 4.0)
            self._index += 1
            host.gpu.occupy(COMMUNICATION_STREAM, start, end)
            kernel = Kernel(kernel_name, 24, 544)
            host.record_kernel(kernel, COMMUNICATION_STREAM, correlation, start, end, **facts)
            host.link(correlation, begin, COMMUNICATION_STREAM, start)
            host.call("cudaEventRecord", 1_200)

    def _views(self, count: int) -> None:
        for _ in range(count):
            self.host.simple_op("aten::view", 900)
