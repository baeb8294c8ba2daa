"""Packs a source into one of the formats: resumable, deterministic, checked, and in one step.

Everything is written below ``DST.partial``, which gets its name only once it is whole and on disk.
After a kill the same command goes on where it was, and the files end up equal bit for bit to those
of a run that nobody disturbed.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whyidle import __version__
from whyidle.data import index, journal, manifest, pictures
from whyidle.data.engine import Read, Reading, read_all
from whyidle.data.formats import Options, Writer, writer
from whyidle.data.records import BadSample, sample_hash
from whyidle.data.sources import Source
from whyidle.errors import DataError, OutputError, WhyidleError, clear

Progress = Callable[[str, int, int], None]

SHUFFLED = (
    "a seeded permutation of the whole set: any sample can stand anywhere; "
    "equal for equal seed and number of samples, whatever the number of processes"
)


@dataclass(frozen=True)
class Plan:
    """How to pack. All but the last three change the bytes that come out.

    ``shuffle``: a seed, or None for the source's order. ``check``: none, structure or decode.
    ``strict``: end at the first bad sample. ``workers``: processes that read; 0 reads in this one.
    ``journal_bytes``: how much may have to be read again after a kill.
    """

    format: str = "blob"
    samples_per_shard: int | None = None
    shard_bytes: int | None = None
    shuffle: int | None = None
    resize: int | None = None
    quality: int | None = None
    check: str = "structure"
    strict: bool = False
    workers: int = 0
    journal_bytes: int = 64 << 20

    def job(self, source: Source) -> dict[str, Any]:
        """What must be the same for a run to go on with what another began."""
        return {
            "source": source.digest,
            "samples": len(source),
            "format": self.format,
            "samples per shard": self.samples_per_shard,
            "shard size": self.shard_bytes,
            "shuffle seed": self.shuffle,
            "resize": self.resize,
            "quality": self.quality,
            "check": self.check,
            "version of whyidle": __version__,
        }


def pack(
    source: Source, target: Path, plan: Plan, progress: Progress = lambda *_: None
) -> manifest.Manifest:
    """Pack ``source`` into the new folder ``target``; goes on with what a killed run began.

    ``progress`` is called with (what, samples or files done, in all).
    """
    if os.path.lexists(target):
        if journal.left_behind(target, plan.job(source)):
            return manifest.load(target)
        raise OutputError(f"{target}: exists already.\nMove it away, or choose another name.")
    _apart(source, target)
    kept = journal.Journal(target.with_name(target.name + ".partial"), plan.job(source))
    try:
        if not kept.state.finished:
            _Packing(source, plan, kept, progress).run()
        found = manifest.load(kept.folder)
        kept.complete(target)
        return found
    except OSError as error:
        raise _told(error, kept.folder) from error
    finally:
        kept.release()


def _apart(source: Source, target: Path) -> None:
    given, goal = Path(source.name), target.resolve()
    if given.is_dir() and given.resolve() in (goal, *goal.parents):
        raise OutputError(
            f"{target}: lies inside the source {source.name}.\nChoose a folder outside of it."
        )


def _told(error: OSError, folder: Path) -> WhyidleError:
    full = {
        errno.ENOSPC: "the disk is full",
        errno.EDQUOT: "the quota is used up",
        errno.EFBIG: "a file has reached the largest size that is allowed here",
        errno.EROFS: "the disk is read-only",
    }
    found = full.get(error.errno or 0, error.strerror or str(error))
    return OutputError(
        f"{folder}: {found}.\nWhat is on disk stays: the same command goes on once there is room."
    )


class _Packing:
    """One run from the journal's state to a finished folder that lacks only its name."""

    def __init__(
        self, source: Source, plan: Plan, kept: journal.Journal, progress: Progress
    ) -> None:
        self._source, self._plan, self._kept, self._progress = source, plan, kept, progress
        self._treatment = pictures.Treatment(
            plan.check, plan.resize, plan.quality, max(1, len(source) // pictures.LISTED)
        )
        self._fields = set(kept.state.fields)
        self._written = 0

    def run(self) -> None:
        """Read, write and finish; on any failure all files are closed and stay."""
        state = self._kept.state
        options = Options(len(self._source), self._plan.samples_per_shard, self._plan.shard_bytes)
        try:
            out = writer(self._plan.format, self._kept.folder, options, state.writer)
        except ValueError as error:
            raise DataError(
                f"{self._kept.folder}: {error}.\nRemove that folder to begin anew."
            ) from error
        samples = state.writer["samples"] if state.writer else 0
        rows = None
        try:
            rows = index.IndexWriter(self._kept.folder, samples)
            self._append_all(out, rows, self._kept.back_to(samples))
            self._finish(out, rows)
        finally:
            out.close()
            if rows is not None:
                rows.close()

    def _append_all(self, out: Writer, rows: index.IndexWriter, start: int) -> None:
        reading = Reading(self._source, self._plan.shuffle, self._treatment)
        total = len(self._source)
        for read in read_all(reading, start, self._plan.workers):
            self._append(out, rows, read)
            self._kept.state.next = read.position + 1
            self._progress("packing", read.position + 1, total)
            if self._written >= self._plan.journal_bytes:
                self._save(out, rows)
        self._save(out, rows)

    def _append(self, out: Writer, rows: index.IndexWriter, read: Read) -> None:
        reason = read.reason
        if read.fields is not None:
            try:
                place = out.append(read.key, read.fields)
            except BadSample as bad:
                reason = bad.reason
            else:
                rows.append(read.key, place, sample_hash(read.fields))
                self._fields.update(read.fields)
                self._written += place.length + index.ROW.size
                if read.note is not None:
                    self._kept.state.losses.append([read.position, *read.note])
                return
        if self._plan.strict:
            raise DataError(
                f"{clear(read.key)}: {reason}.\n"
                "Mend it, or pack without --strict, which leaves it out and lists it."
            )
        self._kept.add_bad(read.position, read.key, str(reason))

    def _save(self, out: Writer, rows: index.IndexWriter) -> None:
        """Everything that was appended is on disk before the journal says so."""
        out.flush()
        rows.flush()
        state = self._kept.state
        state.writer, state.fields = out.position(), sorted(self._fields)
        self._kept.save()
        self._written = 0

    def _finish(self, out: Writer, rows: index.IndexWriter) -> None:
        if not rows.samples:
            raise DataError(
                f"{self._source.name}: none of {len(self._source)} samples could be packed, since "
                f"{clear(self._kept.bad[0][1])}: {self._kept.bad[0][2]}.\n"
                f"Mend them, remove {self._kept.folder}, and pack again."
                if self._kept.bad
                else f"{self._source.name}: holds no samples."
            )
        facts = out.finish()
        rows.finish()
        shards = facts.pop("shards")
        written = manifest.Manifest(
            format=self._plan.format,
            samples=rows.samples,
            fields=sorted(self._fields),
            shards=self._digests(shards),
            files=self._digests([{"file": name} for name in self._others(shards)]),
            classes=self._source.classes,
            source={"name": os.path.basename(self._source.name), "digest": self._source.digest},
            order=(
                {"kind": "listed", "seed": None}
                if self._plan.shuffle is None
                else {"kind": "shuffled", "seed": self._plan.shuffle, "quality": SHUFFLED}
            ),
            reencode=pictures.told(self._treatment, [one[1:] for one in self._kept.state.losses]),
            bad=[
                {"position": position, "key": key, "reason": reason}
                for position, key, reason in self._kept.bad
            ],
            facts=facts,
            whyidle=__version__,
        )
        manifest.write(self._kept.folder, written)
        self._kept.state.finished = True
        self._kept.save()

    def _others(self, shards: list[dict[str, Any]]) -> list[str]:
        """Every file below the folder that is no shard and that will stay."""
        leave = {one["file"] for one in shards} | journal.OURS | {manifest.NAME}
        found = (
            str(Path(base, name).relative_to(self._kept.folder))
            for base, _, names in os.walk(self._kept.folder)
            for name in names
        )
        return sorted(set(found) - leave)

    def _digests(self, files: list[dict[str, Any]]) -> list[dict[str, Any]]:
        done = []
        for number, one in enumerate(files):
            path = self._kept.folder / one["file"]
            done.append(
                {**one, "bytes": path.stat().st_size, "digest": manifest.digest_of_file(path)}
            )
            self._progress("checksums", number + 1, len(files))
        return done
