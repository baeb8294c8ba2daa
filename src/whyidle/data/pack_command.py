"""``whyidle data pack``: its options, and what happens when it runs."""

from __future__ import annotations

import argparse
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from whyidle.errors import UsageError, clear

if TYPE_CHECKING:
    from whyidle.data.manifest import Manifest

DESCRIPTION = (
    "Store a data set in one format that is read fast: from a folder of pictures, a CSV with "
    "paths, arrays, text, archives, another packed set, or your own Dataset (module:factory). "
    "After a kill the same command goes on where it was. SRC is never changed. Packing pays when "
    "the loader waits for storage or decodes more pixels than it needs; `whyidle data probe` "
    "says whether it does."
)
FORMATS = ("blob", "hdf5", "tfrecord", "webdataset", "npy")
SOURCES = (
    "image_folder",
    "csv_index",
    "arrays",
    "text",
    "dataset",
    "packed",
    "tar",
    "tfrecords",
    "hdf5",
)
CHECKS = ("none", "structure", "decode")
SHOWN = 10


def add_pack(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``pack`` to its parser."""
    parser.description = DESCRIPTION
    parser.set_defaults(act=run)
    parser.add_argument("source", metavar="SRC", help="what to pack")
    parser.add_argument("target", metavar="DST", help="a new folder; DST.partial until it is whole")
    parser.add_argument("--to", choices=FORMATS, default="blob", help="the format (default: blob)")
    _add_source(parser)
    parser.add_argument(
        "--shuffle", type=_whole, metavar="SEED", help="store in a shuffled order (default: listed)"
    )
    parser.add_argument(
        "--samples-per-shard", type=_positive, metavar="N", help="start a new file after N samples"
    )
    parser.add_argument(
        "--shard-size", type=size_of, metavar="SIZE", help="or after SIZE bytes, such as 500M or 1G"
    )
    parser.add_argument(
        "--resize",
        type=_positive,
        metavar="PX",
        help="make the shorter side of pictures PX (never larger), stored as JPEG; needs Pillow",
    )
    parser.add_argument(
        "--quality", type=_quality, metavar="Q", help="of the JPEG, 1 to 100 (default 90)"
    )
    parser.add_argument(
        "--check",
        choices=CHECKS,
        default="structure",
        help="how pictures are checked: not, their structure, or decoded (default: structure)",
    )
    parser.add_argument("--strict", action="store_true", help="end at the first bad sample")
    parser.add_argument(
        "--workers", type=_whole, metavar="N", help="processes that read (default: one per CPU)"
    )
    parser.add_argument(
        "--journal-every",
        type=size_of,
        default=64 << 20,
        metavar="SIZE",
        help="note how far it has come after so many bytes (default 64M)",
    )


def _add_source(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--from", dest="kind", choices=SOURCES, help="what SRC is (default: seen from SRC)"
    )
    parser.add_argument("--root", metavar="DIR", help="what the paths of a CSV are relative to")
    parser.add_argument(
        "--tokenizer", metavar="MODULE:CALLABLE", help="store text as tokens: str to whole numbers"
    )


def run(options: argparse.Namespace) -> int:
    """Pack, then say what was packed and what was left out."""
    from whyidle import reports
    from whyidle.data.pack import Plan, pack
    from whyidle.data.sources import source_of
    from whyidle.progress import CountingBar

    if options.resize or options.quality:
        from whyidle.data.pictures import pillow

        pillow("--resize and --quality")
    quiet = getattr(options, "quiet", False)
    target = Path(options.target)
    if not target.name:
        raise UsageError(f"{options.target}: is no name of a new folder.\nGive one for DST.")
    source = source_of(options.source, options.kind, root=options.root, tokenizer=options.tokenizer)
    plan = Plan(
        format=options.to,
        samples_per_shard=options.samples_per_shard,
        shard_bytes=options.shard_size,
        shuffle=options.shuffle,
        resize=options.resize,
        quality=options.quality,
        check=options.check,
        strict=options.strict,
        workers=len(os.sched_getaffinity(0)) if options.workers is None else options.workers,
        journal_bytes=options.journal_every,
    )
    with CountingBar(quiet=quiet) as bar:
        packed = pack(source, target, plan, bar)
    reports.write_stdout("\n".join(told(packed, target, getattr(source, "ignored", 0))) + "\n")
    return 0


def told(packed: Manifest, target: Path, ignored: int) -> list[str]:
    """What was packed, in lines."""
    size = sum(one["bytes"] for one in packed.shards)
    files = f"{len(packed.shards)} file{'s' if len(packed.shards) != 1 else ''}"
    lines = [
        f"{clear(str(target))}: {packed.samples:,} samples as {packed.format}, "
        f"{size / 1e6:,.1f} MB in {files}, fields {', '.join(packed.fields)}."
    ]
    if packed.reencode is not None:
        lines.append(_fidelity(packed.reencode))
    if ignored:
        lines.append(
            f"{ignored:,} files of the source with other endings than a picture's were left out."
        )
    if packed.bad:
        count = len(packed.bad)
        lines.append(f"{count:,} bad sample{'s were' if count != 1 else ' was'} left out:")
        lines += [f"  {clear(bad['key'])}: {bad['reason']}" for bad in packed.bad[:SHOWN]]
        if count > SHOWN:
            lines.append(f"  and {count - SHOWN:,} more, listed in whyidle-pack.json")
    return lines


def _fidelity(reencode: dict[str, object]) -> str:
    told = []
    for name, what in (
        ("psnr_db_after_resize", "against the resized picture"),
        ("psnr_db_against_original", "enlarged again, against the original"),
    ):
        spread = reencode[name]
        if isinstance(spread, dict):
            told.append(f"{spread['median']} dB (least {spread['least']}) {what}")
    if not told:
        return "No picture needed to be stored anew."
    return f"Pictures stored anew, PSNR of {reencode['compared']} of them: {'; '.join(told)}."


def size_of(text: str) -> int:
    """Bytes from 500000, 64M or 1.5G (powers of 1024)."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kKmMgGtT]?)i?[bB]?", text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is no size such as 64M or 1G")
    return int(float(found[1]) * 1024 ** " kmgt".index(found[2].lower() or " "))


def _whole(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number")
    return int(text)


def _positive(text: str) -> int:
    number = _whole(text)
    if not number:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return number


def _quality(text: str) -> int:
    number = _positive(text)
    if number > 100:
        raise argparse.ArgumentTypeError("must be 1 to 100")
    return number
