"""Reads the bundle of ``whyidle run``: what its hook and its sampler recorded of a whole run.

The file that is read is ``bundle.json``; the events of every process and the readings lie in
folders beside it. Profiled steps (``windows``) are traces with a reader of their own, and
``files_beside`` names them, so that a folder stands for all that it holds. All instants are Unix
nanoseconds, on the clock that the traces of PyTorch also count on.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from whyidle.errors import NothingRecorded, UnknownEvidence, UnreadableEvidence
from whyidle.model import (
    BATCHES,
    MOMENTS,
    SETTINGS,
    SITES,
    Evidence,
    Facts,
    SourceInfo,
    frame,
)
from whyidle.readers.bundle_events import ProcessEvents, process_events, text, whole
from whyidle.readers.bundle_samples import sampled_tables
from whyidle.readers.combine import RANK_IN_NAME
from whyidle.readers.source_bytes import SourceBytes

NAME = "bundle"
MANIFEST = "bundle.json"
SCHEMA = "whyidle.bundle/1"
MOST_MANIFEST = 16 << 20
MOST_PROCESSES = 20_000
CLOCK_ERROR_NS = 1_000_000
"""Both clocks are the machine's wall clock, read once per process; they drift less than this."""

LONGEST_NS = 1000 * 86_400 * 10**9
"""A process that claims to have lived longer has a damaged clock."""

_STATED = re.compile(rb'"schema"\s*:\s*"(whyidle\.bundle/[^"\\]{1,40})"')
_KINDS = tuple(kind for kind in MOMENTS["kind"].categories if kind not in ("process", "step"))
_SITES = {"loader": "loader_iterated", "optimizer": "optimizer_stepped", "model": "model"}
"""Events that tell of a line by the way -> what the table ``sites`` calls them."""

Progress = Callable[[int, int], None]


def sniff(path: Path, head: bytes) -> bool:
    """Whether this is the manifest of a bundle, of whatever version."""
    return path.name.endswith(MANIFEST) and _STATED.search(head) is not None


def files_beside(manifest: Path) -> Iterator[Path]:
    """Files of the bundle that other readers may know, in order of their names."""
    for folder in ("windows", "samples"):
        found = sorted((manifest.parent / folder).glob("*"))
        yield from (
            path
            for path in found
            if path.is_file() and path.suffix != ".jsonl" and not path.name.startswith(".")
        )


def read(path: Path, progress: Progress | None = None) -> Evidence:
    """The tables moments, batches, sites, settings and samples of one bundle."""
    manifest, digest = _manifest(path)
    files = _files(path.parent / "processes")
    if len(files) > MOST_PROCESSES:
        raise UnreadableEvidence(
            str(path),
            f"events of {len(files)} processes beside it, more than {MOST_PROCESSES}",
            "Observe fewer ranks, or a shorter run.",
        )
    readings = _files(path.parent / "samples")
    report = _Report([*files, *readings], progress)
    found = [process_events(file, report.took) for file in files]
    host = text(manifest.get("host"), 256)
    job = _job_name(manifest)
    tables = _tables(found, host, manifest)
    notes = _attached(path, manifest) or _notes(found)
    for file in readings:
        told, broken = sampled_tables(file, host, job)
        report.took(file.stat().st_size)
        notes += [f"{file.name}: {broken} broken lines are left out"] if broken else []
        for name, table in told.items():
            tables[name] = pl.concat([tables[name], table]) if name in tables else table
    tables = {name: table for name, table in tables.items() if table.height}
    if "moments" not in tables and "samples" not in tables:
        raise NothingRecorded(
            str(path),
            "a bundle in which no process says anything",
            "The job never imported torch, or its processes lie on another machine. Is the "
            "folder whole?",
        )
    if "samples" in tables:
        tables["samples"] = tables["samples"].sort("t_ns", maintain_order=True)
    events = sum(table.height for table in tables.values())
    source = SourceInfo(
        str(path), NAME, None, events, digest, tuple(notes), clock_error_ns=CLOCK_ERROR_NS
    )
    return Evidence(tables, _facts(found), (source,))


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*.jsonl") if path.is_file())


class _Report:
    """Adds up bytes for a progress bar."""

    def __init__(self, files: Sequence[Path], progress: Progress | None) -> None:
        self._size = sum(file.stat().st_size for file in files) if progress else 0
        self._done = 0
        self._progress = progress

    def took(self, count: int) -> None:
        self._done += count
        if self._progress is not None:
            self._progress(min(self._done, self._size), self._size)


def _manifest(path: Path) -> tuple[dict[str, Any], str]:
    with SourceBytes(path) as source:
        if source.size > MOST_MANIFEST:
            raise UnreadableEvidence(
                str(path), f"{source.size} bytes, which no manifest has", "Observe the job again."
            )
        data = bytearray(MOST_MANIFEST)
        view, filled = memoryview(data), 0
        while count := source.read_into(view[filled:]):
            filled += count
        digest = source.digest()
    try:
        found = msgspec.json.decode(bytes(view[:filled]))
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise UnreadableEvidence(
            str(path), f"a manifest that is cut or edited ({error})", "Observe the job again."
        ) from error
    schema = found.get("schema") if isinstance(found, dict) else None
    if schema != SCHEMA:
        raise UnknownEvidence(
            str(path),
            f"a bundle of another version ({str(schema)[:60]}; this whyidle reads {SCHEMA})",
            "Read it with the whyidle that recorded it, or a newer one: pip install -U whyidle.",
        )
    return found, digest


def _job_name(manifest: dict[str, Any]) -> str:
    """What the job is called: the script that was started, else the program."""
    command = manifest.get("command")
    words = [word for word in command if isinstance(word, str)] if isinstance(command, list) else []
    scripts = [word for word in words if word.endswith((".py", ".sh"))]
    named = (scripts or words or ["job"])[0]
    return named.replace("\\", "/").rsplit("/", 1)[-1][:120] or "job"


def _tables(
    found: list[ProcessEvents], host: str | None, manifest: dict[str, Any]
) -> dict[str, pl.DataFrame]:
    ranks = _ranks(found)
    moments, batches, sites = [], [], []
    settings = _of_the_job(manifest)
    within = _Within(manifest)
    trained = [process for process in found if process.steps.height]
    for process, rank in zip(found, ranks, strict=True):
        about = {
            "source": pl.lit(0, pl.UInt16),
            "rank": pl.lit(rank, pl.Int32),
            "process": pl.lit(process.pid, pl.Int64),
        }
        moments += [
            frame(MOMENTS, within.all_of(table).with_columns(**about))
            for table in _moments(process)
        ]
        batches.append(frame(BATCHES, process.batches.with_columns(**about)))
        sites += [
            (rank, process.pid, what, within.one(file), line, detail)
            for what, file, line, detail in _sites(process)
            if process.about.get("role") != "worker"
        ]
        if process in trained or not trained:
            settings += [(rank, key, value) for key, value in _settings(process)]
    told = pl.DataFrame(
        settings, {"rank": pl.Int32, "key": pl.String, "value": pl.String}, orient="row"
    )
    schema = {"rank": pl.Int32, "process": pl.Int64, "what": pl.String, "file": pl.String,
              "line": pl.Int32, "detail": pl.String}  # fmt: skip
    places = pl.DataFrame(sites, schema, orient="row").unique(maintain_order=True)
    zero = pl.lit(0, pl.UInt16).alias("source")
    return {
        "moments": pl.concat(moments) if moments else frame(MOMENTS),
        "batches": pl.concat(batches) if batches else frame(BATCHES),
        "sites": frame(SITES, places.with_columns(zero)),
        "settings": frame(SETTINGS, told.with_columns(zero, pl.lit(host).alias("host"))),
    }


def _ranks(found: list[ProcessEvents]) -> list[int | None]:
    """The rank of each process: its own, that of its profile, or that of the one it serves."""
    own = {id(process): _own_rank(process) for process in found}
    by_pid = {process.pid: own[id(process)] for process in found if process.steps.height}
    return [
        own[id(process)]
        if own[id(process)] is not None or process.steps.height
        else by_pid.get(whole(process.about.get("ppid")))
        for process in found
    ]


def _own_rank(process: ProcessEvents) -> int | None:
    stated = whole(process.about.get("rank"))
    if stated is None and process.end is not None:
        stated = whole(process.end.get("rank"))
    for window in process.others.get("window", ()):
        named = RANK_IN_NAME.search(text(window.get("file")) or "")
        if named and stated is None:
            stated = int(named.group(1))
    return stated if stated is not None and 0 <= stated < 1 << 31 else None


def _moments(process: ProcessEvents) -> Iterator[pl.DataFrame]:
    """The rows of ``moments``: the process, its steps, their waits, and its pauses."""
    start, end = process.started_ns, process.last_ns
    if start is None or end is None or not 0 <= end - start < LONGEST_NS:
        return
    lasted = (pl.col("end_ns") - pl.col("start_ns")).alias("length_ns")
    life = pl.DataFrame({"start_ns": [start], "end_ns": [end]}).with_columns(
        lasted,
        pl.lit("process").alias("kind"),
        pl.lit(None if process.end else "killed", pl.String).alias("what"),
    )
    yield life
    steps = process.steps
    yield steps.with_columns(lasted, pl.lit("step").alias("kind"))
    waits = steps.filter(pl.col("wait_ns") > 0)
    yield waits.with_columns(
        pl.col("wait_ns").alias("length_ns"), pl.lit("loader_wait").alias("kind")
    )
    yield process.pauses.filter(pl.col("kind").is_in(_KINDS)).with_columns(lasted)


def _sites(process: ProcessEvents) -> Iterator[tuple[str, str | None, int | None, str]]:
    """what, file, line and detail of each line of the source that the process told of."""
    for event in process.others.get("site", ()):
        what, detail = text(event.get("what"), 64), event.get("detail")
        if what:
            yield what, *_place(event), _json(detail if isinstance(detail, dict) else {})
    waited = process.waits
    for kind, what in _SITES.items():
        for event in process.others.get(kind, ()):
            hidden = ("event", "file", "line", "made_file", "made_line")
            known = {k: v for k, v in event.items() if k not in hidden}
            if kind == "loader" and whole(event.get("loader")) in waited:
                known["waited_ns"], known["profiled_ns"] = waited[event["loader"]]
            detail = _json(known)
            yield what, *_place(event), detail
            if event.get("made_file"):
                made = {"file": event["made_file"], "line": event.get("made_line")}
                yield (
                    what.replace("iterated", "made").replace("stepped", "made"),
                    *_place(made),
                    detail,
                )


class _Within:
    """Files below the folder where the job was started are named from there, as traces do."""

    def __init__(self, manifest: dict[str, Any]) -> None:
        folder = text(manifest.get("cwd"))
        self._prefix = folder.rstrip("/") + "/" if folder and folder != "/" else None

    def one(self, file: str | None) -> str | None:
        return file.removeprefix(self._prefix) if file and self._prefix else file

    def all_of(self, table: pl.DataFrame) -> pl.DataFrame:
        if "file" not in table.columns or self._prefix is None:
            return table
        return table.with_columns(pl.col("file").str.strip_prefix(self._prefix))


def _place(event: dict[str, Any]) -> tuple[str | None, int | None]:
    line = whole(event.get("line"))
    return text(event.get("file")), line if line is not None and 0 <= line < 1 << 31 else None


def _json(value: dict[str, Any]) -> str:
    return msgspec.json.encode(value).decode()[:20_000]


def _of_the_job(manifest: dict[str, Any]) -> list[tuple[int | None, str, str]]:
    """Facts of the whole job, which are of no rank."""
    command = manifest.get("command")
    words = [str(word) for word in command] if isinstance(command, list) else []
    found = {
        "job": _job_name(manifest),
        "command": " ".join(words)[:4096],
        "exit_code": _word(manifest.get("exit_code")),
    }
    return [(None, key, value) for key, value in found.items() if value]


def _settings(process: ProcessEvents) -> Iterator[tuple[str, str]]:
    """Facts in words about a process and the torch in it."""
    found: dict[str, Any] = {
        key: process.about.get(key)
        for key in ("python", "cpus", "cpu_quota", "local_rank", "world_size")
    }
    for event in process.others.get("torch", ()):
        found |= {"torch" if k == "version" else k: v for k, v in event.items() if k != "event"}
        found |= _flags("flag.", event.get("flags"))
    for event in process.others.get("end_flags", ()):
        found |= _flags("flag_at_end.", event.get("flags"))
    for event in process.others.get("remedy", ()):
        if event.get("applied"):
            found[f"remedy.{text(event.get('name'), 64)}"] = event.get("value")
    for key, value in found.items():
        told = _word(value)
        if told is not None:
            yield key[:120], told


def _flags(prefix: str, flags: Any) -> dict[str, Any]:
    known = flags.items() if isinstance(flags, dict) else ()
    return {f"{prefix}{name}": value for name, value in known}


def _word(value: Any) -> str | None:
    """A single fact as text, true and false as in JSON; None for what is no single fact."""
    if value is None or isinstance(value, dict | list):
        return None
    return str(value).lower() if isinstance(value, bool) else str(value)[:1000]


def _attached(path: Path, manifest: dict[str, Any]) -> list[str]:
    """What to do with what ``whyidle attach`` kept: nobody counted steps in it."""
    options = manifest.get("options")
    if not isinstance(options, dict) or "attach" not in options:
        return []
    told = path.with_name("diagnosis.json")
    again = f": whyidle render {told}" if told.is_file() else ""
    return [
        "kept by whyidle attach, which saw no steps: only its readings are judged here. What the "
        f"stacks told is in its own report{again}"
    ]


def _notes(found: list[ProcessEvents]) -> list[str]:
    """What a reader of the report should know of the recording."""
    notes = []
    trained = [process for process in found if process.steps.height]
    if found and not trained:
        notes.append(
            "no process made a training step: there is no time of steps to judge. Where a step is "
            "something else than optimizer.step(), call whyidle.step() once per step"
        )
    killed = [str(process.pid) for process in trained if process.end is None]
    if killed:
        which = ", ".join(killed[:4]) + (f" and {len(killed) - 4} more" if killed[4:] else "")
        notes.append(f"process {which} never said that it ended: it was killed, or still runs")
    broken = sum(process.broken for process in found)
    if broken:
        notes.append(f"{broken} lines of events that were cut or damaged are left out")
    for process in found:
        for event in process.others.get("problem", ())[:4]:
            where, why = text(event.get("where"), 64), text(event.get("error"), 300)
            notes.append(f"process {process.pid}: the hook for {where} is switched off: {why}")
    return list(dict.fromkeys(notes))[:12]


def _facts(found: list[ProcessEvents]) -> Facts:
    """The versions, as the training processes say."""
    versions: dict[str, str] = {}
    for process in found:
        for event in process.others.get("torch", ()):
            told = {"torch_version": event.get("version"), "cuda_version": event.get("cuda")}
            versions |= {k: v[:60] for k, v in told.items() if isinstance(v, str)}
        python = process.about.get("python")
        if process.steps.height and isinstance(python, str):
            versions["python_version"] = python[:60]
    return Facts(versions=versions)
