"""Collectives move their bytes far below what the link between the GPUs can carry.

Looks like: large all-reduces are slow on all ranks alike; nobody is late; a pair of GPUs without a
bridge, a process that fell back to shared memory or sockets, a link that trained down.

How we tell: the same collective is matched on all ranks of a machine. From the last rank's arrival
to the end is moving bytes; bus bandwidth (nccl-tests' convention) of messages of 4 MiB and more
below a quarter of the ceiling of this GPU's link is suspicious. Lost is what a link at 80 % of its
ceiling would have saved, where nothing was computed meanwhile. Always *suspected*: the trace does
not say which way the bytes took, and one machine is assumed where a group is no larger than the
GPUs listed in the trace.

Change: read which way NCCL chose (``NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,GRAPH,P2P,NET``), take
back ``NCCL_P2P_DISABLE`` and ``NCCL_IB_DISABLE``, turn ACS and IOMMU off where they block peer
access, choose GPUs that share a bridge or a switch.

May be wrong: machines whose GPUs have no NVLink though their model could; collectives that share
the link with others; kernels that compute beside them and take the SMs that move bytes.

Sources: nccl-tests doc/PERFORMANCE.md; NVIDIA/nccl src/graph/topo.cc; ml-engineering network
notes; NVIDIA/nccl#631 and #667, where peer access was off.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from whyidle.diagnosis import Finding, Remedy
from whyidle.rank_stories import Ranks

if TYPE_CHECKING:
    from whyidle.model import Evidence, Facts

TITLE = "Bytes move far below the link's ceiling"
STATUS = "preview"
NEEDS = ("peers",)
WAITS = ("slow_link",)


def remedies(finding: Finding, facts: Facts) -> list[Remedy]:
    """See which way the bytes take; then open the fast one."""
    return [
        Remedy(
            what="See which way NCCL sends the bytes",
            how="NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,GRAPH,P2P,NET for one run: 'via P2P' is "
            "direct, 'via SHM' goes through host memory, 'via NET/Socket' through TCP. nvidia-smi "
            "topo -m shows NV# where GPUs share NVLink; nvidia-smi nvlink --status a link that is "
            "down; all_reduce_perf -b 8M -e 1G -g 8 (nccl-tests) what the machine reaches.",
            safe=True,
            why_safe="It only logs and measures.",
            effect={"kind": "none"},
            prove="nccl-tests reaches at least 80 % of the link's ceiling for large messages.",
        ),
        Remedy(
            what="Open the direct way",
            how="Unset NCCL_P2P_DISABLE, NCCL_SHM_DISABLE and NCCL_IB_DISABLE; give the container "
            "the devices and --ipc=host; turn PCIe ACS (and IOMMU) off where peer access hangs.",
            safe=False,
            why_safe="Somebody may have set these around a hang; try it outside production.",
            effect={"kind": "communication_scaled"},
            prove="Record the same steps: the same collectives take a fraction of the time.",
        ),
    ]


def example() -> tuple[Evidence, float]:
    """Four A100s reduce 16 MiB in 1 ms each step: 25 GB/s where NVLink 3 carries 300.

    At 80 % of that it takes 104.9 us: 895 us are lost a step on each of four devices.
    """
    ranks = Ranks(4, elements=4 * 2**20)
    for _ in range(5):
        ranks.step([5000] * 4)
    healthy_s = 4 * 4 * 2**20 * 1.5 / (0.8 * 300e9)
    return ranks.evidence(), 5 * 4 * (1e-3 - healthy_s)
