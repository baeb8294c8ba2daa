"""Jobs that answer a trial as the hook would, with effects that the test plants."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from whyidle.trial import try_command

JOB = """
import json, os, pathlib, random, sys, time

told = json.loads(sys.argv[1])
place = pathlib.Path(os.environ["WHYIDLE_BUNDLE"])
options = json.loads(os.environ["WHYIDLE_OPTIONS"])
asked = options["remedies"]
remedies = {} if options["dry"] else asked
run = int(place.parent.name.split("-")[1])
noise = random.Random(run)
for name in remedies:
    if name in told.get("fails", []):
        print("first line")
        sys.exit("%s does not go with this model" % name)
    if name in told.get("hangs", []):
        time.sleep(60)
factor = scale = 1.0
for name, value in remedies.items():
    factor *= told.get("effects", {}).get("%s=%s" % (name, value), 1.0)
    factor *= told.get("effects", {}).get(name, 1.0)
    scale *= told.get("losses", {}).get(name, 1.0)
steps = options["stop_after"] or 12
lines = [{"event": "process", "rank": 0, "role": "main", "cpus": 4},
         {"event": "torch", "cuda": None, "hip": None, "threads": 4}]
for name, value in asked.items():
    why = told.get("refused", {}).get(name)
    lines.append({"event": "remedy", "name": name, "value": value, "could": why is None,
                  "applied": why is None and not options["dry"], "why": why})
at, rows, losses = 10**18, [], []
for number in range(steps if told.get("told", True) else 0):
    length = int(told["step_s"] * 1e9 * factor * (1 + told.get("noise", 0.01) * noise.gauss(0, 1)))
    rows.append([number, at, at + length, int(length * told.get("waits", 0.5)), 0])
    losses.append([number, scale * (1 + remedies.get("reseed", 0) * 0.1) * 2.0 / (1 + number)])
    at += length
lines += [{"event": "steps", "rows": rows}, {"event": "loss", "rows": losses}]
with open(place / "processes" / "told.jsonl", "w") as stream:
    for line in lines:
        print(json.dumps(line), file=stream)
"""
"""The length of steps is told, not slept, so that no figure hangs on this machine."""


def job(folder: Path, **told: object) -> list[str]:
    """A command whose steps take ``step_s`` seconds, times ``effects`` of remedies applied."""
    script = folder / "train.py"
    script.write_text(JOB, encoding="utf-8")
    return [sys.executable, str(script), json.dumps(told)]


def options(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quiet", action="store_true")
    try_command.add(parser)
    return parser.parse_args(words)


def tried(folder: Path, command: list[str], *words: str) -> dict[str, Any]:
    """Run a trial; what it recorded."""
    at = folder / "trial.json"
    assert try_command.run(options(*words, "-o", str(at), "--", *command)) == 0
    found = json.loads(at.read_text(encoding="utf-8"))
    assert isinstance(found, dict)
    return found


def verdicts(trial: dict[str, Any]) -> dict[str, str]:
    return {row["remedy"]: row["verdict"] for row in trial["remedies"]}
