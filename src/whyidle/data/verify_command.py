"""``whyidle data verify``: its options, and what happens when it runs."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from whyidle.data.pack_command import SOURCES
from whyidle.errors import clear

if TYPE_CHECKING:
    from whyidle.data.verify import Verdict

DESCRIPTION = (
    "Read every byte of a packed set and check it against its checksums; with --against also "
    "compare each sample with its source. Damaged files and samples are named; the rest can still "
    "be read. Exit 1 when anything is damaged or differs."
)
SHOWN = 20


def add_verify(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``verify`` to its parser."""
    parser.description = DESCRIPTION
    parser.set_defaults(act=run)
    parser.add_argument("target", metavar="DST", help="a packed set")
    parser.add_argument("--against", metavar="SRC", help="the source it was packed from")
    parser.add_argument("--from", dest="kind", choices=SOURCES, help="what SRC is")
    parser.add_argument("--root", metavar="DIR", help="what the paths of a CSV are relative to")
    parser.add_argument("--tokenizer", metavar="MODULE:CALLABLE", help="as it was when packing")
    parser.add_argument("--format", choices=("terminal", "json"), default="terminal")


def run(options: argparse.Namespace) -> int:
    """Verify, say what was found, and return 1 where anything is wrong."""
    from whyidle import reports
    from whyidle.data.sources import source_of
    from whyidle.data.verify import verify
    from whyidle.progress import CountingBar

    source = None
    if options.against is not None:
        source = source_of(
            options.against, options.kind, root=options.root, tokenizer=options.tokenizer
        )
    target = Path(options.target)
    with CountingBar(quiet=getattr(options, "quiet", False)) as bar:
        verdict = verify(target, source, bar)
    if options.format == "json":
        text = json.dumps({"sound": verdict.sound, **asdict(verdict)}, indent=1)
    else:
        text = "\n".join(told(verdict, target))
    reports.write_stdout(text + "\n")
    return 0 if verdict.sound else 1


def told(verdict: Verdict, target: Path) -> list[str]:
    """What was found, in lines."""
    name = clear(str(target))
    against = "" if verdict.compared is None else f", {verdict.compared:,} equal to the source's"
    if verdict.sound:
        return [f"{name}: sound. {verdict.checked:,} samples read{against}."]
    lines = [
        f"{name}: damaged. {verdict.checked:,} samples read, {len(verdict.samples):,} damaged."
    ]
    lines += [f"  {clear(one['file'])}: {one['found']}" for one in verdict.files]
    listed = [
        f"  {one['shard']}: sample {one['index']}{_named(one['key'])}: {one['found']}"
        for one in verdict.samples
    ]
    listed += [
        f"  sample {'-' if one['index'] is None else one['index']}{_named(one['key'])} "
        f"differs from the source: {one['found']}"
        for one in verdict.differing
    ]
    lines += listed[:SHOWN]
    if len(listed) > SHOWN:
        lines.append(f"  and {len(listed) - SHOWN:,} more (--format json lists all)")
    return lines


def _named(key: str | None) -> str:
    return "" if key is None else f" ({clear(key)})"
