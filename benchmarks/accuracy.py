"""Whether a diagnosis names the planted cause, and how far off its seconds and gain are.

``python benchmarks/accuracy.py [NAME ...] [--json FILE]``

Every scenario of ``examples/simulate`` is simulated and diagnosed as a user would. The truth is
the difference in wall time between the run and the same run without the cause.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

import whyidle  # noqa: E402
from examples.simulate.scenarios import Scenario, all_scenarios, wall_s  # noqa: E402
from examples.simulate.training import run  # noqa: E402
from whyidle.diagnosis import Diagnosis, Finding, matches_cause  # noqa: E402


@dataclass(frozen=True)
class Row:
    """One scenario: what was planted, what was said. Seconds over all ranks; None = nothing said.

    ``speedup`` is the mid prediction of the planted cause's best remedy, ``true_speedup`` what
    taking the planted causes out really gave.
    """

    scenario: str
    planted: str | None
    first: str | None
    named: bool
    true_s: float | None
    reported_s: float | None
    share_lost: float
    share_unexplained: float
    share_unrecorded: float
    speedup: float | None
    true_speedup: float | None


def judge(scenario: Scenario) -> Row:
    """Simulate, diagnose, compare."""
    runs = scenario.simulate()
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"rank{one.recorder.rank}.pt.trace.json.gz" for one in runs]
        for one, path in zip(runs, paths, strict=True):
            one.recorder.write(path)
        said: Diagnosis = whyidle.diagnose(whyidle.read(*paths))
    wall, first = said.wall_s, said.findings[0].cause if said.findings else None
    shares = (said.lost_s / wall, said.unexplained_s / wall, said.unrecorded_s / wall)
    if not scenario.planted:
        fine = said.unrecorded_s > wall / 2 if scenario.unrecorded else said.share_lost() < 0.1
        return Row(scenario.name, None, first, fine, None, None, *shares, None, None)
    cause = scenario.planted[0].cause.rstrip(".")
    lost = sum(r.lost_s for r in said.ledger if matches_cause(r.cause, cause))
    named = first is not None and matches_cause(first, cause)
    truth = scenario.true_seconds()[scenario.planted[0].cause]
    faster = wall_s(runs) / wall_s(run(scenario.fixed()))
    predicted = best_speedup([f for f in said.findings if matches_cause(f.cause, cause)])
    return Row(scenario.name, cause, first, named, truth, lost, *shares, predicted, faster)


def best_speedup(findings: list[Finding]) -> float | None:
    """The largest mid speed-up that a remedy of these findings promises; None without any."""
    gains = [r.gain.speedup_mid for f in findings for r in f.remedies if r.gain is not None]
    return max(gains, default=None)


def line(row: Row) -> str:
    """One row of the table."""
    mark = "ok" if row.named else "NO"
    shares = f"lost {row.share_lost:4.0%} unexplained {row.share_unexplained:4.0%}"
    if row.share_unrecorded > 0.005:
        shares += f" (unrecorded {row.share_unrecorded:.0%})"
    if row.true_s is None or row.reported_s is None:
        return f"{row.scenario:20} {mark:3} {'':31} {shares} first: {row.first}"
    ratio = row.reported_s / row.true_s
    seconds = f"{row.true_s:7.3f} s true {row.reported_s:7.3f} s ({ratio:4.2f})"
    gain = f"gain {row.speedup:.2f}/{row.true_speedup:.2f}" if row.speedup else ""
    first = "" if row.named else f"first: {row.first}"
    return f"{row.scenario:20} {mark:3} {seconds} {shares} {gain} {first}"


def main() -> None:
    """Judge the scenarios, print a table and a summary."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("scenario", nargs="*", help="names; all without any")
    parser.add_argument("--json", type=Path, help="write the rows here as well")
    chosen = parser.parse_args()
    scenarios = all_scenarios()
    rows = []
    for name in chosen.scenario or scenarios:
        rows.append(judge(scenarios[name]))
        print(line(rows[-1]), flush=True)
    off = [abs(r.reported_s / r.true_s - 1) for r in rows if r.true_s and r.reported_s is not None]
    print(f"{sum(r.named for r in rows)} of {len(rows)} right", end="")
    print(f"; seconds off by {statistics.median(off):.0%} (median)" if off else "")
    if chosen.json:
        chosen.json.write_text(json.dumps([asdict(r) for r in rows], indent=1) + "\n")


if __name__ == "__main__":
    main()
