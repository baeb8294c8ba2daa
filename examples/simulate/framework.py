"""Forward, backward and the loss, as operators of the framework on the simulated host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack

from examples.simulate.hardware import Kernel
from examples.simulate.host import INNER_OP_SELF_NS, OP_SELF_NS, Host
from examples.simulate.models import Layer, Model, elementwise

MODULE_CALL_NS = 14_000
ENGINE_NS = 8_000
REDUCE = Kernel(
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float, "
    "float, float, float>, unsigned int, float, 4> >(at::native::ReduceOp<float>)",
    16,
    512,
    bytes=1e5,
)
LOSS = Kernel(
    "void (anonymous namespace)::softmax_warp_forward<float, float, float, 10, true, false>"
    "(float*, float const*, int, int, int)",
    64,
    128,
    bytes=4e6,
)


class Network:
    """A model at work on a host; sequence numbers join backward nodes to forward operators."""

    def __init__(self, host: Host, model: Model) -> None:
        """Take the host to run on."""
        self.host = host
        self.model = model
        self._sequence = 100
        self._made: list[tuple[Layer, int, int]] = []

    def forward(self, between: Callable[[int], None] | None = None) -> None:
        """Every layer, then the loss; ``between`` is called after each layer with its index."""
        self._made = []
        for index, layer in enumerate(self.model.layers):
            with self.host.frame(f"nn.Module: {layer.module}_{index}"):
                self.host.spend(MODULE_CALL_NS, "module call")
                self._layer(layer)
            if between is not None:
                between(index)
        self.host.spend(MODULE_CALL_NS, "module call")
        with self.host.op("aten::cross_entropy_loss"):
            with self.host.op("aten::log_softmax"):
                self.host.launch(LOSS)
            with self.host.op("aten::nll_loss_nd"), self.host.op("aten::nll_loss_forward"):
                self.host.launch(REDUCE)

    def _layer(self, layer: Layer) -> None:
        self._sequence += 1
        start = self.host.now
        dims = [list(d) for d in layer.dims]
        nested(self.host, layer.ops, layer.forward, dims, layer.type_name, self._sequence)
        self._made.append((layer, self._sequence, start))

    def backward(
        self,
        ready: Callable[[int], None] | None = None,
        checked: Callable[[], None] | None = None,
        final: Callable[[], None] | None = None,
    ) -> None:
        """Backward of the last forward, on the autograd thread.

        ``ready`` hears the elements of each parameter whose gradient is ready, ``checked`` runs
        after every node, ``final`` at the end, still on the autograd thread.
        """
        host = self.host
        with host.op("aten::ones_like", OP_SELF_NS):
            host.launch(elementwise("FillFunctor<float>", 1, "fp32"))
        with host.on_autograd_thread():
            for layer, sequence, forward_ns in reversed(self._made):
                self._node(layer, sequence, forward_ns, checked)
                for elements in layer.parameters:
                    self._accumulate(elements, ready)
            if final is not None:
                final()

    def _node(
        self, layer: Layer, sequence: int, forward_ns: int, checked: Callable[[], None] | None
    ) -> None:
        host = self.host
        args = {"Sequence number": sequence, "Fwd thread id": 1}
        engine = f"autograd::engine::evaluate_function: {layer.node}"
        begin = host.now
        with host.op(engine, ENGINE_NS, **args):
            here = (host.autograd, begin + 1)
            host.recorder.flow("fwdbwd", sequence, (host.main, forward_ns), here, False)
            with host.op(layer.node, INNER_OP_SELF_NS, **args):
                each = len(layer.backward) // max(1, len(layer.backward_ops))
                for number, name in enumerate(layer.backward_ops):
                    kernels = layer.backward[number * each : (number + 1) * each]
                    dims = [list(d) for d in layer.backward_dims[number]]
                    nested(host, (name,), kernels, dims, layer.type_name)
            if checked is not None:
                checked()

    def _accumulate(self, elements: int, ready: Callable[[int], None] | None) -> None:
        name = "torch::autograd::AccumulateGrad"
        with self.host.op(f"autograd::engine::evaluate_function: {name}", ENGINE_NS):
            with self.host.op(name, INNER_OP_SELF_NS):
                self.host.simple_op("aten::detach", INNER_OP_SELF_NS)
            if ready is not None:
                ready(elements)


def nested(
    host: Host,
    names: Sequence[str],
    kernels: Sequence[Kernel],
    dims: list[list[int]] | None = None,
    type_name: str = "float",
    sequence: int | None = None,
) -> None:
    """Operators inside each other, the innermost of which launches the kernels."""
    if not names:
        for kernel in kernels:
            host.launch(kernel)
        return
    args = {} if sequence is None else {"Sequence number": sequence, "Fwd thread id": 0}
    types = None if dims is None else [type_name] * len(dims)
    with host.op(names[0], OP_SELF_NS, dims, types, **args):
        nested(host, names[1:], kernels, dims, type_name)


def anomaly_check(host: Host) -> None:
    """What anomaly mode adds after a node: isnan, any, item; the last one waits for the GPU."""
    with host.op("aten::isnan"), host.op("aten::ne"):
        host.launch(elementwise("CompareEqFunctor", 65_536, "fp32", 2))
    with host.op("aten::_is_any_true"), host.op("aten::any"):
        host.launch(REDUCE)
    read_scalar(host)


def read_scalar(host: Host) -> None:
    """``tensor.item()``: copy one value to the host and wait for it."""
    with host.op("aten::item", OP_SELF_NS, [[]]), host.op("aten::_local_scalar_dense"):
        host.copy("DtoH", 4, pinned=False)
        host.synchronize()


def boolean_mask(host: Host, elements: int = 65_536) -> None:
    """``x[mask]``: nonzero needs the count on the host before the index can be built."""
    with host.op("aten::index", OP_SELF_NS, [[elements], [elements]]):
        with host.op("aten::nonzero", OP_SELF_NS, [[elements]], ["bool"]):
            host.launch(REDUCE)
            host.copy("DtoH", 8, pinned=False)
            host.synchronize()
            host.launch(elementwise("nonzero_write", elements, "fp32"))
        host.launch(elementwise("index_kernel", elements, "fp32"))


def compile_once(host: Host, seconds: float, attempt: int) -> None:
    """torch.compile at work on a new shape, as it records itself."""
    names = (
        "dynamo",
        "entire_frame_compile",
        "_compile.compile_inner (dynamo_timed)",
        "compile_attempt_0",
        "compile_attempt_0 (dynamo_timed)",
    )
    inner = (
        ("bytecode_tracing (dynamo_timed)", 0.04),
        ("backend_compile", 0.10),
        ("create_aot_dispatcher_function", 0.20),
        ("inductor_compile", 0.16),
        ("fx_codegen_and_compile", 0.50),
    )
    host.simple_op("TorchDynamo Cache Lookup")
    with ExitStack() as stack:
        for name in names:
            stack.enter_context(host.op(name))
        for name, part in inner:
            with host.op(name):
                host.spend(seconds * part * 1e9, f"compile {attempt}")
