"""What ``prove`` asks of git: revisions, temporary worktrees, and what the working tree holds.

No call touches the user's files, index or branches: hooks are off, and git is told not to write
the index back when it refreshes it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from whyidle.errors import UsageError

_OF_ONE_CALL = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_COMMON_DIR")
"""Set for programs that git itself starts, such as hooks; they would bend our own calls."""


def top_of(folder: Path) -> Path | None:
    """The top of the working tree that holds ``folder``; None outside git or without git."""
    if shutil.which("git") is None:
        return None
    done = _git(folder, "rev-parse", "--show-toplevel")
    told = os.fsdecode(done.stdout).rstrip("\n")
    return Path(told) if done.returncode == 0 and told else None


def commit_of(top: Path, revision: str) -> str:
    """The full hash of the commit that ``revision`` names; UsageError when there is none."""
    done = None
    if not revision.startswith("-"):
        done = _git(top, "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}")
    if done is None or done.returncode:
        raise UsageError(
            f"{revision}: no commit of this repository.\n"
            "Check its spelling; a shallow clone lacks older ones (git fetch --unshallow, or "
            "fetch-depth: 0 in CI)."
        )
    return done.stdout.decode().strip()


def has_commit(top: Path) -> bool:
    """Whether there is any commit on this branch."""
    return _git(top, "rev-parse", "--verify", "--quiet", "HEAD^{commit}").returncode == 0


def described(top: Path, commit: str) -> str:
    """The short hash and the subject of a commit."""
    return os.fsdecode(_asked(top, "log", "-1", "--format=%h %s", commit)).strip()


def add_worktree(top: Path, root: Path, commit: str) -> None:
    """Check ``commit`` out into the new folder ``root``, on no branch."""
    _asked(top, "worktree", "add", "--quiet", "--detach", str(root), commit)


def remove_worktree(top: Path, root: Path) -> None:
    """Remove a worktree and what git noted of it; says nothing when it is gone already."""
    _git(top, "worktree", "remove", "--force", "--force", str(root))


def changed(top: Path) -> list[str]:
    """Tracked paths, relative to ``top``, that differ from HEAD or are gone; no submodules."""
    options = ("--name-only", "-z", "--no-renames", "--no-ext-diff", "--ignore-submodules=all")
    return _paths(_asked(top, "diff", *options, "--no-relative", "HEAD", "--"))


def untracked(top: Path) -> list[str]:
    """Paths, relative to ``top``, that git neither tracks nor ignores; a folder ends in a slash."""
    return _paths(_asked(top, "ls-files", "--others", "--exclude-standard", "-z"))


def ignored(top: Path) -> list[str]:
    """What git ignores, whole folders as one path, relative to ``top``."""
    options = ("--others", "--ignored", "--exclude-standard", "--directory", "-z")
    done = _git(top, "ls-files", *options)
    return _paths(done.stdout) if done.returncode == 0 else []


def submodules(root: Path) -> list[str]:
    """The paths of submodules that a tree names, relative to it."""
    if not (root / ".gitmodules").is_file():
        return []
    done = _git(root, "config", "-z", "--file", ".gitmodules", "--get-regexp", r"\.path$")
    return [entry.partition("\n")[2] for entry in _paths(done.stdout)]


def apply(folder: Path, patch: Path, *options: str) -> str | None:
    """Apply a patch in ``folder``; what git says against it, None when it took it."""
    done = _git(folder, "apply", "--whitespace=nowarn", *options, str(patch.absolute()))
    if done.returncode == 0:
        return None
    lines = os.fsdecode(done.stderr).strip().splitlines()
    return lines[0].removeprefix("error: ") if lines else "git apply failed"


def _git(folder: Path, *words: str) -> subprocess.CompletedProcess[bytes]:
    environment = {key: value for key, value in os.environ.items() if key not in _OF_ONE_CALL}
    environment |= {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
    return subprocess.run(
        ["git", "-c", "core.hooksPath=/dev/null", "-C", str(folder), *words],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )


def _asked(folder: Path, *words: str) -> bytes:
    done = _git(folder, *words)
    if done.returncode:
        lines = os.fsdecode(done.stderr).strip().splitlines() or ["it gave no reason"]
        raise UsageError(
            f"git {words[0]}: {lines[-1]}\nPut that right, or give two commands: "
            "whyidle prove -- BEFORE... -- AFTER..."
        )
    return done.stdout


def _paths(told: bytes) -> list[str]:
    return [os.fsdecode(path) for path in told.split(b"\0") if path]
