"""What holds the main thread up beside the step itself: memory calls, files, logs, Python."""

from __future__ import annotations

from examples.simulate.framework import Network, read_scalar
from examples.simulate.hardware import START_LATENCY_NS, Kernel
from examples.simulate.host import COMPUTE_STREAM, Host
from examples.simulate.models import elementwise

FREE_NS = 240_000
MALLOC_NS = 420_000


def checkpoint(host: Host, parameters: list[int], write_s: float) -> None:
    """``torch.save(model.state_dict())``: every tensor to the host, then a file is written."""
    with (
        host.frame("train.py(71): save_checkpoint"),
        host.frame("torch/serialization.py(966): save"),
    ):
        for elements in parameters:
            with host.op("aten::to"), host.op("aten::_to_copy"), host.op("aten::copy_"):
                host.copy("DtoH", elements * 4, pinned=False)
                host.synchronize()
        with host.frame("<built-in method write_record of PyTorchFileWriter object>"):
            host.spend(write_s * 1e9, "write checkpoint")


def evaluate(host: Host, network: Network, batches: int, metric_s: float) -> None:
    """A validation pass: forward only, a scalar read and metric code on the CPU per batch."""
    with host.frame("train.py(84): evaluate"):
        for _ in range(batches):
            network.forward()
            read_scalar(host)
            with host.frame("train.py(92): confusion_matrix"):
                host.spend(metric_s * 1e9, "metric")


def log_histograms(host: Host, parameters: list[int], write_s: float) -> None:
    """``writer.add_histogram`` for every parameter: copy to the host and bin there."""
    with host.frame("train.py(64): log_histograms"):
        for elements in parameters:
            frame = "torch/utils/tensorboard/writer.py(485): add_histogram"
            with host.frame(frame):
                with host.op("aten::to"), host.op("aten::_to_copy"), host.op("aten::copy_"):
                    host.copy("DtoH", elements * 4, pinned=False)
                    host.synchronize()
                host.spend(write_s / len(parameters) * 1e9, "bin and write")


def assignment_on_cpu(host: Host, seconds: float) -> None:
    """A matching solved by SciPy between forward and backward: down, compute, up again."""
    with host.frame("train.py(45): match_targets"):
        with host.op("aten::to"), host.op("aten::_to_copy"), host.op("aten::copy_"):
            host.copy("DtoH", 400_000, pinned=False)
            host.synchronize()
        with host.frame("scipy/optimize/_lsap.py(20): linear_sum_assignment"):
            host.spend(seconds * 1e9, "assignment")
        with host.op("aten::to"), host.op("aten::_to_copy"), host.op("aten::copy_"):
            host.copy("HtoD", 80_000, pinned=False)
            host.synchronize()


def python_work(host: Host, seconds: float) -> None:
    """Plain Python between operators, such as building a mask from lists."""
    with host.frame("train.py(52): build_targets"):
        host.spend(seconds * 1e9, "python work")


def loop_over_rows(host: Host, rows: int) -> None:
    """A loss written as a Python loop over rows: select, sub, copy for each of them."""
    small = elementwise("sub", 512, "fp32", 2)
    with host.frame("train.py(57): loss_by_row"):
        for _ in range(rows):
            host.spend(1_500, "loop")
            host.simple_op("aten::select", 2_000, [[rows, 512], [], []])
            with host.op("aten::sub", dims=[[512], [512]]):
                host.launch(small)
            with host.op("aten::copy_", dims=[[512], [512]]):
                host.launch(elementwise("direct_copy_kernel_cuda", 512, "fp32"))


def empty_cache(host: Host, segments: int) -> None:
    """``torch.cuda.empty_cache()``: give every cached block back, which waits for the GPU."""
    with host.frame("torch/cuda/memory.py(218): empty_cache"):
        host.synchronize(None)
        for _ in range(segments):
            host.call("cudaFree", FREE_NS)


def allocate(host: Host, segments: int) -> None:
    """Operators that find no cached block and ask the driver."""
    for _ in range(segments):
        with host.op("aten::empty"):
            host.call("cudaMalloc", MALLOC_NS)


def allocator_retry(host: Host, segments: int) -> None:
    """Out of cached blocks near full memory: free some, then allocate; both wait."""
    with host.op("aten::empty_strided"), host.op("aten::empty"):
        host.synchronize(None)
        for _ in range(segments):
            host.call("cudaFree", FREE_NS)
        for _ in range(segments):
            host.call("cudaMalloc", MALLOC_NS)


def collect_garbage(host: Host, seconds: float) -> None:
    """The garbage collector runs; nothing is recorded of it."""
    host.now += round(seconds * 1e9)


def graph_launch(host: Host, kernels: list[Kernel], recorded: bool) -> None:
    """Replay a captured CUDA graph; its kernels share the launch's correlation id."""
    begin = host.now
    correlation = host.call("cudaGraphLaunch", 60_000)
    issued = begin + 25_000 + START_LATENCY_NS
    for index, kernel in enumerate(kernels):
        duration = host.noisy(kernel.duration_ns(host.gpu.model), kernel.name, 0.02)
        start, end = host.gpu.enqueue(COMPUTE_STREAM, issued, duration)
        if recorded:
            more = {"graph node id": index + 1}
            host.record_kernel(kernel, COMPUTE_STREAM, correlation, start, end, **more)
            if index == 0:
                host.link(correlation, begin, COMPUTE_STREAM, start)
