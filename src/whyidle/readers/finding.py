"""Which files to read, and which reader knows each of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import NamedTuple, Protocol, cast

from whyidle.errors import EvidenceError, UnknownEvidence, UnreadableEvidence
from whyidle.model import Evidence
from whyidle.readers import bundle, not_activity, other_profilers
from whyidle.readers.source_bytes import head_of, open_regular, refuse_foreign, unreadable

GROUP = "whyidle.readers"
BUILT_IN = {
    "torch_trace": "whyidle.readers.torch_trace",
    "bundle": "whyidle.readers.bundle",
    "nsys": "whyidle.readers.nsys",
    "execution_trace": "whyidle.readers.execution_trace",
    "flight_recorder": "whyidle.readers.flight_recorder",
    "cuda_memory": "whyidle.readers.cuda_memory",
    "nvidia_smi": "whyidle.readers.nvidia_smi",
    "topology": "whyidle.readers.topology",
    "prometheus": "whyidle.readers.prometheus",
    "dcgm": "whyidle.readers.dcgm",
    "rocm_smi": "whyidle.readers.rocm_smi",
    "tensorboard": "whyidle.readers.tensorboard",
    "wandb": "whyidle.readers.wandb_run",
    "step_records": "whyidle.readers.step_records",
}
"""Ours, for a source tree whose package metadata is not installed."""

OWN_REPORT = b"### whyidle: "
"""How our Markdown begins, which quotes commands and readings: it is never evidence."""

LOOK_LIMIT = 2000
"""Files looked at in a folder and below before giving up."""


class Reader(Protocol):
    """A module that reads one format."""

    NAME: str

    def sniff(self, path: Path, head: bytes) -> bool:
        """Whether the file's first bytes, decompressed, are of this format."""

    def read(self, path: Path, progress: Callable[[int, int], None] | None) -> Evidence:
        """The evidence in the file."""


class Found(NamedTuple):
    """Files to read, those of them that a folder gave, and what to say about files passed over."""

    files: list[Path]
    notes: list[str]
    from_folders: set[Path]


def readers() -> dict[str, Reader]:
    """Every reader by entry-point name; ours first. One that cannot be imported is left out."""
    named = dict(BUILT_IN)
    for point in entry_points(group=GROUP):
        named.setdefault(point.name, point.value)
    found: dict[str, Reader] = {}
    for name, module in named.items():
        try:
            found[name] = cast(Reader, import_module(module))
        except ImportError:
            if name in BUILT_IN:
                raise
    return found


def knowing(path: Path, head: bytes) -> Reader | None:
    """The reader that knows the file, ours asked first; None when none does."""
    if head.startswith(OWN_REPORT):
        return None
    for module in BUILT_IN.values():
        reader = cast(Reader, import_module(module))
        if reader.sniff(path, head):
            return reader
    others = (reader for name, reader in readers().items() if name not in BUILT_IN)
    return next((reader for reader in others if reader.sniff(path, head)), None)


def reader_for(path: Path) -> Reader:
    """The reader for a file that was named; a sentence says what the file is when there is none.

    JSON that no reader knows goes to the reader of traces, which says what it is instead.
    """
    head = head_of(path)
    found = knowing(path, head)
    if found is not None:
        return found
    other_profilers.refuse(path, head)
    refuse_foreign(path, head)
    not_activity.refuse(path, head)
    if head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] in (b"{", b"["):
        return cast(Reader, import_module(BUILT_IN["torch_trace"]))
    what = "text, but not JSON" if _is_text(head) else "binary data of no format known here"
    raise UnknownEvidence(
        str(path), what, "Name a PyTorch Profiler trace (JSON, plain or gzip) instead."
    )


def files_of(paths: Iterable[Path]) -> Found:
    """The files that the paths stand for, each once, in the order given; folders sorted by name.

    The manifest of a bundle stands for the whole bundle.
    """
    found = Found([], [], set())
    seen: set[str] = set()
    for path in paths:
        try:
            is_folder = path.is_dir()
        except (OSError, ValueError):
            is_folder = False
        if not is_folder:
            open_regular(path).close()
            if _is_bundle(path):
                path, is_folder = path.parent, True
        for file in _in_folder(path, found.notes) if is_folder else [path]:
            real = os.path.realpath(file)
            if real not in seen:
                seen.add(real)
                found.files.append(file)
                if is_folder:
                    found.from_folders.add(file)
    return found


def _in_folder(folder: Path, notes: list[str]) -> list[Path]:
    """Every trace directly in the folder; when there is none, every trace below it.

    Of a bundle it is all that the bundle holds; so of every bundle below the folder.
    """
    manifest = folder / bundle.MANIFEST
    if _is_bundle(manifest):
        return _of_bundle(manifest)
    looked = 0
    unread: list[Path] = []
    for level in (_listed(folder), _below(folder)):
        files: list[Path] = []
        passed: list[Path] = []
        for path in level:
            looked += 1
            if looked > LOOK_LIMIT and not files:
                raise UnknownEvidence(
                    str(folder),
                    f"no trace among the first {LOOK_LIMIT} files",
                    "Name the folder that holds the traces.",
                )
            if _is_bundle(path):
                files += _of_bundle(path)
            else:
                (files if _is_known(path) else passed).append(path)
        if files:
            if passed:
                some = ", ".join(path.name for path in passed[:4])
                more = f" and {len(passed) - 4} more" if len(passed) > 4 else ""
                notes.append(f"{folder}: no reader knows {some}{more}; passed over")
            return files
        unread += passed
    for path in unread:
        other_profilers.refuse(path, b"")
    raise UnknownEvidence(
        str(folder),
        f"a folder without a trace ({looked} files looked at)",
        "Name a folder of traces written by torch.profiler, one file per rank.",
    )


def _is_bundle(path: Path) -> bool:
    """Whether the file is the manifest of a bundle."""
    if path.name != bundle.MANIFEST:
        return False
    try:
        return bundle.sniff(path, head_of(path))
    except EvidenceError:
        return False


def _of_bundle(manifest: Path) -> list[Path]:
    """The files of a bundle that are read, each by its own reader."""
    return [manifest, *(path for path in bundle.files_beside(manifest) if _is_known(path))]


def _listed(folder: Path) -> list[Path]:
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        raise unreadable(folder, error) from error
    return [Path(e.path) for e in entries if not e.name.startswith(".") and e.is_file()]


def _below(folder: Path) -> Iterable[Path]:
    for parent, folders, _ in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        here = Path(parent)
        if here == folder:
            continue
        if _is_bundle(here / bundle.MANIFEST):
            folders.clear()
            yield here / bundle.MANIFEST
        else:
            yield from _listed(here)


def _is_known(path: Path) -> bool:
    """Whether a reader knows the file. A broken archive that is named like a trace is known."""
    try:
        head = head_of(path)
    except UnreadableEvidence:
        return path.name.endswith((".json", ".json.gz"))
    except EvidenceError:
        return False
    return knowing(path, head) is not None


def _is_text(head: bytes) -> bool:
    try:
        head[:4096].decode("utf-8")
    except UnicodeDecodeError as bad:
        return bad.start > len(head[:4096]) - 4
    return b"\x00" not in head[:4096]
