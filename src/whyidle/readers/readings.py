"""Readings, settings and links as they are found, and the Evidence made of them.

What every reader of samples keeps to:

- a value is in the unit of ``model.METRICS``; an unknown one is a row with its reason;
- ``gpu`` is the uuid where the source prints one, else the bus id, else the index as text;
  ``device`` is the index as the source counts, null where it does not say;
- an instance of a partitioned GPU (MIG) is a GPU of its own: its ``gpu`` names the whole GPU and
  the instance, and its ``device`` is null, so that nobody adds it to the whole;
- times without a zone are kept as printed, as if they were UTC, the source's clock error is
  None and a note says so.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl

from whyidle.errors import NothingRecorded
from whyidle.model import LINKS, METRICS, SAMPLES, SETTINGS, Evidence, Facts, SourceInfo, frame
from whyidle.readers.unknowns import Reading, number, why_no_words

LOCAL_TIME = (
    "times are the machine's local time, its zone is not written: they are kept as printed and "
    "can be joined to other evidence only once the zone is known"
)
NO_CLOCK = "no time is written: the readings have an order and no clock"
SECOND = 1_000_000_000

SETTING_KEYS = (
    "name", "uuid", "bus_id", "index", "driver", "cuda", "pstate", "persistence_mode",
    "compute_mode", "compute_capability", "mig_mode", "mig_parent", "mig_profile", "ecc_mode",
    "virtualization", "addressing_mode", "recovery_action", "fabric_state", "fabric_status",
    "row_remap_failure", "row_remap_pending", "cpu_affinity", "numa_affinity", "gpu_numa",
    "process", "nvlink", "nic", "nccl_graph",
    "throttle.gpu_idle", "throttle.sw_power_cap", "throttle.hw_slowdown",
    "throttle.hw_thermal_slowdown", "throttle.hw_power_brake", "throttle.sw_thermal_slowdown",
    "throttle.sync_boost", "throttle.clocks_setting",
)  # fmt: skip
"""Keys of the ``settings`` table; ``throttle.*`` is "Active" or "Not Active"."""


NONE_MEANS_NONE = ("addressing_mode", "recovery_action", "virtualization")
"""Settings of which "None" is a value."""


class Place(NamedTuple):
    """What a reading is about, and when it was taken."""

    gpu: str | None = None
    device: int | None = None
    host: str | None = None
    t_ns: int | None = None
    process: int | None = None


class Readings:
    """Rows of the tables ``samples``, ``settings`` and ``links`` of one source."""

    def __init__(self) -> None:
        """Start with nothing."""
        self.notes: list[str] = []
        self.clock_error_ns: int | None = None
        self._rows: list[tuple[Any, ...]] = []
        self._frames: list[pl.DataFrame] = []
        self._settings: dict[tuple[Any, ...], None] = {}
        self._links: dict[tuple[Any, ...], None] = {}

    def sample(
        self, place: Place, metric: str, reading: Reading, period_ns: int | None = None
    ) -> None:
        """Add one reading of a metric of ``model.METRICS`` or of a user's own tag."""
        unit = METRICS.get(metric, "")
        self._rows.append((*place, metric, period_ns, reading.value, unit, reading.reason))

    def text(self, place: Place, metric: str, text: str, unit: str = "") -> None:
        """Add the reading in a text such as "38 %" or "[N/A]"."""
        self.sample(place, metric, number(text, unit))

    def setting(self, place: Place, key: str, text: str | None) -> None:
        """Add one fact in words, once; words for "no value" become null with the reason."""
        words = (text or "").strip()
        why = why_no_words(words)
        if words == "None" and key in NONE_MEANS_NONE:
            why = None
        row = (place.device, place.host, place.gpu, key, None if why else words, why)
        self._settings.setdefault(row)

    def link(self, one: str, other: str, kind: str, about: str, host: str | None = None) -> None:
        """Add how two parts of a machine are connected, once."""
        self._links.setdefault((host, one, other, kind, about))

    def bulk(self, samples: pl.DataFrame) -> None:
        """Add many readings at once: a frame with the columns of ``samples`` that are known."""
        self._frames.append(frame(SAMPLES, samples))

    def note(self, text: str) -> None:
        """Add something the source has to say, once."""
        if text not in self.notes:
            self.notes.append(text)

    @property
    def settings_found(self) -> Iterable[tuple[Any, ...]]:
        """The facts in words so far, as (device, host, gpu, key, value, reason)."""
        return self._settings.keys()

    def __len__(self) -> int:
        """How many rows of any table there are."""
        bulk = sum(found.height for found in self._frames)
        return len(self._rows) + len(self._settings) + len(self._links) + bulk

    def tables(self) -> dict[str, pl.DataFrame]:
        """The tables that hold rows, of their schemas, all of source 0."""
        names = ("gpu", "device", "host", "t_ns", "process", "metric", "period_ns", "value",
                 "unit", "reason")  # fmt: skip
        columns = list(zip(*self._rows, strict=True)) if self._rows else [()] * len(names)
        data = {
            name: pl.Series(name, column, dtype=_plain(SAMPLES[name]), strict=False)
            for name, column in zip(names, columns, strict=True)
        }
        samples = pl.concat([frame(SAMPLES, pl.DataFrame(data)), *self._frames])
        settings = _rows_frame(
            SETTINGS, ("device", "host", "gpu", "key", "value", "reason"), self._settings
        )
        links = _rows_frame(LINKS, ("host", "one", "other", "kind", "about"), self._links)
        samples, settings = _one_name_per_device(samples, settings)
        found = {"samples": samples, "settings": settings, "links": links}
        zero = pl.lit(0, dtype=pl.UInt16).alias("source")
        return {name: table.with_columns(zero) for name, table in found.items() if table.height}

    def evidence(self, path: Path, reader: str, digest: str | None) -> Evidence:
        """The Evidence of everything added; raises NothingRecorded when that is nothing."""
        tables = self.tables()
        if not tables:
            raise NothingRecorded(
                str(path),
                f"looks like output of {reader.replace('_', ' ')} and holds no reading",
                "Take it again on a machine with a GPU, or name other evidence.",
            )
        events = sum(table.height for table in tables.values())
        if "samples" in tables and not self.clock_known(tables["samples"]):
            self.note(NO_CLOCK)
        info = SourceInfo(
            str(path), reader, None, events, digest, tuple(self.notes),
            clock_error_ns=self.clock_error_ns,
        )  # fmt: skip
        return Evidence(tables, Facts(), (info,))

    @staticmethod
    def clock_known(samples: pl.DataFrame) -> bool:
        """Whether any reading has a time."""
        return samples["t_ns"].null_count() < samples.height


def _one_name_per_device(
    samples: pl.DataFrame, settings: pl.DataFrame
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """One GPU under its best name where a session calls it by uuid, bus id and index."""
    key = ["host", "device"]
    pairs = pl.concat([table.select(*key, "gpu").unique() for table in (samples, settings)])
    pairs = pairs.drop_nulls(["device", "gpu"]).unique().with_columns(pl.col("gpu").cast(pl.String))
    rank = (
        pl.when(pl.col("gpu").str.starts_with("GPU-")).then(0)
        .when(pl.col("gpu").str.contains(":")).then(1)
        .otherwise(2)
    )  # fmt: skip
    best = pairs.with_columns(rank.alias("rank")).filter(
        pl.col("rank") == pl.col("rank").min().over(key)
    )
    best = best.filter((pl.len().over(key) == 1) & (pl.col("rank") < 2)).select(*key, "gpu")
    if best.height == pairs.height or not best.height:
        return samples, settings
    named = best.rename({"gpu": "best"})

    def renamed(table: pl.DataFrame) -> pl.DataFrame:
        joined = table.join(named, on=key, how="left", nulls_equal=True, maintain_order="left")
        return joined.with_columns(
            pl.coalesce(pl.col("best").cast(pl.Categorical), "gpu").alias("gpu")
        ).drop("best")

    return renamed(samples), renamed(settings).unique(maintain_order=True)


def _plain(dtype: Any) -> Any:
    return pl.String if dtype == pl.Categorical else dtype


def _rows_frame(
    schema: dict[str, Any], names: tuple[str, ...], rows: Iterable[tuple[Any, ...]]
) -> pl.DataFrame:
    columns = list(zip(*rows, strict=True)) or [()] * len(names)
    data = {
        name: pl.Series(name, column, dtype=_plain(schema[name]), strict=False)
        for name, column in zip(names, columns, strict=True)
    }
    return frame(schema, pl.DataFrame(data))


def naive_ns(text: str, *formats: str) -> int | None:
    """Nanoseconds since 1970 of a local time without zone, read as if it were UTC."""
    for form in formats:
        try:
            moment = datetime.strptime(" ".join(text.split()), form).replace(tzinfo=UTC)
        except ValueError:
            continue
        whole = int(moment.replace(microsecond=0).timestamp())
        return whole * SECOND + moment.microsecond * 1000
    return None
