"""Small repositories whose job takes as long per step as a file in them says."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

TRAIN = """
import json, os, pathlib, sys
from pace import STEP_S
if len(sys.argv) > 1:
    print("data holds", pathlib.Path(sys.argv[1]).read_text())
place = pathlib.Path(os.environ["WHYIDLE_BUNDLE"])
length = int(STEP_S * 1e9)
rows = [[n, 10**18 + n * length, 10**18 + (n + 1) * length, 0, 0] for n in range(12)]
with open(place / "processes" / "told.jsonl", "w") as stream:
    for event in (
        {"event": "process", "rank": 0, "role": "main"},
        {"event": "optimizer", "file": os.path.abspath(sys.modules["pace"].__file__)},
        {"event": "steps", "rows": rows},
        {"event": "loss", "rows": [[n, 1 / (1 + n)] for n in range(12)]},
    ):
        print(json.dumps(event), file=stream)
pathlib.Path("written-by-the-job").write_text("x")
"""


def pace(seconds: float) -> str:
    return f"STEP_S = {seconds}\n"


def git(folder: Path, *words: str) -> str:
    who = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a"}
    told = {**os.environ, **who, "GIT_COMMITTER_EMAIL": "a@b", "GIT_CONFIG_GLOBAL": os.devnull}
    options = ("-c", "protocol.file.allow=always", "-C", str(folder))
    done = subprocess.run(
        ["git", *options, *words], env=told, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def folder(place: Path, seconds: float) -> Path:
    place.mkdir(parents=True, exist_ok=True)
    (place / "train.py").write_text(TRAIN)
    (place / "pace.py").write_text(pace(seconds))
    return place


def repository(place: Path, *seconds: float) -> Path:
    """One commit for each pace, in this order, and an ignored folder of data."""
    folder(place, seconds[0])
    (place / ".gitignore").write_text("data/\n")
    (place / "data").mkdir()
    (place / "data" / "set.txt").write_text("42")
    git(place, "init", "--quiet", "-b", "main")
    for number, length in enumerate(seconds):
        (place / "pace.py").write_text(pace(length))
        git(place, "add", "-A")
        git(place, "commit", "--quiet", "--allow-empty", "-m", f"pace {number}")
    return place


def state(place: Path) -> dict[str, str]:
    """Everything of the user's that must stay as it is: files, index, branches, worktrees."""
    files = {
        str(p.relative_to(place)): p.read_bytes().hex()
        for p in sorted(place.rglob("*"))
        if p.is_file() and ".git" not in p.parts
    }
    index = (place / ".git" / "index").read_bytes().hex()
    told = {
        name: git(place, *name.split()) for name in ("worktree list", "branch -a", "stash list")
    }
    return {**files, "index": index, **told}
