"""What a cause may need, whether the evidence holds it, and how to record it when it does not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from whyidle.model import DeviceInfo
    from whyidle.views import Views


@dataclass(frozen=True)
class Need:
    """One thing that evidence may lack."""

    missing: str  # completes "not judged, because there is no ..."
    record_with: str
    present: Callable[[Views], bool]


def _launched(views: Views) -> bool:
    return bool(views.activity["launch"].is_not_null().any())


def _device(views: Views) -> bool:
    return views.has_device


def _host(views: Views) -> bool:
    return bool(views.evidence.table("spans")["kind"].is_in(["op", "annotation"]).any())


def _ops(views: Views) -> bool:
    return bool((views.evidence.table("spans")["kind"] == "op").any())


def _column(name: str) -> Callable[[Views], bool]:
    return lambda views: bool(views.evidence.table("spans")[name].is_not_null().any())


def _judged(views: Views) -> list[DeviceInfo]:
    """What is known of each device that has a window; others that are listed do not matter."""
    pairs = views.windows.select("rank", "device").iter_rows()
    return [views.facts.device(rank, device) for rank, device in pairs]


def _sms(views: Views) -> bool:
    return any(info.sms for info in _judged(views))


def _steps(views: Views) -> bool:
    return views.marks.height > 0


def _blame(views: Views) -> bool:
    return _host(views) and (_launched(views) or not views.has_device)


def _work(views: Views) -> bool:
    return views.windows.height > 0


def _tensor_cores(views: Views) -> bool:
    devices = _judged(views)
    return any(d.capability is not None or (d.vendor == "amd" and d.name) for d in devices)


def _alignment(views: Views) -> bool:
    return _column("shapes")(views) or views.kernels["align"].is_not_null().any()


_PROFILE = "torch.profiler.profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]"
_LISTS = "torch that lists the GPU in the trace (deviceProperties)"
NEEDS: dict[str, Need] = {
    "device": Need("device activity", f"{_PROFILE})", _device),
    "launches": Need(
        "launch records that join device work to host calls", f"{_PROFILE})", _launched
    ),
    "host": Need("host operators or annotations", f"{_PROFILE})", _host),
    "blame": Need("host activity with launches", f"{_PROFILE})", _blame),
    "ops": Need("framework operators", f"{_PROFILE})", _ops),
    "steps": Need(
        "step marks", f"{_PROFILE}, schedule=...) and prof.step() after each step", _steps
    ),
    "shapes": Need("operator input shapes", f"{_PROFILE}, record_shapes=True)", _column("shapes")),
    "blocks": Need("kernel grid sizes", f"{_PROFILE})", _column("blocks")),
    "sms": Need("the GPU's number of multiprocessors", f"{_PROFILE}) with a {_LISTS}", _sms),
    "work": Need("device activity, or operators of a run without a GPU", f"{_PROFILE})", _work),
    "tensor_cores": Need(
        "the GPU's compute capability or model", f"{_PROFILE}) with a {_LISTS}", _tensor_cores
    ),
    "alignment": Need(
        "operator input shapes, and kernel names that state their alignment",
        f"{_PROFILE}, record_shapes=True)",
        _alignment,
    ),
}
"""Capability -> what it is. Any other need is the name of a table of the evidence."""


def missing(views: Views, needs: tuple[str, ...]) -> list[Need]:
    """The needs that this evidence does not meet, in the order given."""
    return [need for need in map(_need, needs) if not need.present(views)]


def _need(name: str) -> Need:
    if name in NEEDS:
        return NEEDS[name]
    return Need(f"table {name!r}", f"evidence that holds {name!r}", lambda v: v.evidence.has(name))


def nothing_claimed() -> pl.DataFrame:
    """No claims."""
    from whyidle.model import CLAIMS, frame

    return frame(CLAIMS)
