"""Speed and memory on a trace of a million events, against ``json.loads`` and HTA.

``python benchmarks/speed.py [--rounds 3] [--hta-python PYTHON] [--json FILE]``

The trace is the 216k-event file of the real evidence five times over (times, ids and step numbers
shifted), or simulated runs one after the other where the evidence is absent. Everything runs in
turns within one call, each command in its own process. HTA 0.5.0 needs its own environment with
pandas 2.3.3: name its interpreter with ``--hta-python``.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from benchmarks.measure import Cost, medians  # noqa: E402

REAL = "hta__df_index_resolver__df_index_resolver.json.gz"
TIMES = 5
APART = 10_000_000
STEP = re.compile(r"ProfilerStep#(\d+)")
LOADS = "import json,sys; json.loads(open(sys.argv[1],'rb').read())"
HTA = """
import sys, warnings, logging
warnings.filterwarnings("ignore"); logging.disable(logging.CRITICAL)
from hta.trace_analysis import TraceAnalysis
t = TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir="/")
rank = [next(iter(t.t.traces))]
t.get_temporal_breakdown(visualize=False)
t.get_idle_time_breakdown(ranks=rank, visualize=False)
t.get_comm_comp_overlap(visualize=False)
t.get_gpu_kernel_breakdown(visualize=False)
t.get_queue_length_summary(ranks=rank)
t.get_cuda_kernel_launch_stats(ranks=rank, visualize=False)
"""


def evidence() -> Path | None:
    """The folder of recorded traces, or None."""
    stated = os.environ.get("WHYIDLE_EVIDENCE")
    folder = (Path(stated) if stated else ROOT.parent / "shared" / "evidence") / "traces"
    return folder if (folder / REAL).is_file() else None


def big_trace(folder: Path) -> tuple[Path, str]:
    """Where the plain JSON trace of about 1.08 M events lies, and what it is."""
    if evidence() is None:
        return folder / "simulated_million.json", "simulated"
    return folder / "real_five_times.json", f"{REAL} x {TIMES}"


def build(folder: Path) -> None:
    """Write the trace unless the folder has it."""
    path, _ = big_trace(folder)
    if path.exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    traces = evidence()
    head, events = _simulated() if traces is None else _repeated(traces / REAL)
    half = path.with_suffix(".part")
    with half.open("w", encoding="utf-8") as out:
        out.write(json.dumps(head)[:-1] + ',\n  "traceEvents": [\n')
        for index, event in enumerate(events):
            out.write((",\n  " if index else "  ") + json.dumps(event))
        out.write("\n  ]\n}\n")
    half.rename(path)


def _repeated(real: Path) -> tuple[dict[str, Any], Iterator[dict[str, Any]]]:
    document = json.loads(gzip.decompress(real.read_bytes()))
    events = document.pop("traceEvents")
    return document, _shifted(events, TIMES)


def _simulated() -> tuple[dict[str, Any], Iterator[dict[str, Any]]]:
    from examples.simulate.models import transformer
    from examples.simulate.training import Plan, run

    plan = Plan(model=transformer(depth=24, batch=2, length=128), optimizer="for_loop", steps=8)
    document = run(plan)[0].recorder.document()
    events = document.pop("traceEvents")
    return document, _shifted(events, -(-1_080_000 // len(events)))


def _shifted(events: list[dict[str, Any]], times: int) -> Iterator[dict[str, Any]]:
    """The events, repeated later and later, with their own ids and step numbers."""
    first = min(e["ts"] for e in events if e.get("ts"))
    span = max(e.get("ts", 0) + e.get("dur", 0) for e in events) - first + 1000
    steps = [int(m[1]) for e in events if (m := STEP.match(str(e.get("name"))))]
    count = max(steps) - min(steps) + 1 if steps else 0
    for turn in range(times):
        for event in events:
            yield _moved(event, turn, span, count)


def _moved(event: dict[str, Any], turn: int, span: float, steps: int) -> dict[str, Any]:
    moved = dict(event)
    if "ts" in moved:
        moved["ts"] = round(moved["ts"] + turn * span, 3)
    if "id" in moved:
        moved["id"] += turn * APART
    if "args" in moved:
        args = dict(moved["args"])
        for name in ("correlation", "External id"):
            if name in args:
                args[name] += turn * APART
        moved["args"] = args
    if number := STEP.fullmatch(str(moved.get("name"))):
        moved["name"] = f"ProfilerStep#{int(number[1]) + turn * steps}"
    return moved


def table(costs: dict[str, Cost]) -> str:
    """The costs beside each other, and each one's ratio to whyidle's."""
    ours = costs["whyidle"]
    lines = [f"{'':12} {'CPU s':>8} {'wall s':>8} {'peak MiB':>9}   CPU, memory / whyidle's"]
    for name, cost in costs.items():
        ratios = f"{cost.cpu_s / ours.cpu_s:.2f}x, {cost.peak_mib / ours.peak_mib:.2f}x"
        lines.append(
            f"{name:12} {cost.cpu_s:8.2f} {cost.wall_s:8.2f} {cost.peak_mib:9.0f}   {ratios}"
        )
    return "\n".join(lines)


def main() -> None:
    """Build the trace, run the commands in turns, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--hta-python", help="interpreter of an environment with HTA 0.5.0")
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    parser.add_argument("--folder", type=Path, help="keep the built trace here")
    parser.add_argument("--build", action="store_true", help="only build the trace")
    chosen = parser.parse_args()
    folder = chosen.folder or Path(tempfile.gettempdir()) / "whyidle-speed"
    if chosen.build:
        build(folder)
        return
    # apart, because the peak memory of this process would count as that of its children
    building = [sys.executable, __file__, "--build", "--folder", str(folder)]
    subprocess.run(building, check=True)
    trace, what = big_trace(folder)
    commands = {
        "whyidle": [sys.executable, "-m", "whyidle", "diagnose", str(trace), "--format", "json"],
        "json.loads": [sys.executable, "-c", LOADS, str(trace)],
    }
    if chosen.hta_python:
        commands["HTA"] = [chosen.hta_python, "-c", HTA, str(trace)]
    costs = medians(commands, chosen.rounds, {"PYTHONPATH": str(ROOT / "src")})
    print(f"{what}: {trace.stat().st_size / 1e6:.0f} MB, median of {chosen.rounds}")
    print(table(costs))
    if chosen.json:
        figures = {name: cost.as_dict() for name, cost in costs.items()}
        chosen.json.write_text(json.dumps({"trace": what, "costs": figures}, indent=1) + "\n")


if __name__ == "__main__":
    main()
