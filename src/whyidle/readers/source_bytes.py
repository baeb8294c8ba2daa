"""The bytes of a file of evidence, decompressed as they are read, with errors as sentences.

Compression is recognised by the first bytes, never by the name. Everything a file system or a
broken archive can do wrong becomes one of ours (``whyidle.errors``) here and nowhere else.
"""

from __future__ import annotations

import hashlib
import os
import stat
import zlib
from pathlib import Path
from typing import BinaryIO

from whyidle.errors import EvidenceError, NotFound, UnknownEvidence, UnreadableEvidence

HEAD = 1 << 16
"""Bytes of a file, decompressed, that a reader may look at to recognise it."""

BLOCK = 1 << 18
GZIP = b"\x1f\x8b"
RATIO_LIMIT = 400
RATIO_MATTERS_FROM = 1 << 30
"""A gzip file that grows more than 400-fold is refused once it has given 1 GiB. Real traces
grow 10- to 40-fold."""

DIGEST_WHOLE_BELOW = 32 << 20
DIGEST_STRIDE = 16 << 20
"""Up to 32 MiB on disk the digest covers every byte; a larger file is sampled, 1 MiB in every
16 MiB, because hashing all of it would cost more than 3 % of reading it."""

FOREIGN: tuple[tuple[bytes, str, str], ...] = (
    (b"\x28\xb5\x2f\xfd", "compressed with zstd", "Decompress it first: zstd -d FILE."),
    (b"\xfd7zXZ\x00", "compressed with xz", "Decompress it first: xz -dk FILE."),
    (b"BZh", "compressed with bzip2", "Decompress it first: bzip2 -dk FILE."),
    (b"\x04\x22\x4d\x18", "compressed with lz4", "Decompress it first: lz4 -d FILE."),
    (b"PK\x03\x04", "a zip archive", "Unpack it first: unzip FILE, then name the trace inside."),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive", "Unpack it first, then name the trace inside."),
    (
        b"SQLite format 3\x00",
        "an SQLite database, but no export of Nsight Systems",
        "Name a file written by: nsys export --type sqlite REPORT.nsys-rep.",
    ),
    (b"\x89HDF", "an HDF5 file", "Name a PyTorch Profiler trace (JSON, plain or gzip) instead."),
    (b"PAR1", "a Parquet file", "Name a PyTorch Profiler trace (JSON, plain or gzip) instead."),
)
"""First bytes, what the file is, what to do: formats that are recognised in order to say no."""

PICKLES = (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
TRACE_INSTEAD = "Name a PyTorch Profiler trace (JSON, plain or gzip) instead."


class SourceBytes:
    """A file read once from front to back, decompressed.

    ``at`` counts bytes taken from disk, ``size`` is the file's size on disk, ``given`` counts
    decompressed bytes. ``digest()`` is complete once everything was read.
    """

    def __init__(self, path: Path, *, only_head: bool = False) -> None:
        """Open ``path``; raises an EvidenceError that says why it cannot be read.

        ``only_head`` is for a look at the first bytes: there is no digest then.
        """
        self.path = path
        self._file = open_regular(path)
        self.size = os.fstat(self._file.fileno()).st_size
        self.at = 0
        self.given = 0
        self.notes: list[str] = []
        self._only_head = only_head
        self._hash = hashlib.sha256()
        self._hash_whole = self.size <= DIGEST_WHOLE_BELOW
        self._pending = self._take(HEAD if only_head else BLOCK)
        self.compressed = self._pending.startswith(GZIP)
        self._inflate = zlib.decompressobj(31) if self.compressed else None

    def __enter__(self) -> SourceBytes:
        """Use as a context manager, so that the file is closed."""
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def digest(self) -> str:
        """SHA-256 of the bytes on disk, or of a stated sample of them and the size."""
        if self._hash_whole:
            return f"sha256:{self._hash.hexdigest()}"
        self._hash.update(str(self.size).encode())
        return f"sha256-of-1MiB-per-16MiB:{self._hash.hexdigest()}"

    def read_into(self, target: memoryview) -> int:
        """Fill the front of ``target``; the number of bytes written, 0 at the end."""
        if self._inflate is not None:
            return self._inflate_into(target)
        if self._pending:
            part = self._pending[: len(target)]
            self._pending = self._pending[len(part) :]
            target[: len(part)] = part
            self.given += len(part)
            return len(part)
        try:
            count = int(self._file.readinto(target) or 0)  # type: ignore[attr-defined]
        except OSError as error:
            raise unreadable(self.path, error) from error
        self._note_taken(target[:count])
        self.given += count
        return count

    def _take(self, count: int) -> bytes:
        try:
            block = self._file.read(count)
        except OSError as error:
            raise unreadable(self.path, error) from error
        self._note_taken(block)
        return block

    def _note_taken(self, block: bytes | memoryview) -> None:
        before, self.at = self.at, self.at + len(block)
        if self._only_head:
            return
        if self._hash_whole:
            self._hash.update(block)
            return
        first = -(-before // DIGEST_STRIDE) * DIGEST_STRIDE
        start = before if before % DIGEST_STRIDE < (1 << 20) else first
        if start < self.at:
            keep = min(self.at, start // DIGEST_STRIDE * DIGEST_STRIDE + (1 << 20))
            self._hash.update(block[start - before : keep - before])

    def _inflate_into(self, target: memoryview) -> int:
        while True:
            assert self._inflate is not None
            if self._inflate.eof:
                rest = self._inflate.unused_data or self._pending or self._take(BLOCK)
                rest = rest.lstrip(b"\x00")
                if not rest and self.at >= self.size:
                    return 0
                if rest and not rest.startswith(GZIP):
                    self.notes.append(f"{len(rest)} or more bytes after the gzip data, not read")
                    return 0
                self._inflate, self._pending = zlib.decompressobj(31), rest
            source = self._inflate.unconsumed_tail or self._pending or self._take(BLOCK)
            self._pending = b""
            try:
                part = self._inflate.decompress(source, len(target))
            except zlib.error as error:
                raise UnreadableEvidence(
                    str(self.path),
                    f"broken gzip data near byte {self.at - len(source)} of {self.size} ({error})",
                    "Copy the file again; a trace that was cut or edited cannot be unpacked.",
                ) from error
            if part:
                target[: len(part)] = part
                self.given += len(part)
                self._refuse_bomb()
                return len(part)
            if not source and not self._inflate.eof:
                raise UnreadableEvidence(
                    str(self.path),
                    f"the gzip data ends early, after {self.at} bytes on disk and "
                    f"{self.given} unpacked",
                    "The file was cut: copy it again, or record again and let the profiler finish.",
                )

    def _refuse_bomb(self) -> None:
        if self.given > RATIO_MATTERS_FROM and self.given > RATIO_LIMIT * max(self.at, 1):
            raise UnreadableEvidence(
                str(self.path),
                f"{self.at} bytes of gzip unpack to more than {self.given} "
                f"(over {RATIO_LIMIT}-fold), which no trace does",
                "If you trust the file, unpack it with gunzip and name the result.",
            )


def open_regular(path: Path) -> BinaryIO:
    """The open file, unbuffered; a sentence for a folder, pipe, device, broken link or no right."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        if path.is_symlink():
            raise UnreadableEvidence(
                str(path),
                f"a link to {os.readlink(path)}, which does not exist",
                "Name the file itself.",
            ) from None
        raise NotFound(str(path)) from None
    except ValueError:
        raise NotFound(repr(str(path))) from None
    except OSError as error:
        raise unreadable(path, error) from error
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "a pipe, socket or device, not a file"
        raise UnreadableEvidence(str(path), kind, "Save the trace to a file and name that.")
    try:
        return path.open("rb", buffering=0)
    except OSError as error:
        raise unreadable(path, error) from error


def unreadable(path: Path, error: OSError) -> EvidenceError:
    """The sentence for what the operating system said."""
    said = (error.strerror or type(error).__name__).lower()
    if isinstance(error, PermissionError):
        next_step = "Ask for the right to read it, or copy it where you have it."
    else:
        next_step = "Check the path and the disk it lies on."
    return UnreadableEvidence(str(path), f"cannot be read: {said}", next_step)


def head_of(path: Path) -> bytes:
    """The first 64 KiB, decompressed; less for a smaller or a broken file."""
    buffer = bytearray(HEAD)
    view, filled = memoryview(buffer), 0
    with SourceBytes(path, only_head=True) as source:
        while filled < HEAD:
            try:
                count = source.read_into(view[filled:])
            except UnreadableEvidence:
                if filled:
                    break
                raise
            if not count:
                break
            filled += count
    return bytes(view[:filled])


def refuse_foreign(path: Path, head: bytes) -> None:
    """Raise a sentence when the first bytes say that this is no text we could read."""
    if not head.strip(b" \t\r\n\x00\xef\xbb\xbf"):
        found = "empty" if not head else "nothing but white space"
        raise UnreadableEvidence(
            str(path), found, "Record the trace again and let the profiler finish."
        )
    for magic, what, next_step in FOREIGN:
        if head.startswith(magic):
            raise UnknownEvidence(str(path), what, next_step.replace("FILE", path.name))
    if head.startswith(PICKLES):
        raise UnknownEvidence(
            str(path),
            "a Python pickle that is neither a CUDA memory snapshot nor a dump of the NCCL "
            "flight recorder",
            TRACE_INSTEAD,
        )
    if head.startswith(GZIP):
        raise UnknownEvidence(
            str(path), "gzip data inside gzip data", f"Unpack it once: gunzip {path.name}."
        )
    if head.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\x00" in head[:4]:
        raise UnreadableEvidence(
            str(path),
            "text in UTF-16 or UTF-32, or binary data; a trace is UTF-8",
            f"Convert it: iconv -f UTF-16 -t UTF-8 {path.name} > trace.json.",
        )
