"""How long ``whyidle --help`` and ``import whyidle`` take, beside a bare interpreter.

``python benchmarks/startup.py [--rounds 15] [--json FILE]``
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

from benchmarks.measure import medians  # noqa: E402

COMMANDS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "import whyidle": [sys.executable, "-c", "import whyidle"],
    "whyidle --help": [sys.executable, "-m", "whyidle", "--help"],
}


def main() -> None:
    """Measure and print; the bare interpreter is the floor of the other two."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    chosen = parser.parse_args()
    costs = medians(COMMANDS, chosen.rounds, {"PYTHONPATH": str(ROOT / "src")})
    floor = costs["python -c pass"].wall_s
    for name, cost in costs.items():
        added = (cost.wall_s - floor) * 1e3
        print(f"{name:16} {cost.wall_s * 1e3:7.1f} ms  (+{added:.1f} ms)")
    if chosen.json:
        figures = {name: cost.as_dict() for name, cost in costs.items()}
        chosen.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
