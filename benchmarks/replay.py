"""How well the replay of *no change* meets the recorded step, and predictions against real pairs.

``python benchmarks/replay.py [--json FILE] [--pair BEFORE AFTER ...] [--recorded FOLDER]``

Every trace of the real evidence and of ``examples/traces`` with at least three steps is replayed;
the tables are those of ``docs/gain.md``. ``--pair`` adds pairs of your own recordings,
``--recorded`` all of a folder: ``NAME`` and ``NAME_fixed`` as ``examples/train`` records them. Each
pair of a known script is also predicted with its own recordings left out (``left_out.py``).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

import numpy as np  # noqa: E402

import whyidle  # noqa: E402
from benchmarks import left_out  # noqa: E402
from whyidle.diagnosis import Diagnosis  # noqa: E402
from whyidle.errors import WhyidleError  # noqa: E402
from whyidle.gain.effects import unchanged  # noqa: E402
from whyidle.gain.predict import Replayable, begins  # noqa: E402
from whyidle.partial import merged, partial_of  # noqa: E402

EXAMPLES = ROOT / "examples" / "traces"
LEAST_STEPS = 3
EXAMPLE_PAIRS = (
    (
        "slow_loader_gpu_simulated.pt.trace.json.gz",
        "slow_loader_fixed_gpu_simulated.pt.trace.json.gz",
    ),
    ("slow_loader_cpu.pt.trace.json.gz", "slow_loader_fixed_cpu.pt.trace.json.gz"),
    ("accumulate_without_no_sync", "accumulate_without_no_sync_fixed"),
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One replayed trace; seconds are of the median interior step.

    ``off_us``: how far derived starts of device work lie from the recorded ones (median of the
    absolute difference); None without a device.
    """

    trace: str
    steps: int
    measured_s: float
    replayed_s: float
    error: float
    constants_s: float
    off_us: float | None


@dataclass(frozen=True)
class PairRow:
    """Before, what was predicted from that recording alone, and after.

    ``per_step_s``: recorded wall time over recorded steps.
    """

    before: str
    measured_s: float
    first: str
    low_s: float
    mid_s: float
    high_s: float
    plan_mid_s: float | None
    after_s: float
    after_per_step_s: float


def evidence() -> Path | None:
    """The folder of recorded traces, or None."""
    stated = os.environ.get("WHYIDLE_EVIDENCE")
    folder = (Path(stated) if stated else ROOT.parent / "shared" / "evidence") / "traces"
    return folder if folder.is_dir() else None


def candidates() -> list[Path]:
    """Every file or folder that may be a trace, evidence first."""
    folder = evidence()
    real = sorted(folder.iterdir()) if folder else []
    mine = sorted(p for p in EXAMPLES.iterdir() if p.suffix != ".md")
    return [p for p in (*real, *mine) if p.is_dir() or p.name.endswith((".json", ".json.gz"))]


def judged(path: Path) -> tuple[Diagnosis, Replayable | None] | None:
    """The diagnosis and the replayed device; None for what cannot be read."""
    try:
        part = partial_of(whyidle.read(path))
    except WhyidleError:
        return None
    return merged([part]), part.replayable


def row_of(path: Path, said: Diagnosis, found: Replayable) -> Row | None:
    """One row; None where the replay was not tested."""
    if said.replay is None:
        return None
    model = found.model
    derived = begins(model, [unchanged(model)])[model.hosts :, 0]
    off = np.abs(derived - model.device_work.start) / 1e3
    return Row(
        path.name,
        found.steps,
        said.replay.measured_step_s,
        said.replay.replayed_step_s,
        said.replay.error,
        said.replay.constants_s,
        float(np.median(off)) if off.size else None,
    )


def pair_row(before: Path, after: Path) -> PairRow | None:
    """What the first recording promises for its largest cause, and what the second shows."""
    one, two = judged(before), judged(after)
    if one is None or two is None:
        return None
    said, fixed = one[0], two[0]
    told = [(f.cause, r.gain) for f in said.findings for r in f.remedies if r.gain is not None]
    device, later = said.devices[0], fixed.devices[0]
    if not told or device.step_s is None or later.step_s is None:
        return None
    cause, gain = told[0]
    plan = said.plan.predicted.mid if said.plan else None
    return PairRow(
        before.name, device.step_s, cause, gain.step_s_low, gain.step_s_mid, gain.step_s_high,
        plan, later.step_s, later.wall_s / max(len(later.steps), 1),
    )  # fmt: skip


def table(rows: list[Row]) -> str:
    """The rows as Markdown."""
    lines = [
        "| trace | steps | measured ms | replayed ms | error | constants | device starts off by |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        off = "no device" if row.off_us is None else f"{row.off_us:,.0f} µs"
        lines.append(
            f"| {row.trace} | {row.steps} | {row.measured_s * 1e3:.1f} | "
            f"{row.replayed_s * 1e3:.1f} | {abs(row.error):.2%} | "
            f"{row.constants_s * 1e3:.1f} ms, {row.constants_s / row.measured_s:.1%} | {off} |"
        )
    return "\n".join(lines)


def pair_table(rows: list[PairRow]) -> str:
    """The pairs as Markdown."""
    lines = [
        "| recorded before | ms | remedy of | low | mid | high | plan, mid | after, median ms | "
        "after, wall per step ms |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        seconds = [row.low_s, row.mid_s, row.high_s]
        plan = f"{row.plan_mid_s * 1e3:.1f}" if row.plan_mid_s is not None else ""
        told = " | ".join(f"{s * 1e3:.1f}" for s in seconds)
        lines.append(
            f"| {row.before} | {row.measured_s * 1e3:.1f} | `{row.first}` | {told} | {plan} | "
            f"{row.after_s * 1e3:.1f} | {row.after_per_step_s * 1e3:.1f} |"
        )
    return "\n".join(lines)


def known_pairs() -> list[tuple[Path, Path]]:
    """The public GPU pair, where it is, and the examples."""
    folder = evidence()
    found = [(EXAMPLES / before, EXAMPLES / after) for before, after in EXAMPLE_PAIRS]
    for before in sorted(folder.glob("kineto__samples__resnet50_num_workers_0*") if folder else ()):
        later = sorted(before.parent.glob("kineto__samples__resnet50_num_workers_4*"))
        found = [(before, after) for after in later[:1]] + found
    return found


def recorded_pairs(folder: Path) -> list[tuple[Path, Path]]:
    """Every ``NAME`` (file or folder) that has a ``NAME_fixed`` beside it."""
    found = []
    for before in sorted(folder.iterdir()):
        name, dot, ending = before.name.partition(".")
        after = folder / f"{name}_fixed{dot}{ending}"
        if after.exists():
            found.append((before, after))
    return found


def main() -> None:
    """Replay everything and print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the rows here as well")
    parser.add_argument("--pair", nargs=2, type=Path, action="append", default=[])
    parser.add_argument("--recorded", type=Path, help="a folder of pairs NAME and NAME_fixed")
    chosen = parser.parse_args()
    rows = []
    for path in candidates():
        found = judged(path)
        if found is None or found[1] is None:
            continue
        row = row_of(path, found[0], found[1])
        if row is not None:
            rows.append(row)
    print(table(rows))
    real = [abs(r.error) for r in rows if not (EXAMPLES / r.trace).exists()]
    if real:
        print(f"\n{len(real)} real traces: median error {statistics.median(real):.2%}, ", end="")
        print(f"largest {max(real):.2%}")
    pairs = [*known_pairs(), *((before, after) for before, after in chosen.pair)]
    told = [row for row in (pair_row(*pair) for pair in pairs) if row is not None]
    print("\n" + pair_table(told))
    pairs += recorded_pairs(chosen.recorded) if chosen.recorded else []
    paces = [left_out.paced(*pair, judged, pair[0].name.partition(".")[0]) for pair in pairs]
    print("\n" + left_out.table(left_out.left_out(p for p in paces if p is not None)))
    if chosen.json:
        whole = {"replay": [asdict(r) for r in rows], "pairs": [asdict(p) for p in told]}
        chosen.json.write_text(json.dumps(whole, indent=1) + "\n")


if __name__ == "__main__":
    main()
