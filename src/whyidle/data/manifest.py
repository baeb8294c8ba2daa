"""``whyidle-pack.json``: what a packed set is, where it came from, and the digest of each file.

The last entry is a digest of all others, and the text has one spelling only, so that every
changed byte is found when the set is opened.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from whyidle.errors import DataError

NAME = "whyidle-pack.json"
SCHEMA = "whyidle.pack/1"


@dataclass(frozen=True)
class Manifest:
    """The facts of one packed set; ``samples`` are those that are in it, not the bad ones.

    ``shards``: [{file, samples, bytes, digest}] in order of shard number. ``files``: [{file,
    bytes, digest}] of everything else. ``source``: {name, digest}. ``order``: {kind: listed |
    shuffled, seed}. ``reencode``: what was done to pictures, and the fidelity that is left; None
    where every byte is the source's. ``bad``: [{position, key, reason}], where position is
    in the order that was read. ``facts``: the format's own.
    """

    format: str
    samples: int
    fields: list[str]
    shards: list[dict[str, Any]]
    files: list[dict[str, Any]]
    classes: list[str] | None
    source: dict[str, Any]
    order: dict[str, Any]
    reencode: dict[str, Any] | None
    bad: list[dict[str, Any]]
    facts: dict[str, Any] = field(default_factory=dict)
    schema: str = SCHEMA
    whyidle: str = ""

    def text(self) -> bytes:
        """The only spelling of this manifest, ended by the digest of the rest."""
        told = asdict(self)
        told["digest"] = digest_of(_spelled(told))
        return _spelled(told)


def _spelled(told: dict[str, Any]) -> bytes:
    digest = {"digest": told["digest"]} if "digest" in told else {}
    rest = {name: told[name] for name in sorted(told) if name != "digest"}
    return json.dumps({**rest, **digest}, indent=1).encode() + b"\n"


def digest_of(content: bytes) -> str:
    """The digest of bytes in memory, named by its algorithm."""
    import hashlib

    return "blake2b-256:" + hashlib.blake2b(content, digest_size=32).hexdigest()


def digest_of_file(path: Path) -> str:
    """The digest of a file's bytes, read piece by piece."""
    import hashlib

    with open(path, "rb") as file:
        return (
            "blake2b-256:"
            + hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=32)).hexdigest()
        )


def load(folder: Path) -> Manifest:
    """The manifest below ``folder``, checked to be the one that was written."""
    path = folder / NAME
    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise DataError(
            f"{folder}: no packed data set, since {NAME} is missing.\n"
            "Give a folder that `whyidle data pack` has written."
        ) from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}.") from error
    return parsed(content, path)


def parsed(content: bytes, path: Path) -> Manifest:
    """The manifest that ``content`` spells; any other spelling is damage."""
    try:
        told = json.loads(content)
        known = {one.name for one in fields(Manifest)}
        if told["schema"] != SCHEMA:
            raise DataError(
                f"{path}: its schema is {told['schema']}, and this whyidle reads {SCHEMA}.\n"
                "Read it with the whyidle that wrote it: pip install -U whyidle."
            )
        manifest = Manifest(**{name: told[name] for name in known})
        sound = manifest.text() == content
    except (ValueError, KeyError, TypeError, RecursionError):
        sound = False
    if not sound:
        raise DataError(
            f"{path}: the manifest is damaged, since it does not agree with its own digest.\n"
            "Restore this file, or pack the data set again."
        )
    return manifest


def write(folder: Path, manifest: Manifest) -> None:
    """Write the manifest below ``folder`` and bring it to disk."""
    with open(folder / NAME, "wb") as file:
        file.write(manifest.text())
        file.flush()
        os.fsync(file.fileno())
