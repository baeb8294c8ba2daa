"""What observing costs outside profiles: the hook's own CPU per step, and an interleaved A/B.

Each script of ``examples/train`` prints the median of its own step times. It runs in turn as it is
and under ``whyidle run --no-profile``; the hook's CPU time per step is what it measured itself.
Needs torch.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = ("slow_loader", "optimizer_loop", "anomaly_mode", "checkpoint_every_step", "python_loop")
FIRST = 3
"""Steps at the start that are left out."""


def once(script: str, steps: int, bundle: Path | None) -> float:
    """The median step in ms that the script itself measured; observed when there is a bundle."""
    command = [sys.executable, f"examples/train/{script}.py", "--steps", str(steps)]
    if bundle is not None:
        run = [sys.executable, "-m", "whyidle", "run", "-q", "--no-profile", "-o", str(bundle)]
        command = [*run, "--", *command]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    found = re.search(r"median step ([0-9.]+) ms", done.stdout)
    if not found:
        raise SystemExit(f"{script}: printed no step time\n{done.stdout}{done.stderr}")
    return float(found.group(1))


def hook_us(bundle: Path) -> tuple[float, float]:
    """Microseconds of the hook's CPU time per step, and their share of the steps' time."""
    lines = [
        json.loads(line)
        for file in (bundle / "processes").glob("*.jsonl")
        for line in file.read_text().splitlines()
    ]
    rows = [row for line in lines if line["event"] == "steps" for row in line["rows"]][FIRST:]
    cpu_ns = sum(row[4] for row in rows)
    return cpu_ns / len(rows) / 1e3, cpu_ns / sum(row[2] - row[1] for row in rows)


def main() -> None:
    """Print one line per script."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    table = []
    for script in SCRIPTS:
        plain, observed, costs = [], [], []
        with tempfile.TemporaryDirectory() as folder:
            for pair in range(chosen.pairs):
                bundle = Path(folder) / str(pair)
                order = (None, bundle) if pair % 2 == 0 else (bundle, None)
                for which in order:
                    (plain if which is None else observed).append(once(script, chosen.steps, which))
                costs.append(hook_us(bundle))
        ratios = sorted(a / b for a, b in zip(observed, plain, strict=True))
        row = {
            "script": script,
            "plain_ms": statistics.median(plain),
            "observed_ms": statistics.median(observed),
            "ratio": statistics.median(ratios),
            "ratio_low": ratios[0],
            "ratio_high": ratios[-1],
            "hook_us": statistics.median(cost for cost, _ in costs),
            "hook_share": statistics.median(share for _, share in costs),
        }
        table.append(row)
        print(
            f"{script:24} plain {row['plain_ms']:7.2f} ms, observed {row['observed_ms']:7.2f} ms, "
            f"{row['ratio']:.3f}x ({ratios[0]:.3f} to {ratios[-1]:.3f}); hook "
            f"{row['hook_us']:.0f} us a step, {row['hook_share']:.2%}",
            flush=True,
        )
    if chosen.json:
        chosen.json.write_text(json.dumps(table, indent=2) + "\n")


if __name__ == "__main__":
    main()
