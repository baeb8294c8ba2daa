"""A probe drawn as text for a terminal, or as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from whyidle.data.probe_record import Prediction, Probe, Stage
from whyidle.diagnosis import Finding
from whyidle.render.numerals import about, count, digits, duration
from whyidle.render.plain import clean, clean_block

Row = Sequence[str]


def terminal(found: Probe, width: int = 100) -> str:
    """Plain text; no line is wrapped, tables are aligned."""
    lines: list[str] = [_head(found), ""]
    for title, rows in _tables(found):
        lines += [title, *_aligned(rows), ""]
    lines += _facts(found)
    lines += ["", *_verdict(found)]
    return "\n".join(clean_block(line)[: 3 * max(width, 100)] for line in lines) + "\n"


def markdown(found: Probe) -> str:
    """The same as Markdown."""
    lines = [f"# {_head(found)}", ""]
    for title, rows in _tables(found):
        head, *rest = rows
        lines += [f"## {title}", "", _bar(head), _bar(["---"] * len(head)), *map(_bar, rest), ""]
    lines += ["## Facts", "", *(f"- {line}" for line in _facts(found)), "", "## Verdict", ""]
    lines += _verdict(found)
    return "\n".join(lines) + "\n"


def _head(found: Probe) -> str:
    of = "" if found.samples is None else f" of {count(found.samples, 'sample')}"
    had = "" if found.workers is None else f", {count(found.workers, 'worker')}"
    return f"Probe of {found.spec}{of}: batches of {found.batch_size}{had}"


def _tables(found: Probe) -> Iterator[tuple[str, list[Row]]]:
    if found.stages:
        yield "Stages, per sample, in one process", _stages(found.stages)
    if found.rates:
        yield "Samples per second, by number of workers", _rates(found)


def _stages(stages: Sequence[Stage]) -> list[Row]:
    rows: list[Row] = [("stage", "time", "of it CPU", "waiting", "samples/s alone")]
    rows += [
        (
            clean(one.name), duration(one.wall_s), duration(one.cpu_s), duration(one.waiting_s),
            digits(one.rate) if one.rate else "-",
        )
        for one in stages
    ]  # fmt: skip
    return rows


def _rates(found: Probe) -> list[Row]:
    busy = found.step_s is not None
    rows: list[Row] = [
        ("workers", "samples/s", "between", "", "limit") + (("busy",) if busy else ())
    ]
    for one in found.rates:
        row = (
            str(one.workers), digits(one.rate), f"{digits(one.low)} - {digits(one.high)}",
            _how(found, one), one.bound if not one.measured else "",
        )  # fmt: skip
        rows.append(row + ((about(one.busy),) if one.busy is not None else ()))
    return rows


def _how(found: Probe, one: Prediction) -> str:
    words = ["measured" if one.measured else "predicted"]
    if one.workers == found.pick:
        words.append("enough")
    if one.workers == found.workers:
        words.append("as it is")
    return ", ".join(words)


def _facts(found: Probe) -> list[str]:
    lines = []
    if found.sample is not None:
        sample = found.sample
        slow = ", ".join(f"{one.index} ({duration(one.wall_s)})" for one in sample.slowest[:3])
        lines.append(
            f"A sample takes {duration(sample.p50_s)} in the median, {duration(sample.p99_s)} at "
            f"the 99th percentile; slowest: {slow}."
        )
    lines += _storage(found)
    if found.bound is not None and found.bound.reached is not None:
        parts = []
        if found.bound.decode_rate is not None:
            parts.append(f"decoding and transforms on all CPUs {digits(found.bound.decode_rate)}/s")
        if found.bound.copy_rate is not None:
            parts.append(f"copying {digits(found.bound.copy_rate)}/s")
        lines.append(
            f"The limit: {', '.join(parts)}. The best loader reaches {about(found.bound.reached)}."
        )
    limits = found.limits
    quota = "" if limits.quota is None else f" (quota {digits(limits.quota)})"
    lines.append(
        f"CPUs: {digits(limits.cpus)} to use, {limits.affinity} by affinity{quota}."
        + ("" if limits.shm_free is None else f" Shared memory free: {_size(limits.shm_free)}.")
        + ("" if limits.open_files is None else f" Open files: {limits.open_files:,}.")
    )
    threads = found.threads
    if threads is not None and threads.lock_share is not None:
        lines.append(f"The interpreter's lock is held for {about(threads.lock_share)} of the time.")
    return lines


def _storage(found: Probe) -> list[str]:
    storage = found.storage
    if storage is None:
        return []
    words = [f"{digits(storage.opens)} files opened"]
    if storage.asked_bytes is not None:
        words.append(f"{_size(storage.asked_bytes)} read")
    if storage.chunk_bytes:
        words.append(f"{_size(storage.chunk_bytes)} of chunks unpacked")
    if storage.used_bytes:
        words.append(f"{_size(storage.used_bytes)} used")
    lines = [f"Per sample: {', '.join(words)}."]
    if storage.mapped:
        lines.append("It reads a file mapped into memory, whose reads are not counted.")
    kind = found.limits.file_system
    where = "" if kind is None else f" ({kind}{', a network' if found.limits.network else ''})"
    if storage.cold_s is not None and storage.warm_s is not None:
        lines.append(
            f"Its files{where} are read in {duration(storage.cold_s)} from storage and "
            f"{duration(storage.warm_s)} from memory."
        )
    elif storage.cold_reason:
        lines.append(f"Reading from storage{where} was not measured: {storage.cold_reason}.")
    return lines


def _verdict(found: Probe) -> list[str]:
    lines = []
    if not found.findings:
        lines.append("Nothing stands out: no remedy known here would gain 5%.")
    for number, one in enumerate(found.findings, 1):
        lines += _finding(number, one)
    lines += [f"Note: {note}." for note in found.notes]
    return lines


def _finding(number: int, one: Finding) -> Iterator[str]:
    yield f"{number}. {one.title} [{one.cause}, {one.level}]"
    for row in one.evidence:
        yield f"   {row.what}"
    for place in one.where:
        if place.file:
            yield f"   at {place.file}:{place.line}"
    for remedy in one.remedies:
        gain = remedy.gain
        rate = remedy.effect.get("samples_per_s")
        told = ""
        if gain is not None and rate is not None:
            with_ = f" with {count(int(remedy.effect['workers']), 'worker')}"
            told = f" -> about {digits(rate)}/s{with_} ({gain.speedup_mid:.2f}x)"
        yield f"   * {remedy.what} {remedy.how}{told}"


def _aligned(rows: Sequence[Row]) -> list[str]:
    wide = [max(len(row[n]) for row in rows if n < len(row)) for n in range(len(rows[0]))]
    return [
        "  " + "  ".join(
            cell.ljust(wide[n]) if n in (0, 3, 4) and len(row) != 2 else cell.rjust(wide[n])
            for n, cell in enumerate(row)
        ).rstrip()
        for row in rows
    ]  # fmt: skip


def _bar(cells: Row) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _size(found: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if found < 1000:
            return f"{digits(found)} {unit}"
        found /= 1000
    return f"{digits(found)} TB"
