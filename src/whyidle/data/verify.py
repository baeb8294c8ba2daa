"""Whether a packed set is what was packed: every byte of it, and every sample of its source."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from whyidle.data import manifest
from whyidle.data.formats import module_of
from whyidle.data.order import permuted
from whyidle.data.pictures import FIELDS, Treatment, pillow, psnr
from whyidle.data.records import BadSample
from whyidle.data.sources import Source
from whyidle.errors import DamagedSample, DataError

Progress = Callable[[str, int, int], None]
TOLERATED_DB = 3.0
"""How far below the least stated PSNR a picture of another encoder's version may fall."""


@dataclass
class Verdict:
    """What was found. ``files``: {file, found} of each file that differs from its digest.

    ``samples``: {shard, index, key, found} of each damaged sample. ``differing``: {index, key,
    found} of each sample that is not as its source; ``compared`` counts those that were looked at.
    """

    checked: int = 0
    compared: int | None = None
    files: list[dict[str, str]] = field(default_factory=list)
    samples: list[dict[str, Any]] = field(default_factory=list)
    differing: list[dict[str, Any]] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        """Whether nothing at all is wrong."""
        return not (self.files or self.samples or self.differing)


def verify(
    target: Path, against: Source | None = None, progress: Progress = lambda *_: None
) -> Verdict:
    """Read every byte of the set at ``target``, and compare every sample with its source's."""
    found = manifest.load(target)
    verdict = Verdict()
    verdict.files = list(_damaged_files(target, found, progress))
    try:
        reader = module_of(found.format).Reader(target, found)
    except DataError as error:
        if not verdict.files:
            verdict.files.append({"file": "samples.index", "found": str(error).splitlines()[0]})
        return verdict
    if len(reader) != found.samples:
        told = f"holds {len(reader)} samples, not {found.samples}"
        verdict.files.append({"file": "samples.index", "found": told})
    matching = None if against is None else _Matching(found, against)
    for i in range(len(reader)):
        try:
            key, fields = reader.key(i), reader.fields(i)
        except DamagedSample as damage:
            verdict.samples.append(
                {"shard": damage.shard, "index": i, "key": damage.key, "found": damage.found}
            )
            key, fields = damage.key, None
        verdict.checked += 1
        if matching is not None and (differs := matching.differs(key, fields)):
            verdict.differing.append({"index": i, "key": key, "found": differs})
        progress("verifying", i + 1, len(reader))
    reader.close()
    if matching is not None:
        verdict.compared = matching.compared
        verdict.differing += matching.left()
    return verdict


def _damaged_files(
    target: Path, found: manifest.Manifest, progress: Progress
) -> Iterator[dict[str, str]]:
    listed = [*found.shards, *found.files]
    for number, one in enumerate(listed):
        path = target / one["file"]
        try:
            size = path.stat().st_size
            if size != one["bytes"]:
                yield {"file": one["file"], "found": f"has {size} bytes, not {one['bytes']}"}
            elif manifest.digest_of_file(path) != one["digest"]:
                yield {"file": one["file"], "found": "its checksum does not agree"}
        except OSError as error:
            yield {"file": one["file"], "found": f"cannot be read: {error.strerror}"}
        progress("checksums", number + 1, len(listed))
    known = {one["file"] for one in listed} | {manifest.NAME}
    for base, _, names in os.walk(target):
        for name in sorted(names):
            path = Path(base, name).relative_to(target)
            if str(path) not in known:
                yield {"file": str(path), "found": "is no part of the set"}


class _Matching:
    """Walks the source in the order in which it was packed, beside the set."""

    def __init__(self, found: manifest.Manifest, source: Source) -> None:
        self._source, self._seed = source, found.order["seed"]
        self._reencode = found.reencode
        self._bad = {one["position"] for one in found.bad}
        listed = found.samples + len(found.bad)
        if listed != len(source):
            raise DataError(
                f"{source.name}: lists {len(source)} samples, and {listed} were packed.\n"
                "Give the source that was packed, as it was then."
            )
        told = found.reencode or {}
        self._treatment = Treatment("none", told.get("resize"), told.get("quality"), 2**62)
        self._position, self.compared = 0, 0

    def _next(self) -> tuple[str, int] | None:
        while self._position < len(self._source):
            at = np.array([self._position], np.uint64)
            i = int(at[0] if self._seed is None else permuted(at, len(self._source), self._seed)[0])
            self._position += 1
            if self._position - 1 not in self._bad:
                return self._source.key(i), i
        return None

    def differs(self, key: str | None, fields: dict[str, bytes] | None) -> str | None:
        """How the next sample of the source differs from this one of the set; None: not at all."""
        expected = self._next()
        if expected is None:
            return "the source has no such sample"
        if fields is None:
            return None  # listed as damaged already
        self.compared += 1
        if key != expected[0]:
            return f"the source has {expected[0]!r} in its place"
        try:
            original = self._source.read(expected[1])
        except (BadSample, OSError) as error:
            return f"the source cannot be read any more ({error})"
        if original == fields:
            return None
        if self._reencode is not None:
            original, _ = self._treatment(1, expected[0], original)
        return self._unlike(original, fields)

    def _unlike(self, original: dict[str, bytes], fields: dict[str, bytes]) -> str | None:
        if original.keys() != fields.keys():
            return f"the source gives {', '.join(original)}, the set {', '.join(fields)}"
        for name, content in original.items():
            if content != fields[name]:
                if self._reencode is None or name.rpartition(".")[2] not in FIELDS:
                    return f"{name} differs"
                if differs := self._far(content, fields[name]):
                    return f"{name}: {differs}"
        return None

    def _far(self, again: bytes, stored: bytes) -> str | None:
        """Compare pixels, since another version of the encoder may give other bytes."""
        image = pillow("Comparing pictures")
        with image.open(io.BytesIO(again)) as one, image.open(io.BytesIO(stored)) as other:
            if one.size != other.size or one.mode != other.mode:
                return f"{other.size[0]} x {other.size[1]} {other.mode}, not {one.size} {one.mode}"
            near = psnr(one, other)
        spread = (self._reencode or {}).get("psnr_db_after_resize") or {"least": 30.0}
        least = spread["least"] - TOLERATED_DB
        return None if near >= least else f"{near:.1f} dB from the source, less than {least:.1f}"

    def left(self) -> Iterator[dict[str, Any]]:
        """Samples of the source that the set lacks, though they were not listed as bad."""
        while (expected := self._next()) is not None:
            yield {"index": None, "key": expected[0], "found": "is not in the set"}
