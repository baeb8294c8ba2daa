"""The folder that the paths of a diff begin at, so that git takes them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path


def base_of(paths: Sequence[str]) -> Path:
    """The current folder where it holds all files, else their git root, else what they share.

    git refuses paths that leave the folder it works in, and those through links.
    """
    real = [Path(path).resolve() for path in paths]
    here = Path.cwd().resolve()
    if all(here in path.parents for path in real):
        return here
    roots = {_git_root(path) for path in real}
    (root,) = roots if len(roots) == 1 else (None,)
    if root is not None:
        return root
    try:
        return Path(os.path.commonpath([path.parent for path in real]))
    except ValueError:  # several drives
        return Path(real[0].anchor)


def below(base: Path, path: str) -> str:
    """A file's path from the base, with slashes."""
    return os.path.relpath(Path(path).resolve(), base).replace(os.sep, "/")


def how_to_apply(base: Path) -> str | None:
    """What to say where the diff is not for the current folder."""
    if base == Path.cwd().resolve():
        return None
    folder = str(base)
    quoted = f"'{folder}'" if any(c in folder for c in " ()&;") else folder
    return (
        f"the diff's paths begin at {folder}; apply it with "
        f'`git -C {quoted} apply "$PWD/change.diff"`'
    )


def _git_root(path: Path) -> Path | None:
    return next((folder for folder in path.parents if (folder / ".git").exists()), None)
