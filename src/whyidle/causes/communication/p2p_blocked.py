"""GPUs of one machine cannot reach each other's memory directly.

Looks like: several GPUs are slower than one; collectives inside a machine run at a few GB/s
through host memory; a peer-to-peer bandwidth test is far below the link.

How we tell: the matrix of peer access (``nvidia-smi topo -p2p r``) says for a pair of GPUs that the
chipset, the GPU, the driver or the topology does not support it: *seen*. Where only the topology
matrix is there and every pair of GPUs is connected across CPU sockets (SYS), it is *suspected*.

Change: turn off ACS redirection on the PCIe bridges and the IOMMU (or ``iommu=pt``) on bare metal;
take back ``NCCL_P2P_DISABLE=1``; place processes that talk most on GPUs that are near each other.

May be wrong: cards made without peer access (most GeForce) cannot change it, and need none when
each works alone. Inside a virtual machine the matrix may hide what the host can do.

Sources: nvidia-smi topo manual; NCCL troubleshooting, PCI Access Control Services; report of four
GPUs at 2.3 s against one at 0.48 s.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from whyidle.diagnosis import EvidenceRow, Place, Remedy, Sign
from whyidle.model import LINKS, Evidence, SourceInfo, frame

if TYPE_CHECKING:
    from whyidle.views import Views

TITLE = "GPUs cannot reach each other directly"
STATUS = "preview"
OBSERVES = ("links",)

WHY = {
    "CNS": "the chipset does not support it",
    "GNS": "the GPU does not support it",
    "TNS": "the topology does not support it",
    "NS": "it is not supported",
    "DR": "a registry key of the driver disables it",
    "U": "its state is unknown",
}
"""Legend of ``nvidia-smi topo -p2p``: kind -> words. OK and X are no obstacle."""


def observations(views: Views) -> list[Sign]:
    """Machines with pairs of GPUs without peer access."""
    links = views.evidence.table("links").with_columns(
        pl.col("host", "one", "other", "kind", "about").cast(pl.String)
    )
    gpus = links.filter(
        pl.col("one").str.starts_with("GPU") & pl.col("other").str.starts_with("GPU")
        & (pl.col("one") != pl.col("other"))
    )  # fmt: skip
    found: list[Sign] = []
    for (host, _), mine in gpus.partition_by("host", "source", as_dict=True).items():
        path = views.evidence.sources[mine["source"][0]].path
        access = mine.filter(pl.col("about").is_in(["peer_read", "peer_write"]))
        blocked = access.filter(pl.col("kind").is_in(list(WHY)) & (pl.col("kind") != "U"))
        across = mine.filter(pl.col("about") == "topology")
        if blocked.height:
            found.append(_blocked(blocked, _pairs(access), host, path))
        elif not access.height and across.height and (across["kind"] == "SYS").all():
            found.append(_across(across, host, path))
    return found


def _pairs(links: pl.DataFrame) -> int:
    ends = links.select(
        pl.min_horizontal("one", "other").alias("low"),
        pl.max_horizontal("one", "other").alias("high"),
    )
    return ends.n_unique()


def _blocked(blocked: pl.DataFrame, pairs: int, host: str | None, path: str) -> Sign:
    kind = blocked["kind"].mode().sort()[0]
    one, other = blocked.filter(pl.col("kind") == kind).select("one", "other").row(0)
    machine = f" of {host}" if host else ""
    return Sign(
        level="seen",
        what=f"{_pairs(blocked)} of {pairs} pairs of GPUs{machine} have no peer access ({one} and "
        f"{other}: {WHY[kind]}).",
        where=[Place(host=host)],
        evidence=[EvidenceRow(source=path, row=None, what=f"{one} to {other}: {kind}")],
        remedies=[_settings(), _near()] if kind not in ("GNS", "NS") else [_near()],
    )


def _across(across: pl.DataFrame, host: str | None, path: str) -> Sign:
    machine = f" of {host}" if host else ""
    return Sign(
        level="suspected",
        what=f"Every pair of GPUs{machine} is connected across CPU sockets (SYS): peer access is "
        "slow or absent.",
        where=[Place(host=host)],
        evidence=[EvidenceRow(source=path, row=None, what=f"{_pairs(across)} pairs, all SYS")],
        remedies=[_settings(), _near()],
    )


def _settings() -> Remedy:
    return Remedy(
        what="Allow peer access",
        how="On bare metal: ACS off on the PCIe bridges (lspci -vvv | grep ACSCtl shows SrcValid+ "
        "where it is on), iommu=pt or off on the kernel's command line; unset NCCL_P2P_DISABLE. In "
        "a virtual machine: ACS must stay, ask for GPUs with NVLink or ATS.",
        safe=False,
        why_safe="Without ACS or IOMMU a device can reach the memory of others: only on machines "
        "whose users trust each other.",
        effect={"kind": "communication_scaled"},
        prove="nvidia-smi topo -p2p r shows OK; p2pBandwidthLatencyTest and all_reduce_perf rise.",
    )


def _near() -> Remedy:
    return Remedy(
        what="Let near GPUs talk",
        how="nvidia-smi topo -m shows which pairs are near (PIX, PXB, NODE); put tensor-parallel "
        "groups on those with CUDA_VISIBLE_DEVICES, and use fewer, larger messages between others.",
        safe=True,
        why_safe="Only the placement changes.",
        effect={"kind": "communication_scaled"},
        prove="Record the same steps again: communication alone on the device must fall.",
    )


def observed_example() -> tuple[Evidence, str]:
    """Two GPUs whose chipset does not support peer access."""
    rows = [
        {"source": 0, "host": "node1", "one": one, "other": other, "kind": kind, "about": about}
        for about, kind in (("peer_read", "CNS"), ("topology", "PHB"))
        for one, other in (("GPU0", "GPU1"), ("GPU1", "GPU0"))
    ]
    info = SourceInfo("example", "example", None, len(rows))
    return Evidence({"links": frame(LINKS, rows)}, sources=(info,)), "1 of 1 pairs of GPUs"
