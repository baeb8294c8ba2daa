"""Recordings of other profilers that are recognised in order to say what to give instead.

They are known by their first bytes or, where those say nothing, by the ending of their name.
"""

from __future__ import annotations

from pathlib import Path

from whyidle.errors import UnknownEvidence

REPORTS = (".nsys-rep", ".qdrep", ".qdstrm")
_PLANES = (b"/host:CPU", b"/host:metadata", b"/device:GPU:", b"/device:TPU:", b"/host:python")
"""Names of planes in an xplane file: a protobuf message whose first field is a plane."""


def refuse(path: Path, head: bytes) -> None:
    """Raise a sentence when the file is a recording that has to be exported, or is not read."""
    if path.name.endswith(REPORTS):
        raise UnknownEvidence(
            str(path),
            "a report of Nsight Systems in its own format, which only its own programs read",
            f"Export it, on a machine that has them: nsys export --type sqlite {path.name}; then "
            "give the .sqlite file.",
        )
    if is_xplane(path, head):
        raise UnknownEvidence(
            str(path),
            "an xplane profile of JAX or TensorFlow, which is not read",
            "Record the same steps with Nsight Systems instead: nsys profile --trace=cuda,nvtx -o "
            "report COMMAND, then nsys export --type sqlite report.nsys-rep.",
        )


def is_xplane(path: Path, head: bytes) -> bool:
    """Whether this is an XSpace message, as the profilers of JAX and TensorFlow write it."""
    named = path.name.endswith((".xplane.pb", ".xplane.pb.gz"))
    return named or (head[:1] == b"\x0a" and any(plane in head[:4096] for plane in _PLANES))
