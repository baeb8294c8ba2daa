"""What is kept of a watched job: a bundle like that of ``run``, with stacks, not profiles."""

from __future__ import annotations

import gzip
import json
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from whyidle import __version__
from whyidle.diagnosis import write_whole
from whyidle.observe.attach_job import Trainer, Watched
from whyidle.observe.launch import MANIFEST, SCHEMA, Manifest

LONGEST = 300
"""Characters kept of one word of a command line."""


@contextmanager
def rows(folder: Path) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Takes rows of readings into ``samples``/host.jsonl."""
    (folder / "samples").mkdir(parents=True, exist_ok=True)
    with (folder / "samples" / "host.jsonl").open("w", encoding="utf-8") as stream:
        yield lambda row: print(json.dumps(row), file=stream, flush=True)


def write(folder: Path, watched: Watched, seconds: float) -> None:
    """The manifest, one file of events per training process, and the stacks, compressed."""
    manifest = Manifest(
        schema=SCHEMA,
        whyidle=__version__,
        command=[word[:LONGEST] for word in watched.root.command],
        cwd=_folder_of(watched.root.pid),
        host=socket.gethostname(),
        started_ns=watched.start_ns,
        options={"attach": {"pid": watched.root.pid, "seconds": seconds}},
        ended_ns=watched.end_ns,
    )
    text = msgspec.json.format(msgspec.json.encode(manifest), indent=2).decode()
    write_whole(folder / MANIFEST, text + "\n")
    (folder / "processes").mkdir(exist_ok=True)
    for trainer in watched.trainers:
        _write_events(folder / "processes", trainer, watched)
    for path in sorted((folder / "stacks").glob("*.json")):
        path.with_suffix(".py-spy.gz").write_bytes(gzip.compress(path.read_bytes(), 6))
        path.unlink()


def _write_events(folder: Path, trainer: Trainer, watched: Watched) -> None:
    member = trainer.usage.member
    limits = watched.before.get(trainer.pid)
    about = {
        "event": "process",
        "pid": trainer.pid,
        "ppid": member.parent,
        "argv": [word[:LONGEST] for word in member.command],
        "started_ns": watched.start_ns,
        "rank": trainer.rank,
        "cpus": limits.cpus if limits else None,
        "cpu_quota": limits.quota if limits else None,
        "role": "main",
    }
    doing = [
        [p.doing.activity, p.start_ns, p.end_ns, p.doing.file, p.doing.line, p.doing.op]
        for p in trainer.pieces
    ]
    events = [about, {"event": "sampled", "rate": watched.stacks.rate, "rows": doing}]
    text = "".join(json.dumps(event) + "\n" for event in events)
    (folder / f"{trainer.pid}-{watched.start_ns}.jsonl").write_text(text, encoding="utf-8")


def _folder_of(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/cwd")
    except OSError:
        return ""
