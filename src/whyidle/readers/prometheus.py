"""Reads readings of GPUs as Prometheus has them: scrapes, OpenMetrics, and answers of its API.

- the text of ``curl HOST:9400/metrics``, of any exporter of ``prometheus_names``, with the times
  that OpenMetrics (seconds) or Prometheus (milliseconds) write, or none;
- the JSON of ``/api/v1/query_range`` and ``/api/v1/query``: what a cluster's Prometheus keeps.

DCGM's blanks are unknown readings here too, also where a double has eaten their last digits.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from whyidle.errors import NothingRecorded, UnknownEvidence, UnreadableEvidence
from whyidle.model import METRICS, Evidence
from whyidle.readers.dcgm_fields import EITHER, PERCENT
from whyidle.readers.printed_text import decoded, printed
from whyidle.readers.prometheus_cpus import CPU_NAMES, cpu_samples, job_of
from whyidle.readers.prometheus_names import LABELS, NAMES
from whyidle.readers.readings import Place, Readings
from whyidle.readers.series import LATEST_NS, epoch_ns, times, values

NAME = "prometheus"

_TYPE_LINE = re.compile(r"^# (?:TYPE|HELP|UNIT) [a-zA-Z_:][\w:]*", re.M)
_SAMPLE_LINE = re.compile(r"^[a-zA-Z_:][\w:]*(?:\{[^\n]*\})? +\S+(?: +\S+)?[ \t]*$", re.M)
_ANSWER = re.compile(r'^\s*\{.{0,200}?"status"\s*:\s*"(?:success|error)"', re.S)
_LABELS = r'(?:\{((?:[^"{}]|"(?:[^"\\]|\\.)*")*)\})?'
_LINE = rf"^([a-zA-Z_:][\w:]*){_LABELS}\s+(\S+)(?:\s+(-?[\d.eE+]+))?\s*(?:#.*)?$"
ONLY_THESE = "Give a scrape of dcgm-exporter or nvidia_gpu_exporter, or the JSON of query_range."
MIXED = "unit unclear: 1 may be 1 % or 100 %"


def sniff(path: Path, head: bytes) -> bool:
    """Whether the first bytes are a scrape or an answer of Prometheus."""
    text = decoded(head)
    if text.lstrip()[:1] == "{":
        return _ANSWER.match(text) is not None and ('"data"' in text or '"errorType"' in text)
    start = next((line for line in text.splitlines() if line.strip()), "")
    is_scrape = _TYPE_LINE.match(start) is not None or _SAMPLE_LINE.fullmatch(start) is not None
    return is_scrape and any(f"{name}{end}" in text for name in _stems(text) for end in "{ ")


def _stems(text: str) -> list[str]:
    found = set(re.findall(r"^([a-zA-Z_:][\w:]*)[{ ]", text, re.M))
    known = NAMES.keys() | CPU_NAMES
    return [name for name in found if name in known or name.startswith(("DCGM_", "nvidia_"))]


def read(path: Path, progress: Callable[[int, int], None] | None = None) -> Evidence:
    """The readings in one file."""
    found = printed(path, progress)
    readings = Readings()
    readings.notes += found.notes
    if found.text.lstrip()[:1] == "{":
        rows = _answer_rows(path, found.text)
        readings.clock_error_ns = 1_000_000
    else:
        rows = _scrape_rows(found.text, readings)
    others = rows.filter(~pl.col("name").is_in([*NAMES, *CPU_NAMES]))["name"].n_unique()
    _take_names(rows, readings)
    known = rows.filter(pl.col("name").is_in([*NAMES]))
    cpus = cpu_samples(_placed(rows.filter(pl.col("name").is_in([*CPU_NAMES]))))
    if cpus.height:
        readings.bulk(cpus)
    if not known.height and not cpus.height:
        raise NothingRecorded(
            str(path),
            f"metrics of Prometheus, and none of the {others} is a reading of a GPU known here",
            ONLY_THESE,
        )
    if others:
        readings.note(f"{others} metrics that are no readings of GPUs known here were left out")
    _take(known, readings)
    return readings.evidence(path, NAME, found.digest)


def _scrape_rows(text: str, readings: Readings) -> pl.DataFrame:
    """name, labels (text), value (text), t_ns of each line of a scrape."""
    lines = pl.Series("line", text.split("\n"), dtype=pl.String)
    lines = lines.filter(~lines.str.starts_with("#") & (lines.str.len_bytes() > 0))
    rows = lines.str.extract_groups(_LINE).struct.unnest()
    rows.columns = ["name", "labels", "value", "when"]
    rows = rows.filter(pl.col("name").is_not_null())
    given = rows["when"]
    if given.null_count() < len(given):
        readings.clock_error_ns = 1_000_000
    when = epoch_ns(given, given.cast(pl.Float64, strict=False))
    return rows.with_columns(when.alias("t_ns"), pl.col("labels").fill_null("")).drop("when")


def _answer_rows(path: Path, text: str) -> pl.DataFrame:
    """name, labels (text), value (text), t_ns of an answer of the API."""
    try:
        answer = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise UnreadableEvidence(
            str(path), f"JSON of Prometheus that cannot be read ({error})", "Save the answer again."
        ) from error
    data = answer.get("data")
    if answer.get("status") != "success" or not isinstance(data, dict):
        raise UnknownEvidence(
            str(path),
            f"an answer of Prometheus without data: {answer.get('error', 'no result')}",
            ONLY_THESE,
        )
    names: list[str] = []
    labels: list[str] = []
    whens: list[float] = []
    texts: list[str] = []
    result = data.get("result")
    for series in result if isinstance(result, list) else []:
        points = _points(series)
        metric = series.get("metric", {}) if points else {}
        told = ",".join(f'{key}="{value}"' for key, value in metric.items() if key != "__name__")
        names += [str(metric.get("__name__", "without a name"))] * len(points)
        labels += [told] * len(points)
        whens += [point[0] for point in points]
        texts += [str(point[1]) for point in points]
    seconds = pl.Series("t", whens, dtype=pl.Float64)
    t_ns = (seconds * 1000).round().cast(pl.Int64) * 1_000_000
    schema = {"name": pl.String, "labels": pl.String, "value": pl.String}
    rows = pl.DataFrame({"name": names, "labels": labels, "value": texts}, schema=schema)
    return rows.with_columns(t_ns.alias("t_ns"))


def _points(series: Any) -> list[Any]:
    if not isinstance(series, dict) or not isinstance(series.get("metric"), dict):
        return []
    found = series.get("values") or ([series["value"]] if "value" in series else [])
    return [
        point for point in found
        if isinstance(point, list) and len(point) == 2 and type(point[0]) in (int, float)
        and abs(point[0]) < LATEST_NS / 1e9
    ]  # fmt: skip


def _label(key: str) -> pl.Expr:
    """The first label that says this, as text; null where none does or it is empty."""
    found = [
        pl.col("labels").str.extract(rf'(?:^|[,\s]){name}\s*=\s*"((?:[^"\\]|\\.)*)"', 1)
        for name in LABELS[key]
    ]
    return pl.coalesce(pl.when(text.str.len_bytes() > 0).then(text) for text in found).alias(key)


def _placed(rows: pl.DataFrame) -> pl.DataFrame:
    """The rows with whose they are: labels are looked at once per distinct set of labels."""
    sets = rows.select("labels").unique()
    sets = sets.with_columns(_label(key) for key in LABELS)
    whole = pl.coalesce("gpu", "bus", "index")
    index = pl.col("index").str.extract(r"^(?:nvidia)?(\d{1,4})$", 1).cast(pl.Int32, strict=False)
    split = pl.col("instance").is_not_null()
    sets = sets.with_columns(
        pl.when(split).then(whole + "/gi" + pl.col("instance")).otherwise(whole).alias("gpu"),
        pl.when(~split).then(index).alias("device"),
        pl.col("pid").cast(pl.Int64, strict=False).alias("process"),
        job_of().alias("job"),
    )
    return rows.join(sets, on="labels", how="left", maintain_order="left")


def _take(rows: pl.DataFrame, readings: Readings) -> None:
    placed = _placed(rows)
    for (name,), part in placed.group_by("name", maintain_order=True):
        metric, factor = NAMES[str(name)]
        found, why = values(part["value"], "")
        if name in EITHER:
            found, why = _either(found, why)
        else:
            found = times(found, factor)
        readings.bulk(
            part.select("gpu", "device", "host", "process", "job", "t_ns").with_columns(
                found.alias("value"), why.alias("reason"),
                pl.lit(metric).alias("metric"), pl.lit(METRICS[metric]).alias("unit"),
            )
        )  # fmt: skip
        _settings(part.select("gpu", "device", "host", "model"), readings)


def _settings(seen: pl.DataFrame, readings: Readings) -> None:
    for gpu, device, host, name in seen.unique(maintain_order=True).rows():
        if name:
            readings.setting(Place(gpu, device, host), "name", name)


def _either(found: pl.Series, why: pl.Series) -> tuple[pl.Series, pl.Series]:
    """A utilization that is a percentage or a ratio: told by its values, else unknown."""
    known = found.drop_nulls()
    if (known > 1).any():
        return times(found, PERCENT), why
    if (known != known.round()).any():
        return found, why
    unclear = (found == 1).fill_null(False)
    return found.set(unclear, None), why.set(unclear, MIXED)


def _take_names(rows: pl.DataFrame, readings: Readings) -> None:
    """Facts from the constant metrics that only carry labels."""
    info = rows.filter(pl.col("name").is_in(["nvidia_smi_gpu_info", "nvidia_gpu_info"]))
    if not info.height:
        return
    placed = _placed(info)
    for row in (
        placed.select("gpu", "device", "host", "bus", "labels")
        .unique(maintain_order=True)
        .iter_rows(named=True)
    ):
        place = Place(row["gpu"], row["device"], row["host"])
        for key, label in (
            ("name", "name"),
            ("driver", "driver_version"),
            ("bus_id", "pci_bus_id"),
        ):
            told = re.search(rf'(?:^|,)\s*{label}="([^"]*)"', row["labels"])
            if told:
                readings.setting(place, key, told[1])
