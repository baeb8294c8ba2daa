"""Write simulated traces: ``python -m examples.simulate slow_loader -o traces/ [--fixed]``."""

from __future__ import annotations

import argparse
from pathlib import Path

from examples.simulate.scenarios import all_scenarios
from examples.simulate.training import run


def main() -> None:
    """Parse the command line and write one file per rank."""
    scenarios = all_scenarios()
    parser = argparse.ArgumentParser(prog="python -m examples.simulate", description=__doc__)
    parser.add_argument("scenario", nargs="*", help="names; none lists them")
    parser.add_argument("-o", "--out", type=Path, default=Path("."), help="folder or file to write")
    parser.add_argument("--fixed", action="store_true", help="the run without its planted causes")
    chosen = parser.parse_args()
    if not chosen.scenario:
        for name, scenario in scenarios.items():
            print(f"{name:20} {scenario.story}")
        return
    for name in chosen.scenario:
        scenario = scenarios[name]
        plan = scenario.fixed() if chosen.fixed else scenario.plan
        label = f"{name}_fixed" if chosen.fixed else name
        for one in run(plan, trace_name=f"simulated/{label}"):
            one.recorder.write(_path(chosen.out, label, one.recorder.rank, plan.ranks))


def _path(out: Path, label: str, rank: int, ranks: int) -> Path:
    if out.name.endswith((".json", ".json.gz")) and ranks == 1:
        return out
    suffix = f"_rank{rank}" if ranks > 1 else ""
    return out / f"{label}{suffix}_gpu_simulated.pt.trace.json.gz"


if __name__ == "__main__":
    main()
