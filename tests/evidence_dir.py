"""Where the real evidence lies: recorded traces that are too large for the repository.

The environment variable ``WHYIDLE_EVIDENCE`` names the folder; without it the folder
``shared/evidence`` beside the repository is tried. Tests skip, with the reason, when it is absent.
"""

from __future__ import annotations

import os
from pathlib import Path

WHY_ABSENT = "no real evidence here: set WHYIDLE_EVIDENCE to a folder that holds traces/"


def evidence_dir() -> Path | None:
    """The folder of real evidence, or None when there is none on this machine."""
    stated = os.environ.get("WHYIDLE_EVIDENCE")
    beside = Path(__file__).resolve().parents[2] / "shared" / "evidence"
    folder = Path(stated) if stated else beside
    return folder if folder.is_dir() else None


def traces() -> Path | None:
    """The folder of recorded traces, or None."""
    folder = evidence_dir()
    if folder is None or not (folder / "traces").is_dir():
        return None
    return folder / "traces"
