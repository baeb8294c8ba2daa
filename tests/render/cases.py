"""Made-up diagnoses to draw: each obeys the law of the ledger and looks like a real run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import structs

from tests.render.building import (
    MS,
    Loss,
    device,
    diagnosis,
    finding,
    job_of,
    one_source,
    remedy,
    rows,
    where,
)
from tests.render.loader_case import claim_of, loader_bound
from whyidle.diagnosis import (
    REASONS,
    Crashed,
    Diagnosis,
    EvidenceRow,
    NotJudged,
    Observation,
    Place,
    Plan,
    PlanStep,
    PredictedStep,
    Timeline,
    TimelineSpan,
)


def healthy() -> Diagnosis:
    """A language model on one H100 that hardly waits."""
    losses: list[Loss] = [
        ("small_work.python_between_ops", "empty", 0.021),
        ("data_loading.h2d_copy_blocking", "copy", 0.004),
    ]
    gpu = device(
        losses,
        compute_s=2.41,
        copy_s=0.006,
        empty_s=0.031,
        steps=5,
        name="NVIDIA H100 80GB HBM3",
    )
    findings = [
        finding(
            "small_work.python_between_ops", "Python between operators", 0.021, gpu.wall_s, "seen"
        ),
        finding("data_loading.h2d_copy_blocking", "Blocking copies", 0.004, gpu.wall_s, "deduced"),
    ]
    sources = [one_source("gpt_h100.json")]
    return diagnosis([gpu], rows(gpu, losses), sources=sources, findings=findings)


def mostly_unrecorded() -> Diagnosis:
    """CUDA graphs whose kernels the recorder dropped: most of what looks empty is no loss."""
    losses: list[Loss] = [("small_work.host_sync_implicit", "empty", 0.066)]
    gpu = device(
        losses,
        compute_s=0.33,
        communication_s=0.02,
        copy_s=0.01,
        empty_s=0.66,
        unrecorded_s=0.58,
        steps=0,
        rank=0,
        name="NVIDIA A100-SXM4-40GB",
    )
    found = finding(
        "small_work.host_sync_implicit",
        "The host waits for the GPU",
        0.066,
        gpu.wall_s,
        "suspected",
        where=[where(0.066, op="cudaStreamSynchronize", rank=0)],
    )
    note = "872 of 7,747 GPU events have no launch record; CUDA graphs were replayed."
    sources = [one_source("recsys_rank0.json.gz", note, rank=0)]
    return diagnosis([gpu], rows(gpu, losses), sources=sources, findings=[found])


def cpu_run() -> Diagnosis:
    """A run without a GPU: the loader and plain Python take more than the model."""
    losses: list[Loss] = [
        ("data_loading.loader_workers_too_few", "empty", 1.2),
        ("small_work.python_between_ops", "empty", 0.35),
    ]
    cpu = device(losses, compute_s=1.4, empty_s=1.8, steps=4, index="cpu", name=None)
    findings = [
        finding(
            "data_loading.loader_workers_too_few",
            "Too few loader workers",
            1.2,
            cpu.wall_s,
            "seen",
            where=[where(1.2, file="src/project/training/loops/train.py", line=41)],
        ),
        finding(
            "small_work.python_between_ops", "Python between operators", 0.35, cpu.wall_s, "seen"
        ),
    ]
    gap = NotJudged(
        cause="memory.fp32_no_tensor_cores",
        missing=["GPU kernels"],
        record_with="profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])",
    )
    return diagnosis(
        [cpu],
        rows(cpu, losses),
        sources=[one_source("cpu_only.json", "The trace holds no GPU activity.")],
        findings=findings,
        not_judged=[gap],
    )


def many_ranks() -> Diagnosis:
    """Eight GPUs of one job; rank 5 comes late and the others wait for it."""
    devices, ledger, total = [], [], 0.0
    for rank in range(8):
        waited = 0.0 if rank == 5 else 0.9 + 0.02 * rank
        losses: list[Loss] = [
            ("communication.rank_imbalance", "communication", waited),
            ("small_work.optimizer_launch_bound", "empty", 0.2),
        ]
        gpu = device(
            losses,
            compute_s=3.1 + 0.01 * rank,
            communication_s=waited + 0.4,
            copy_s=0.02,
            empty_s=0.31,
            steps=10,
            rank=rank,
            name="NVIDIA H100 80GB HBM3",
        )
        devices.append(gpu)
        ledger += rows(gpu, losses)
        total += waited
    wall_s = sum(d.wall_s for d in devices)
    late = finding(
        "communication.rank_imbalance",
        "Ranks wait for a late one",
        total,
        wall_s,
        "deduced",
        job_cost_s=0.97,
        where=[
            where(total - 0.5, rank=5, op="DataLoader.__next__", file="train.py", line=12),
            where(0.5, rank=2),
        ],
        remedies=[
            remedy("Balance the work", "Sort samples by length and deal them out to the ranks.")
        ],
    )
    slow = finding("small_work.optimizer_launch_bound", "Optimizer launches", 1.6, wall_s, "seen")
    sources = [one_source(f"job/rank{rank}.json.gz", rank=rank) for rank in range(8)]
    return diagnosis(devices, ledger, sources=sources, findings=[late, slow])


def nothing_found() -> Diagnosis:
    """A run in which no rule knows any cause, although a third is not computing."""
    gpu = device([], compute_s=0.5, empty_s=0.25, steps=0)
    return diagnosis([gpu], [], sources=[one_source("strange.json")])


def nothing_recorded() -> Diagnosis:
    """No device at all: every total is zero."""
    return diagnosis([], [])


def crashed() -> Diagnosis:
    """A run in which two causes failed, and which was also observed as a whole."""
    base = healthy()
    job = job_of(
        [(300.0, 0.86, 42.0)], "blind_spots.checkpoint_pause", shares=[0.9, 0.1, None, 1.0]
    )
    pause = finding(
        "blind_spots.checkpoint_pause",
        "Training stops while a checkpoint is written",
        42.0,
        300.0,
        "seen",
        ledger="job",
    )
    return diagnosis(
        base.devices,
        base.ledger,
        sources=base.sources,
        findings=[pause, *base.findings],
        job=job,
        crashed=[
            Crashed(cause="memory.allocator_pressure", error="ColumnNotFoundError: value"),
            Crashed(cause="acme.own_rule", error="ZeroDivisionError: division by zero"),
        ],
    )


def sampled_only() -> Diagnosis:
    """Readings of nvidia-smi of three GPUs, no trace: one of them does nothing half of the time."""
    job = job_of(
        [(7200.0, 0.93, 0.0), (7200.0, 0.91, 0.0), (7200.0, 0.44, 3600.0)],
        "scheduling.gpu_left_idle",
        shares=[1.0, 0.95, 0.9, 0.0, 0.0, None, 0.5, 1.0],
    )
    idle = finding(
        "scheduling.gpu_left_idle",
        "A GPU is left idle",
        3600.0,
        21600.0,
        "seen",
        ledger="job",
        where=[where(3600.0, host="node7", device=2, gpu="GPU-3f1c2d4e-aaaa-bbbb")],
    )
    sources = [one_source("smi.csv", events=21_600)]
    return diagnosis([], [], sources=sources, job=job, findings=[idle])


def timed_run() -> Diagnosis:
    """A bundle without profiled steps: two ranks that wait for their loader, and save."""
    sampled = job_of(
        [(600.0, 0.5, 240.0), (600.0, 0.55, 210.0)],
        "data_loading.loader_workers_too_few",
        shares=[0.0, 0.6, 0.6, 0.5, None, 0.6, 0.6, 0.1],
    )
    devices = [
        structs.replace(
            d, gpu=None, device=None, name=None, meter="training_steps", rank=rank,
            process=4000 + rank, samples=5000, period_s=0.112,
        )
        for rank, d in enumerate(sampled.devices)
    ]  # fmt: skip
    loader = finding(
        "data_loading.loader_workers_too_few",
        "Waiting for the data loader",
        450.0,
        1200.0,
        "seen",
        ledger="job",
        where=[
            where(240.0, file="train.py", line=12, rank=0),
            where(210.0, file="train.py", line=12, rank=1),
        ],
    )
    job = structs.replace(sampled, devices=devices)
    sources = [one_source("bundle/bundle.json", events=20_000)]
    return diagnosis([], [], sources=sources, job=job, findings=[loader])


def signs_only() -> Diagnosis:
    """Dumps of a flight recorder: which rank is absent, without any device time."""
    absent = Observation(
        cause="communication.rank_absent",
        reason=5,
        title="A rank never joined a collective",
        level="seen",
        status="preview",
        what="Rank 3 did not enqueue all_reduce 1,204 of group default_pg, which 15 ranks wait in.",
        where=[Place(rank=3, op="nccl:all_reduce", file="train.py", line=88, host="node1")],
        evidence=[EvidenceRow(source="dump_rank3", row=1203, what="last entry: all_reduce 1,203")],
        remedies=[remedy("Look at rank 3 first", "py-spy dump --pid PID on node1")],
    )
    link = Observation(
        cause="scheduling.link_downgraded",
        reason=6,
        title="A PCIe link is narrower than it could be",
        level="seen",
        status="stable",
        what="GPU 2 runs at x4 of x16.",
        where=[Place(host="node1", device=2)],
        evidence=[],
        remedies=[],
    )
    return diagnosis([], [], sources=[one_source("dump_rank3")], observations=[absent, link])


def thousand() -> Diagnosis:
    """A thousand GPUs: only the worst are named, and the rest is one sentence."""
    devices, ledger = [], []
    for rank in range(1000):
        losses: list[Loss] = [("communication.rank_imbalance", "communication", 0.3 + rank / 2000)]
        gpu = device(
            losses, compute_s=2.0, communication_s=0.9, copy_s=0.01, empty_s=0.1, steps=6,
            rank=rank, name="NVIDIA H100 80GB HBM3",
        )  # fmt: skip
        devices.append(gpu)
        ledger += rows(gpu, losses)
    lost = sum(d.lost_s for d in devices)
    wall = sum(d.wall_s for d in devices)
    late = finding(
        "communication.rank_imbalance", "Ranks wait for a late one", lost, wall, "deduced",
        job_cost_s=0.42, where=[where(lost, rank=5, op="DataLoader.__next__")],
    )  # fmt: skip
    sources = [one_source(f"job/rank{rank}.json.gz", rank=rank) for rank in range(1000)]
    return diagnosis(devices, ledger, sources=sources, findings=[late])


HOSTILE = [
    "<script>alert(1)</script>",
    "</script><img src=x onerror=alert(1)>",
    "a|b`c`*d* [e](javascript:alert(1)) @somebody #1",
    "void at::native::" + "elementwise_kernel<float, " * 60 + ">",
    "\x1b[31mred\x1b[0m\r\nnew line\x00",
    "ядро 核函数 \u202egnp.exe 🚀",
    "\u2028</title><!--",
    "__proto__",
]


def hostile() -> Diagnosis:
    """Names that try to break out of every format."""
    causes = list(REASONS)
    losses: list[Loss] = [
        (f"{causes[i % 7]}.{name}", "empty", 0.01 * (i + 1)) for i, name in enumerate(HOSTILE)
    ]
    gpu = device(losses, compute_s=0.5, empty_s=0.5, steps=2, name=HOSTILE[0])
    findings = [
        finding(
            cause,
            HOSTILE[i],
            lost_s,
            1.0,
            "seen",
            where=[where(lost_s, file=HOSTILE[i], line=i, op=HOSTILE[-1 - i], thread=HOSTILE[i])],
            evidence=[EvidenceRow(source=HOSTILE[i], row=i, what=HOSTILE[i])],
            remedies=[
                remedy(
                    HOSTILE[i],
                    HOSTILE[i],
                    patch="```\n" + HOSTILE[i],
                    safe=False,
                    why_safe=HOSTILE[i],
                    prove=HOSTILE[i],
                )
            ],
        )
        for i, (cause, _, lost_s) in reversed(list(enumerate(losses)))
    ]
    spans = [
        TimelineSpan(lane=name, kind="kernel", name=name, start_ns=i * MS, end_ns=(i + 1) * MS)
        for i, name in enumerate(HOSTILE)
    ]
    claims = [
        claim_of(f.cause, "empty", i * MS, (i + 1) * MS, f.title) for i, f in enumerate(findings)
    ]
    timeline = Timeline(
        rank=None,
        device=0,
        step=None,
        start_ns=0,
        end_ns=9 * MS,
        spans=spans,
        claims=claims,
        capped=HOSTILE[0],
    )
    return diagnosis(
        [gpu],
        rows(gpu, losses),
        sources=[one_source(name, name) for name in HOSTILE],
        findings=findings,
        timeline=timeline,
        not_judged=[NotJudged(cause=name, missing=[name], record_with=name) for name in HOSTILE],
        crashed=[Crashed(cause=name, error=name) for name in HOSTILE],
        **_hostile_outlook(),
        notes=HOSTILE,
    )


def _hostile_outlook() -> dict[str, Any]:
    """Signs, a plan and samples with names that try the same."""
    return {
        "observations": [
            Observation(
                cause=name,
                reason=9,
                title=name,
                level="suspected",
                status="preview",
                what=name,
                where=[Place(file=name, line=1, op=name, host=name, gpu=name)],
                evidence=[EvidenceRow(source=name, row=1, what=name)],
                remedies=[remedy(name, name)],
            )
            for name in HOSTILE
        ],
        "plan": Plan(
            remedies=[PlanStep(cause=name, what=name) for name in HOSTILE],
            step_s=0.5,
            predicted=PredictedStep(low=0.4, mid=0.3, high=0.2),
        ),
        "job": job_of([(1.0, 0.5, 0.1)], HOSTILE[0], shares=[0.5], host=HOSTILE[2]),
    }


CASES: dict[str, Callable[[], Diagnosis]] = {
    "loader_bound": loader_bound,
    "healthy": healthy,
    "mostly_unrecorded": mostly_unrecorded,
    "cpu_run": cpu_run,
    "many_ranks": many_ranks,
    "nothing_found": nothing_found,
    "nothing_recorded": nothing_recorded,
    "crashed": crashed,
    "sampled_only": sampled_only,
    "timed_run": timed_run,
    "signs_only": signs_only,
    "thousand": thousand,
    "hostile": hostile,
}
