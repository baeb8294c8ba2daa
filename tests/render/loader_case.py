"""A made-up ResNet-50 run that waits for its loader, with the timeline of one step."""

from __future__ import annotations

import random

from tests.render.building import (
    MS,
    Loss,
    device,
    diagnosis,
    finding,
    one_source,
    remedy,
    rows,
    where,
)
from whyidle.diagnosis import (
    Diagnosis,
    EvidenceRow,
    Gain,
    NotJudged,
    Plan,
    PlanStep,
    PredictedStep,
    Replay,
    Timeline,
    TimelineClaim,
    TimelineSpan,
)

GAIN = Gain(
    step_s_low=0.168,
    step_s_mid=0.151,
    step_s_high=0.136,
    speedup_low=1.16,
    speedup_mid=1.29,
    speedup_high=1.44,
)


def loader_bound() -> Diagnosis:
    """ResNet-50 training on one V100 that waits for a loader without workers."""
    losses: list[Loss] = [
        ("data_loading.loader_workers_too_few", "empty", 0.3905),
        ("small_work.launch_bound_small_kernels", "empty", 0.0601),
        ("small_work.optimizer_launch_bound", "empty", 0.0272),
        ("data_loading.h2d_copy_blocking", "copy", 0.0121),
        ("memory.fp32_no_tensor_cores", "compute", 0.0903),
        ("blind_spots.profiler_overhead", "empty", 0.0154),
        ("small_work.host_sync_scalar_read", "empty", 0.0051),
    ]
    gpu = device(losses, compute_s=0.6412, copy_s=0.0133, empty_s=0.5186, steps=6)
    titles = {
        "data_loading.loader_workers_too_few": "Too few loader workers",
        "memory.fp32_no_tensor_cores": "32-bit maths without tensor cores",
        "small_work.launch_bound_small_kernels": "Many small kernels, launched one by one",
        "small_work.optimizer_launch_bound": "The optimizer launches one kernel per parameter",
        "blind_spots.profiler_overhead": "The profiler's own cost",
        "data_loading.h2d_copy_blocking": "Copies to the GPU that the host waits for",
        "small_work.host_sync_scalar_read": "Reading a number from the GPU stops the host",
    }
    seconds = {cause: s for cause, _, s in losses}
    details = _loader_details(seconds)
    findings = [
        finding(
            cause,
            titles[cause],
            seconds[cause],
            gpu.wall_s,
            "seen" if cause.startswith("data") else "deduced",
            **details.get(cause, {}),
        )
        for cause in sorted(titles, key=lambda cause: -seconds[cause])
    ]
    return diagnosis(
        [gpu],
        rows(gpu, losses),
        sources=[one_source("resnet50_workers_0.pt.trace.json.gz", events=74_846)],
        findings=findings,
        timeline=loader_timeline(),
        not_judged=_usual_gaps(),
        plan=Plan(
            remedies=[
                PlanStep(
                    cause="data_loading.loader_workers_too_few",
                    what="Load batches in worker processes",
                ),
                PlanStep(cause="memory.fp32_no_tensor_cores", what="Allow TF32"),
            ],
            step_s=0.195,
            predicted=PredictedStep(low=0.161, mid=0.142, high=0.121),
        ),
        replay=Replay(
            measured_step_s=0.195, replayed_step_s=0.1921, error=-0.0149, constants_s=0.0042
        ),
        notes=["The last step has no end mark; it was closed at the last device activity."],
    )


def _loader_details(seconds: dict[str, float]) -> dict[str, dict[str, object]]:
    loader = "data_loading.loader_workers_too_few"
    fp32 = "memory.fp32_no_tensor_cores"
    source = "runs/resnet50_workers_0.pt.trace.json.gz"
    return {
        loader: {
            "contested_s": 0.012,
            "where": [
                where(
                    seconds[loader],
                    file="train.py",
                    line=88,
                    op="enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
                )
            ],
            "evidence": [
                EvidenceRow(source=source, row=1204, what="62.4 ms in __next__, GPU empty"),
                EvidenceRow(source=source, row=13377, what="61.9 ms in __next__, GPU empty"),
            ],
            "remedies": [
                remedy(
                    "Load batches in worker processes",
                    "DataLoader(..., num_workers=4, persistent_workers=True)",
                    gain=GAIN,
                    patch=(
                        "--- a/train.py\n+++ b/train.py\n"
                        "-loader = DataLoader(data, batch_size=32)\n"
                        "+loader = DataLoader(data, batch_size=32, num_workers=4)"
                    ),
                ),
                remedy("Decode images on the GPU", "Use nvJPEG through torchvision.io"),
            ],
        },
        fp32: {
            "status": "preview",
            "where": [
                where(0.0601, op="aten::cudnn_convolution"),
                where(0.0302, op="aten::cudnn_convolution_backward"),
            ],
            "remedies": [
                remedy(
                    "Let matrix units work in TF32 or bfloat16",
                    "torch.set_float32_matmul_precision('high')",
                    safe=False,
                    why_safe="results change in the last digits; check the loss curve",
                )
            ],
        },
        "small_work.launch_bound_small_kernels": {
            "where": [where(0.0601, op="autograd::engine::evaluate_function: AddBackward0")],
            "remedies": [remedy("Compile the model", "model = torch.compile(model)")],
        },
    }


def _usual_gaps() -> list[NotJudged]:
    stack = "profile(..., with_stack=True)"
    shapes = "profile(..., record_shapes=True)"
    return [
        NotJudged(
            cause="small_work.python_loop_unvectorised",
            missing=["Python frames"],
            record_with=stack,
        ),
        NotJudged(
            cause="blind_spots.logging_overhead", missing=["Python frames"], record_with=stack
        ),
        NotJudged(
            cause="model_design.unaligned_shapes", missing=["operator shapes"], record_with=shapes
        ),
        NotJudged(
            cause="memory.allocator_pressure",
            missing=["allocator samples"],
            record_with="profile(..., profile_memory=True)",
        ),
    ]


def loader_timeline(spans: int = 160) -> Timeline:
    """A step of 199 ms: the loader first, then forward, backward and optimizer."""
    pick = random.Random(7)
    drawn = [
        TimelineSpan(
            lane="stream 7", kind="copy", name="Memcpy HtoD", start_ns=66 * MS, end_ns=68 * MS
        ),
        _host("ProfilerStep#3", "annotation", 0, 199 * MS, 0),
        _host("enumerate(DataLoader)#__next__", "annotation", 1 * MS, 65 * MS, 1),
        _host("forward", "annotation", 68 * MS, 110 * MS, 1),
        _host("autograd::engine", "op", 110 * MS, 172 * MS, 1),
        _host("Optimizer.step#SGD.step", "annotation", 172 * MS, 196 * MS, 1),
    ]
    claims = [claim_of("data_loading.loader_workers_too_few", "empty", 0, 66 * MS, "train.py:88")]
    claims.append(claim_of("data_loading.h2d_copy_blocking", "copy", 66 * MS, 68 * MS, None))
    t = 69 * MS
    names = ["volta_scudnn_128x64_relu_interior_nn_v1", "elementwise_kernel", "bn_fw_tr_1C11"]
    for i in range(spans):
        length = pick.randint(200_000, 900_000) * 160 // spans
        if t + length > 172 * MS:
            break
        name = names[i % 3]
        drawn.append(
            TimelineSpan(lane="stream 7", kind="kernel", name=name, start_ns=t, end_ns=t + length)
        )
        drawn.append(_host(f"aten::op{i % 9}", "op", t - 300_000, t - 60_000, 2))
        if i % 3 == 0:
            claim = claim_of(
                "memory.fp32_no_tensor_cores", "compute", t, t + length, "aten::conv2d"
            )
            claims.append(TimelineClaim(**{**_fields(claim), "weight": 0.4}))  # type: ignore[arg-type]
        gap = pick.randint(20_000, 160_000) * 160 // spans
        cause = "small_work.launch_bound_small_kernels" if i % 4 else None
        claims.append(claim_of(cause, "empty", t + length, t + length + gap, None))
        t += length + gap
    claims.append(
        claim_of("small_work.optimizer_launch_bound", "empty", 172 * MS, 190 * MS, "Optimizer.step")
    )
    claims.append(claim_of(None, "empty", 190 * MS, 199 * MS, None))
    return Timeline(
        rank=None,
        device=0,
        step=3,
        start_ns=0,
        end_ns=199 * MS,
        spans=drawn,
        claims=claims,
        capped=None,
    )


def _host(name: str, kind: str, start_ns: int, end_ns: int, depth: int) -> TimelineSpan:
    return TimelineSpan(
        lane="thread 1 (python)",
        kind=kind,
        name=name,
        start_ns=start_ns,
        end_ns=end_ns,
        depth=depth,
    )


def claim_of(
    cause: str | None, state: str, start_ns: int, end_ns: int, what: str | None
) -> TimelineClaim:
    return TimelineClaim(
        cause=cause,
        state=state,  # type: ignore[arg-type]
        weight=1.0,
        start_ns=start_ns,
        end_ns=end_ns,
        what=what,
    )


def _fields(claim: TimelineClaim) -> dict[str, object]:
    return {name: getattr(claim, name) for name in claim.__struct_fields__}
