"""Files that lie elsewhere: s3://, gs://, memory://, file:// and whatever else fsspec opens.

A worker copies one file at a time next to itself, reads it, and removes the copy: readers may
seek, and nothing passes through the machine that asks.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from whyidle.errors import EvidenceError, NotFound, UnreadableEvidence, UsageError
from whyidle.model import Evidence

HEAD = 1 << 16
_URL = re.compile(r"^[a-z][a-z0-9+.-]*(::|://)", re.IGNORECASE)


def is_url(path: str) -> bool:
    """Whether the path names a file for fsspec."""
    return _URL.match(path) is not None


def listed(urls: Iterable[str]) -> list[tuple[str, bool]]:
    """(url, whether a folder gave it) of every file; folders are listed, not walked."""
    found: list[tuple[str, bool]] = []
    for url in urls:
        files, at = _opened(url)
        with _told(url):
            if files.isdir(at):
                inside = sorted(e["name"] for e in files.ls(at, detail=True) if e["type"] == "file")
                found += [(files.unstrip_protocol(name), True) for name in inside]
            elif files.exists(at):
                found.append((url, False))
            else:
                raise NotFound(url)
    return found


def size_of(url: str) -> int:
    """Bytes of the file where it lies; 0 when the file system does not say."""
    files, at = _opened(url)
    with _told(url):
        return int(files.size(at) or 0)


def head_of(url: str) -> bytes:
    """The first bytes, decompressed, as whyidle.readers.source_bytes.head_of gives them."""
    from whyidle.readers.source_bytes import head_of as local_head

    files, at = _opened(url)
    with tempfile.TemporaryDirectory(prefix="whyidle-") as folder, _told(url):
        copy = Path(folder) / at.rsplit("/", 1)[-1]
        with files.open(at, "rb") as stream:
            copy.write_bytes(stream.read(HEAD))
        return local_head(copy)


@contextlib.contextmanager
def copied(url: str) -> Iterator[Path]:
    """A copy of the file on this machine, under its own name, for as long as it is used."""
    files, at = _opened(url)
    with tempfile.TemporaryDirectory(prefix="whyidle-") as folder:
        copy = Path(folder) / at.rsplit("/", 1)[-1]
        with _told(url), files.open(at, "rb") as stream, copy.open("wb") as out:
            shutil.copyfileobj(stream, out, 1 << 20)
        yield copy


def renamed(evidence: Evidence, url: str) -> Evidence:
    """The same evidence, told to come from ``url``."""
    return replace(evidence, sources=tuple(replace(s, path=url) for s in evidence.sources))


def retold(error: EvidenceError, copy: Path, url: str) -> EvidenceError:
    """The same error, told of ``url`` instead of the copy."""
    kind = type(error)
    again = kind.__new__(kind)
    Exception.__init__(again, str(error).replace(str(copy), url))
    again.path, again.found = url, error.found
    return again


def _opened(url: str) -> tuple[Any, str]:
    """The file system of a URL, and the path in it."""
    try:
        import fsspec
    except ImportError:
        raise UsageError(
            f"{url} is read through fsspec, which is not installed.\n"
            "Install it: pip install 'whyidle[remote]' (and s3fs, gcsfs or another for its files)."
        ) from None
    with _told(url):
        files, at = fsspec.core.url_to_fs(url)
        return files, str(at)


@contextlib.contextmanager
def _told(url: str) -> Iterator[None]:
    """Whatever a file system raises, as a sentence."""
    try:
        yield
    except EvidenceError:
        raise
    except FileNotFoundError:
        raise NotFound(url) from None
    except (OSError, ValueError, ImportError, RuntimeError) as error:
        said = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise UnreadableEvidence(
            url, f"cannot be opened ({said})", "Check the address, your rights and the network."
        ) from error
