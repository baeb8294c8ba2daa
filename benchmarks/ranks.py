"""A job of a thousand ranks: wall, CPU and memory of the whole program, for ever more ranks.

``python benchmarks/ranks.py [--ranks 125 250 500 1000] [--rounds 3] [--jobs N] [--gzip]
[--on ENGINE] [--json FILE]``

The traces are simulated (examples/simulate): a transformer trained with DistributedDataParallel,
six steps, about 3,000 events and 650 kB of JSON per rank; one rank is late at every all-reduce,
and every rank's clock is off by up to a millisecond. A few ranks are simulated; the others repeat
them under their own rank, process and clock, so that all still end each collective together.

Memory is the peak of the sum over the whole tree of processes, sampled twenty times a second in a
run of its own, since sampling slows the run down: PSS (``/proc/PID/smaps_rollup``), in which a page
shared by n processes counts as 1/n for each.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

TEMPLATES = 8
LATE_RANK = 5
LATE_S = 0.02
SHOWN_RANKS = 29
"""PyTorch writes this many ranks of a group, then "..." and the last one."""


@dataclass(frozen=True)
class Taken:
    """One run: wall clock, user and system CPU of all processes, peak PSS of all together."""

    ranks: int
    wall_s: float
    cpu_s: float
    peak_mib: float


def build(folder: Path, ranks: int, packed: bool = False) -> Path:
    """Write the traces of a job unless they are there; where they lie."""
    target = folder / f"{ranks}_ranks{'_gzip' if packed else ''}"
    if target.is_dir():
        return target
    half = target.with_suffix(".part")
    half.mkdir(parents=True, exist_ok=True)
    for rank, text in traces(ranks):
        if packed:
            (half / f"rank{rank}.json.gz").write_bytes(gzip.compress(text.encode(), 6, mtime=0))
        else:
            (half / f"rank{rank}.json").write_text(text, encoding="utf-8")
    half.rename(target)
    return target


def traces(ranks: int) -> Iterator[tuple[int, str]]:
    """(rank, its trace as JSON) of every rank."""
    from examples.simulate.models import transformer
    from examples.simulate.training import Plan, run

    model = transformer(depth=2, batch=8, length=128)
    plan = Plan(model=model, steps=6, scalar_reads=4, ranks=TEMPLATES, slow_rank=0, slow_s=LATE_S)
    documents = [one.recorder.document() for one in run(plan, "simulated/ranks")]
    texts = [json.dumps(document) for document in documents]
    base_ns = documents[0]["baseTimeNanoseconds"]
    few = list(range(TEMPLATES))
    every = list(range(ranks))
    shown = every if ranks <= SHOWN_RANKS else [*every[:SHOWN_RANKS], "...", every[-1]]
    told = f"[{', '.join(map(str, shown))}]"
    late = min(LATE_RANK, ranks - 1)
    for rank in every:
        number = 0 if rank == late else 1 + rank % (TEMPLATES - 1)
        off_ns = rank * 7_919_000 % 1_000_003  # up to a millisecond
        yield rank, (
            texts[number]
            .replace(f'"rank": {number}, "world_size": {TEMPLATES}',
                     f'"rank": {rank}, "world_size": {ranks}')
            .replace(f'"Process Group Ranks": "{few}"', f'"Process Group Ranks": "{told}"')
            .replace(f'"ranks": {few}', f'"ranks": {every}')
            .replace(f'"Group size": {TEMPLATES}', f'"Group size": {ranks}')
            .replace(f'"pid": {4100 + number},', f'"pid": {4100 + rank},')
            .replace(f'"baseTimeNanoseconds": {base_ns}',
                     f'"baseTimeNanoseconds": {base_ns + off_ns}')
        )  # fmt: skip


def measured(command: list[str], ranks: int, *, memory: bool = False) -> Taken:
    """Run a command to its end; with ``memory`` watch its tree, which slows it down."""
    begin = time.perf_counter()
    before = os.times()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    peak = 0
    while memory and process.poll() is None:
        peak = max(peak, sum(_pss_kib(pid) for pid in _tree(process.pid)))
        time.sleep(0.05)
    process.wait()
    wall = time.perf_counter() - begin
    if process.returncode:
        raise RuntimeError(f"exit {process.returncode}: {' '.join(command)[:300]}")
    after = os.times()
    cpu = sum(after[2:4]) - sum(before[2:4])
    return Taken(ranks, wall, cpu, peak / 1024)


def _tree(pid: int) -> Iterator[int]:
    yield pid
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return
    for child in children:
        yield from _tree(int(child))


def _pss_kib(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:")), 0)


def main() -> None:
    """Parse the command line, measure, print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[125, 250, 500, 1000])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--jobs", type=int, help="processes of the pool")
    parser.add_argument("--on", help="an engine, as for whyidle diagnose")
    parser.add_argument("--gzip", action="store_true", help="gzipped traces")
    parser.add_argument("--folder", type=Path, help="where the traces are kept between runs")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = chosen.folder or Path(temporary)
        found = [_median(chosen, folder, ranks) for ranks in chosen.ranks]
    print(f"{'ranks':>6} {'wall s':>8} {'CPU s':>8} {'CPU ms/rank':>12} {'peak MiB':>9}")
    for one in found:
        each = one.cpu_s / one.ranks * 1e3
        print(f"{one.ranks:6} {one.wall_s:8.2f} {one.cpu_s:8.2f} {each:12.1f} {one.peak_mib:9.0f}")
    if chosen.json:
        chosen.json.write_text(json.dumps([asdict(one) for one in found], indent=1) + "\n")


def _median(chosen: argparse.Namespace, folder: Path, ranks: int) -> Taken:
    where = build(folder, ranks, chosen.gzip)
    command = [sys.executable, "-m", "whyidle", "diagnose", "--format", "json", str(where)]
    command += ["--jobs", str(chosen.jobs)] if chosen.jobs else []
    command += ["--on", chosen.on] if chosen.on else []
    runs = [measured(command, ranks) for _ in range(chosen.rounds)]
    return Taken(
        ranks,
        statistics.median(run.wall_s for run in runs),
        statistics.median(run.cpu_s for run in runs),
        measured(command, ranks, memory=True).peak_mib,
    )


if __name__ == "__main__":
    main()
