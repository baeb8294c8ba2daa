"""Optimizer steps: one loop over parameters, lists of tensors at once (foreach), or fused."""

from __future__ import annotations

from examples.simulate.framework import nested
from examples.simulate.hardware import Kernel
from examples.simulate.host import Host
from examples.simulate.models import elementwise

ADAMW_OPS = ("add_", "mul_", "lerp_", "mul_", "addcmul_", "sqrt", "div", "add_", "addcdiv_")
FOREACH_OPS = ("_foreach_add_", "_foreach_mul_", "_foreach_lerp_", "_foreach_mul_")
FOREACH_MORE = ("_foreach_addcmul_", "_foreach_sqrt", "_foreach_div_", "_foreach_addcdiv_")
MULTI_TENSOR = (
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous "
    "namespace)::{what}>(at::native::(anonymous namespace)::{what})"
)
PYTHON_PER_TENSOR_NS = 2_200
TENSORS_PER_LAUNCH = 60


def step(host: Host, parameters: list[int], how: str) -> None:
    """``optimizer.step()`` of AdamW; ``how`` is for_loop, foreach or fused."""
    with (
        host.frame("torch/optim/adamw.py(220): step"),
        host.annotation("Optimizer.step#AdamW.step"),
    ):
        host.spend(30_000, "optimizer python")
        {"for_loop": _for_loop, "foreach": _foreach, "fused": _fused}[how](host, parameters)


def zero_grad(host: Host, parameters: list[int]) -> None:
    """``optimizer.zero_grad()``, which only drops references."""
    with host.annotation("Optimizer.zero_grad#AdamW.zero_grad"):
        host.spend(15_000 + 300 * len(parameters), "zero grad")


def _for_loop(host: Host, parameters: list[int]) -> None:
    for elements in parameters:
        for name in ADAMW_OPS:
            host.spend(PYTHON_PER_TENSOR_NS, "optimizer python")
            nested(host, (f"aten::{name}",), (elementwise(name, elements, "fp32", 2),))


def _foreach(host: Host, parameters: list[int]) -> None:
    host.spend(900 * len(parameters), "group tensors")
    for name in (*FOREACH_OPS, *FOREACH_MORE):
        with host.op(f"aten::{name}"):
            host.spend(260 * len(parameters), "list of tensors")
            _launch_chunks(host, parameters, name)


def _fused(host: Host, parameters: list[int]) -> None:
    host.spend(900 * len(parameters), "group tensors")
    with host.op("aten::_fused_adamw_"):
        host.spend(500 * len(parameters), "list of tensors")
        _launch_chunks(host, parameters, "FusedAdamMathFunctor", 4)


def _launch_chunks(host: Host, parameters: list[int], what: str, passes: int = 2) -> None:
    for first in range(0, len(parameters), TENSORS_PER_LAUNCH):
        elements = sum(parameters[first : first + TENSORS_PER_LAUNCH])
        name = MULTI_TENSOR.format(what=what)
        blocks = max(1, elements // 65_536)
        host.launch(Kernel(name, blocks, 512, bytes=elements * 4.0 * passes))
