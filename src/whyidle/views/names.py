"""What a name of device work or of a host call means: the one place where names are read.

Every rule here works on names, not on rows, so a caller classifies the few thousand distinct
names of a trace and joins the answer back.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

import polars as pl

COMMUNICATION = (
    "nccl",
    "rccl",
    "msccl",
    "oneccl",
    "nvshmem",
    "multimem",
    "symm_mem",
    "one_shot_all_reduce",
    "two_shot_all_reduce",
    "cross_device_reduce",
    "custom_all_reduce",
    "all_reduce",
    "allreduce",
    "all_gather",
    "allgather",
    "reduce_scatter",
    "all_to_all",
    "alltoall",
    "deep_ep",
    "hccl",
    "sendrecv",
)
"""Device work whose lower-case name holds one of these moves data between devices."""

NOT_COMMUNICATION = ("triton_", "fused_", "multi_tensor_apply")
"""Compute kernels that a compiler or an optimizer names after the data they handle."""

COPIES = (
    "Memcpy", "Memset", "CopyDeviceToHost", "CopyHostToDevice", "CopyDeviceToDevice",
    "copyBuffer", "fillBuffer",
)  # fmt: skip
"""Device work that a vendor may file as a kernel although it only copies or fills memory."""

CPU_TRANSFERS = ("gloo:", "mpi:")
"""Annotations of transfers on a run without a GPU."""

SYNCHRONISATIONS = re.compile(
    r"^(cuda|hip|cu|mtia|xpu|musa|mc)?(Stream|Device|Event|Ctx)Synchronize(_v\d+|_ptsz)?$"
    r"|^ur(EventWait|QueueFinish)$|^ze(\w*HostSynchronize|CommandQueueSynchronize)$"  # Intel
    r"|^aclrtSynchronize(Stream|Device|Event)(WithTimeout)?$|^cn(rt)?(Queue|Device)Sync(hronize)?$",
    re.IGNORECASE,
)
BLOCKING_COPIES = re.compile(
    r"^(cudaMemcpy(2D|3D)?|hipMemcpy(2D)?|hipMemcpyWithStream|hipMemcpy(DtoH|HtoD)"
    r"|cuMemcpy(DtoH|HtoD)?)(_v\d+|_ptsz|_ptds)?$"
)
ALLOCATIONS = re.compile(
    r"^(cuda|hip)(Malloc|Free|MallocHost|FreeHost|HostMalloc|HostFree|HostAlloc|ExtMallocWithFlags"
    r"|HostRegister|HostUnregister|MallocManaged|MallocPitch)$"
    r"|^(cu|hip)Mem(Create|Map|Unmap|Release|SetAccess|Alloc|Free|AllocHost|HostAlloc|AddressReserve"
    r"|AddressFree)(_v\d+)?$"
)
INBOUND, OUTBOUND = r"HtoD|HostToDevice|M2D", r"DtoH|DeviceToHost|D2M"
"""What the name of a copy holds that goes to the device, or comes back from it."""
KERNEL_LAUNCHES = re.compile(r"Launch(Cooperative)?Kernel|ModuleLaunch|LaunchKernelEx|KernelLaunch")
GRAPH_LAUNCHES = re.compile(r"^(cuda|hip|cu)GraphLaunch")
CAPTURES = re.compile(r"StreamBeginCapture|StreamEndCapture|GraphInstantiate")
MODULE_LOADS = re.compile(r"ModuleLoad|LibraryLoad|FuncGetAttributes|ModuleGetFunction|LazyLoad")


def is_communication(name: str) -> bool:
    """Whether device work of this name moves data between devices."""
    lower = name.lower()
    if lower.startswith(("triton_", "fused_")) or "multi_tensor_apply" in lower:
        return False
    return any(part in lower for part in COMMUNICATION)


def is_copy(name: str) -> bool:
    """Whether device work of this name is a copy or fill, though filed as a kernel."""
    return not name.startswith(("triton_", "fused_")) and any(part in name for part in COPIES)


def matching(names: pl.Series, rule: Callable[[str], object]) -> pl.Series:
    """A Boolean per row: whether the row's name satisfies ``rule``, asked once per name."""
    distinct = names.unique().drop_nulls()
    hits = [name for name in distinct.cast(pl.String).to_list() if rule(name)]
    return contained(names, hits)


def told(names: pl.Series, rule: Callable[[str], str | None]) -> pl.Series:
    """A text per row: what ``rule`` says of the row's name, asked once per name."""
    distinct = names.unique().drop_nulls().cast(pl.String)
    answers = pl.Series([rule(name) for name in distinct.to_list()], dtype=pl.String)
    return names.cast(pl.String).replace_strict(
        distinct, answers, default=None, return_dtype=pl.String
    )


def contained(names: pl.Series, hits: Iterable[str]) -> pl.Series:
    """A Boolean per row: whether the row's name is one of ``hits``; null counts as no."""
    found = list(hits)
    if not found:
        return pl.repeat(False, len(names), dtype=pl.Boolean, eager=True).alias(names.name)
    wanted = pl.Series(found, dtype=pl.Categorical).implode()
    return names.is_in(wanted).fill_null(value=False)
