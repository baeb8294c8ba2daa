"""A probe of what ``whyidle run`` recorded of a job's loader; nothing of the user is run."""

from __future__ import annotations

import polars as pl

from whyidle import __version__
from whyidle.ceiling import Loading, loading_of
from whyidle.data import predict, probe_verdict
from whyidle.data.limits import Limits
from whyidle.data.predict import Costs
from whyidle.data.probe_record import Model, Prediction, Probe, Samples, SlowSample, Stage, Storage
from whyidle.data.spec import Spec
from whyidle.errors import UsageError
from whyidle.model import Evidence

SPREAD = 0.08
"""Relative standard deviation put on a recorded rate, whose batches lay beside a training job."""


def recorded(spec: Spec, *, step_s: float | None, limits: Limits) -> Probe:
    """What the recorded batches say; UsageError where there are none.

    The CPUs are those of the recorded job where it says so; other limits are not known.
    """
    from whyidle.readers import read

    evidence = read([spec.where])
    loading = loading_of(evidence)
    if loading is None or loading.unit != "samples":
        raise UsageError(
            f"{spec.text}: no loader was timed in this bundle, or its batches have no samples.\n"
            "Record one with: whyidle run -o BUNDLE -- CMD, or probe the data set itself."
        )
    return judged(spec, evidence, loading, step_s, limits)


def judged(
    spec: Spec, evidence: Evidence, loading: Loading, step_s: float | None, limits: Limits
) -> Probe:
    """The record of the batches of the first rank's training loader."""
    batches = _settled(evidence.tables["batches"])
    items, cpus = loading.items, loading.cpus or limits.cpus
    collate = float(batches["collate_ns"].fill_null(0).mean() or 0.0) / 1e9 / items  # type: ignore[arg-type]
    wall, cpu = loading.batch_s / items, min(loading.batch_cpu_s, loading.batch_s) / items
    stages = [
        Stage(
            name="__getitem__, all of it", kind="sample", wall_s=max(wall - collate, 0.0),
            cpu_s=max(cpu - collate, 0.0), waiting_s=max(wall - cpu, 0.0),
            rate=1 / (wall - collate) if wall > collate else None,
        ),
        Stage(
            name="collate", kind="collate", wall_s=collate, cpu_s=collate, waiting_s=0.0,
            rate=1 / collate if collate > 0 else None,
        ),
    ]  # fmt: skip
    costs = Costs(wall, cpu, max(wall - cpu, 0.0), 0.0, 1.0, cpus, SPREAD, max(round(items), 1))
    known = {loading.workers: (loading.rate, SPREAD)}
    wait_share = costs.worker_wait_s / wall
    rates = predict.rates(costs, predict.candidates(cpus, known, wait_share), known)
    made = Probe(
        whyidle=__version__, spec=spec.text, kind=spec.kind, samples=None,
        batch_size=costs.batch, workers=loading.workers, order=None, step_s=step_s, seconds=0.0,
        stages=stages, sample=_samples(batches, items), storage=_storage(batches, items),
        threads=None, handover=None, limits=_limits(limits, cpus),
        model=Model(
            alone_s=wall, worker_cpu_s=cpu, worker_wait_s=costs.worker_wait_s, main_s=0.0,
            slowdown=1.0, cpus=cpus, spread=SPREAD,
        ),
        rates=[
            Prediction(
                workers=one.workers, rate=one.rate, low=one.low, high=one.high,
                measured=one.measured, bound=one.bound,
                busy=None if step_s is None else predict.busy(one, costs.batch, step_s),
            )
            for one in rates
        ],
        pick=predict.pick(rates).workers, bound=None, findings=[],
        notes=[
            "from a recording: stages inside __getitem__ and handing over were not timed, so rates "
            "of other numbers of workers are optimistic; probe the data set itself for those"
        ],
    )  # fmt: skip
    return probe_verdict.with_findings(made, costs, None, {})


def _settled(batches: pl.DataFrame) -> pl.DataFrame:
    """Without the first batch of each process, which opens files and fills caches."""
    later = batches.filter(pl.col("start_ns") != pl.col("start_ns").min().over("process"))
    return later if later.height else batches


def _samples(batches: pl.DataFrame, items: float) -> Samples:
    """The spread over batches, each as seconds per sample; the index is the batch's number."""
    walls = (batches["wall_ns"].cast(pl.Float64) / 1e9 / items).to_list()
    order = sorted(range(len(walls)), key=walls.__getitem__)
    return Samples(
        count=len(walls), mean_s=sum(walls) / len(walls), p50_s=walls[order[len(walls) // 2]],
        p99_s=walls[order[int(0.99 * (len(walls) - 1))]],
        slowest=[SlowSample(index=n, wall_s=walls[n]) for n in reversed(order[-5:])],
    )  # fmt: skip


def _storage(batches: pl.DataFrame, items: float) -> Storage | None:
    read = batches["read_bytes"].drop_nulls()
    if not read.len():
        return None
    return Storage(
        opens=0.0, asked_bytes=float(read.mean() or 0.0) / items, device_bytes=None,  # type: ignore[arg-type]
        chunk_bytes=None, used_bytes=None, cold_s=None, warm_s=None,
        cold_reason="a recording does not tell", mapped=False,
    )  # fmt: skip


def _limits(here: Limits, cpus: float) -> Limits:
    """Only what is known of the machine that was recorded."""
    return Limits(
        cpus=cpus, affinity=max(round(cpus), 1), quota=None, shm_bytes=None, shm_free=None,
        open_files=None, memory_bytes=None, memory_free=None, load=None,
    )  # fmt: skip
