"""``whyidle data probe``: which stage of loading is the limit, why, and what would change it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from whyidle import __version__
from whyidle.data import limits as machine
from whyidle.data import predict, probe_bundle, probe_costs, probe_run, probe_verdict
from whyidle.data.limits import Limits
from whyidle.data.predict import Costs
from whyidle.data.probe_record import (
    Bound,
    Handover,
    Model,
    Prediction,
    Probe,
    Samples,
    SlowSample,
    Stage,
    Storage,
    Threads,
)
from whyidle.data.probe_run import Told
from whyidle.data.spec import Spec, parse

SECONDS = 8.0
BUSY_MACHINE = 0.9


def probe(
    spec: str,
    *,
    step_s: float | None = None,
    batch_size: int | None = None,
    seconds: float = SECONDS,
    read_limits: machine.Reader = machine.read,
    show: Callable[[str], None] = lambda _: None,
) -> Probe:
    """Measure what ``spec`` names and judge it.

    ``step_s`` is what a training step takes when its batch is there; ``seconds`` about how long
    to measure. A bundle of ``whyidle run`` is judged by what it recorded; nothing is run.
    """
    named = parse(spec)
    if named.kind == "bundle":
        return probe_bundle.recorded(named, step_s=step_s, limits=read_limits())
    begin = time.monotonic()
    limits = read_limits()
    told = probe_run.measured(named, limits, batch_size, seconds, show)
    return judged(named, told, limits, step_s, time.monotonic() - begin)


def judged(spec: Spec, told: Told, limits: Limits, step_s: float | None, lasted: float) -> Probe:
    """The record of what was measured, with its verdict."""
    load = told.of("load")
    path = told.of("storage").get("path") or told.of("stages").get("path")
    limits = machine.with_storage(limits, path)
    costs = probe_costs.costs(told, limits)
    stages = probe_costs.stages(told)
    rates = []
    if costs is not None:
        numbers = probe_costs.interesting(costs, limits.cpus, load.get("workers"))
        rates = predict.rates(costs, numbers, probe_costs.known(told))
    made = Probe(
        whyidle=__version__,
        spec=spec.text,
        kind=spec.kind,
        samples=load.get("samples"),
        batch_size=load["batch_size"],
        workers=load.get("workers"),
        order=load.get("order"),
        step_s=step_s,
        seconds=lasted,
        stages=stages,
        sample=_samples(told.of("samples")),
        storage=_storage(told),
        threads=_threads(told),
        handover=_handover(told),
        limits=limits,
        model=_model(costs),
        rates=[predicted(one, load["batch_size"], step_s) for one in rates],
        pick=predict.pick(rates).workers if rates else None,
        bound=_bound(stages, limits, rates, told),
        findings=[],
        notes=[*load.get("notes", ()), *told.notes, *_notes(told, limits, costs)],
    )
    place = told.of("stages").get("place")
    return probe_verdict.with_findings(made, costs, tuple(place) if place else None, load)


def predicted(found: predict.Rate, batch: int, step_s: float | None) -> Prediction:
    """A rate as it is reported, with how busy a device could be."""
    return Prediction(
        workers=found.workers, rate=found.rate, low=found.low, high=found.high,
        measured=found.measured, bound=found.bound,
        busy=None if step_s is None else predict.busy(found, batch, step_s),
    )  # fmt: skip


def _samples(found: dict[str, Any]) -> Samples | None:
    if not found:
        return None
    return Samples(
        count=found["count"], mean_s=found["mean_s"], p50_s=found["p50_s"], p99_s=found["p99_s"],
        slowest=[SlowSample(index=index, wall_s=wall) for index, wall in found["slowest"]],
    )  # fmt: skip


def _storage(told: Told) -> Storage:
    stages, found = told.of("stages"), told.of("storage")
    return Storage(
        opens=stages["opens"], asked_bytes=stages["asked_bytes"],
        device_bytes=stages["device_bytes"], chunk_bytes=stages["chunk_bytes"],
        used_bytes=stages["used_bytes"], cold_s=found.get("cold_s"), warm_s=found.get("warm_s"),
        cold_reason=found.get("reason"), mapped=stages["mapped"],
    )  # fmt: skip


def _threads(told: Told) -> Threads:
    plain, opencv = told.of("samples"), told.of("opencv")
    all_cpu = plain["process_cpu_s"]
    return Threads(
        other_cpu_share=max(1 - plain["cpu_s"] / all_cpu, 0.0) if all_cpu > 0 else None,
        lock_share=told.of("threads").get("lock_share"),
        opencv=opencv.get("threads"), torch=told.of("load").get("torch_threads"),
        with_s=opencv.get("with_s"), without_s=opencv.get("without_s"),
    )  # fmt: skip


def _handover(told: Told) -> Handover | None:
    batch, found = told.of("collate"), told.of("hand-over")
    if not batch:
        return None
    return Handover(
        wall_s=found.get("wall_s"), bytes=batch["bytes"], tensors=batch["tensors"],
        float_share=batch["float_share"], eight_bits=batch["eight_bits"],
        narrow_s=found.get("narrow_s"), convert_s=found.get("convert_s"),
    )  # fmt: skip


def _model(costs: Costs | None) -> Model | None:
    if costs is None:
        return None
    return Model(
        alone_s=costs.alone_s, worker_cpu_s=costs.worker_cpu_s, worker_wait_s=costs.worker_wait_s,
        main_s=costs.main_s, slowdown=costs.slowdown, cpus=costs.cpus, spread=costs.spread,
    )  # fmt: skip


def _bound(
    stages: list[Stage], limits: Limits, rates: list[predict.Rate], told: Told
) -> Bound | None:
    """Decoding and transforming on all CPUs and nothing else; and copying every sample once."""
    work = sum(one.cpu_s for one in stages if one.kind in ("decode", "transform"))
    copies = told.of("copy").get("copy_rate")
    size = told.of("collate").get("bytes")
    decode = limits.cpus / work if work > 0 else None
    copy = copies / size if copies and size else None
    lowest = min((one for one in (decode, copy) if one is not None), default=None)
    best = max((one.rate for one in rates), default=None)
    return Bound(
        decode_rate=decode, copy_rate=copy, copy_bytes_per_s=copies,
        reached=best / lowest if best is not None and lowest else None,
    )  # fmt: skip


def _notes(told: Told, limits: Limits, costs: Costs | None) -> list[str]:
    notes = []
    if "torch_threads" in told.of("load") and told.of("load")["torch_threads"] is None:
        notes.append("torch is not installed: collating and handing over are not measured")
    if costs is not None and costs.cpus < BUSY_MACHINE * limits.cpus:
        notes.append(
            f"others kept the CPUs busy: {costs.cpus:.1f} of {limits.cpus:g} were to be had, and "
            "the rates are those of such times"
        )
    size = told.of("collate").get("measured_batch")
    if size is not None and size < told.of("load")["batch_size"]:
        notes.append(f"samples are slow: loaders were measured with batches of {size}")
    return notes
