"""Small jobs that tell their steps as the hook would, and the command line that proves them."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from whyidle.trial import command

JOB = """
import json, os, pathlib, random, sys

told = json.loads(sys.argv[1])
place = pathlib.Path(os.environ["WHYIDLE_BUNDLE"])
run = int(place.parent.name.split("-")[1])
noise = random.Random(1000 * run + told.get("seed", 0))
asked = json.loads(os.environ["WHYIDLE_OPTIONS"])
steps = asked["stop_after"] or told.get("steps", 12)
other_seed = 1 + told.get("per_seed", 0) * asked["remedies"].get("reseed", 0)
for rank in range(told.get("ranks", 1)):
    at, rows = 10**18, []
    for number in range(steps):
        slow = 5 if number < 3 else 1 + rank * told.get("later_rank_slower", 0)
        length = int(told["step_s"] * 1e9 * slow * (1 + told.get("noise", 0) * noise.gauss(0, 1)))
        rows.append([number, at, at + length, 0, 0])
        at += length
    drift = told.get("loss_factor", 1.0) * other_seed
    wobble = told.get("loss_noise", 0) * noise.gauss(0, 1)
    losses = [[n, drift * (1 + wobble) * 2.0 / (1 + n)] for n in range(steps)]
    with open(place / "processes" / f"told-{rank}.jsonl", "w") as stream:
        print(json.dumps({"event": "process", "rank": rank, "role": "main"}), file=stream)
        print(json.dumps({"event": "steps", "rows": rows}), file=stream)
        if told.get("loss", True):
            print(json.dumps({"event": "loss", "rows": losses}), file=stream)
print("trained", steps, "steps")
sys.exit(told.get("exit_code", 0) if run >= told.get("fails_from", 0) else 0)
"""
"""The length of steps is told, not slept, so that no figure hangs on this machine."""


def job(folder: Path, **told: object) -> list[str]:
    """A command whose steps take ``step_s`` seconds, as it says itself."""
    script = folder / "job.py"
    script.write_text(JOB, encoding="utf-8")
    return [sys.executable, str(script), json.dumps(told)]


def options(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quiet", action="store_true")
    command.add(parser)
    return parser.parse_args(words)


def prove(before: list[str], after: list[str], *words: str) -> int:
    return command.run(options(*words, "--", *before, "--", *after))
