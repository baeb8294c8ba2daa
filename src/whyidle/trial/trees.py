"""The two trees that one command is proven in: temporary, and removed again whatever happens.

A revision is checked out into a worktree of its own. The working tree as it is, and a folder
outside git, are copied, so that the user can go on editing and no run writes into their files.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from whyidle.errors import UsageError
from whyidle.observe.events import events_of
from whyidle.observe.launch import HOOK
from whyidle.trial import git

MOST_BYTES = 256 * 2**20
"""What is copied of files that git does not track, and of a folder outside git, at most."""

MOST_FILES = 20_000

WORKING = (".", "WORKTREE")
"""How the working tree as it is is named where a revision is asked for."""

_LEFT_OUT = frozenset({".git", "__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache"})


@dataclass(frozen=True)
class Tree:
    """One side's tree. ``folder`` in ``root`` stands for the user's; ``holds`` says what it is.

    ``origin`` is the user's own tree, ``links`` those of its paths that are shared with it.
    """

    root: Path
    folder: Path
    origin: Path
    links: Sequence[Path]
    holds: str

    def environment(self, given: Mapping[str, str]) -> dict[str, str]:
        """``given`` for a run in this tree: PYTHONPATH leads into it instead of the user's."""
        found = {**given, "PWD": str(self.folder)}
        if "PYTHONPATH" in found:
            paths = found["PYTHONPATH"].split(os.pathsep)
            found["PYTHONPATH"] = os.pathsep.join(map(self._moved, paths))
        return found

    def _moved(self, path: str) -> str:
        real = Path(path).resolve()
        if not path or real == HOOK or not real.is_relative_to(self.origin) or self.shared(real):
            return path
        return str(self.root / real.relative_to(self.origin))

    def shared(self, path: Path) -> bool:
        """Whether a path of the user's tree is linked into this one."""
        return any(path.is_relative_to(link) for link in self.links)


@contextlib.contextmanager
def of_revisions(revisions: tuple[str, str], links: Sequence[str]) -> Iterator[tuple[Tree, Tree]]:
    """A tree of each revision of the repository around the current folder."""
    here = Path.cwd().resolve()
    top = git.top_of(here)
    if top is None:
        raise UsageError(
            "--between needs git, and a folder that it knows.\n"
            "Without: whyidle prove --patch FIX.patch -- CMD..., or two commands."
        )
    top = top.resolve()
    shared = _links(links, here, top)
    wanted = [None if name in WORKING else git.commit_of(top, name) for name in revisions]
    with _folder(top) as folder:
        trees = []
        for name, revision, commit in zip(("before", "after"), revisions, wanted, strict=True):
            root = folder / name
            if commit is None:
                holds = _working(top, root, shared)
            else:
                git.add_worktree(top, root, commit)
                holds = f"{revision} ({git.described(top, commit)})"
            trees.append(_furnished(Tree(root, root / here.relative_to(top), top, shared, holds)))
        yield trees[0], trees[1]


@contextlib.contextmanager
def of_patch(patch: bytes, name: str, links: Sequence[str]) -> Iterator[tuple[Tree, Tree]]:
    """The working tree as it is, and the same with ``patch`` applied; ``name`` is what it's called.

    Paths of the patch are relative to the current folder, as ``whyidle fix`` writes them, or to
    the top of the repository, as ``git diff`` does.
    """
    if not patch.strip():
        raise UsageError(f"{name}: an empty patch changes nothing, so there is nothing to prove.")
    here = Path.cwd().resolve()
    top = git.top_of(here)
    known = top is not None and git.has_commit(top)
    origin = top.resolve() if top is not None and known else here
    shared = _links(links, here, origin)
    with _folder(origin if known else None) as folder:
        file = folder / "change.patch"
        file.write_bytes(patch)
        trees = []
        for side in ("before", "after"):
            root = folder / side
            holds = _working(origin, root, shared) if known else _copied(origin, root, shared)
            tree = _furnished(Tree(root, root / here.relative_to(origin), origin, shared, holds))
            trees.append(tree)
        _patch(trees[1], file, name)
        yield trees[0], Tree(**{**vars(trees[1]), "holds": f"{trees[1].holds} with {name}"})


def _patch(tree: Tree, patch: Path, name: str) -> None:
    """Apply the patch where its paths fit: in the current folder, or at the top."""
    within = tree.folder.relative_to(tree.root).as_posix()
    ways = [[f"--directory={within}"], []] if within != "." else [[]]
    wrong = ""
    for way in ways:
        said = git.apply(tree.root, patch, *way)
        if said is None:
            return
        wrong = wrong or said
    if any(git.apply(tree.root, patch, *way, "-R", "--check") is None for way in ways):
        raise UsageError(
            f"{name}: is applied to the working tree already.\n"
            "Prove that with: whyidle prove --between HEAD . -- CMD..."
        )
    raise UsageError(
        f"{name}: does not apply to the working tree ({wrong}).\n"
        "Make it anew, in the folder where the command runs."
    )


@contextlib.contextmanager
def _folder(top: Path | None) -> Iterator[Path]:
    """A temporary folder; the worktrees in it, and it, are gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="whyidle-trees-")).resolve()
    try:
        yield folder
    finally:
        with _undisturbed():
            for side in ("before", "after"):
                if top is not None and (folder / side).exists():
                    git.remove_worktree(top, folder / side)
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """A second Ctrl-C does not leave half a tree behind."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    try:
        earlier = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    except ValueError:  # not the main thread, which alone is interrupted
        yield
        return
    try:
        yield
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler or signal.SIG_DFL)


def _working(top: Path, root: Path, links: Sequence[Path]) -> str:
    """The working tree as it is: HEAD, what differs from it, and new files, but none ignored."""
    git.add_worktree(top, root, git.commit_of(top, "HEAD"))
    changed = git.changed(top)
    new = [path for path in git.untracked(top) if not _within(top / path, links)]
    _bounded((top / path for path in new), top)
    for path in (*changed, *new):
        _copy(top / path, root / path)
    return f"the working tree ({git.described(top, 'HEAD')}{', changed' if changed or new else ''})"


def _copied(origin: Path, root: Path, links: Sequence[Path]) -> str:
    """A folder outside git as it is, but for what is linked and what tools keep for themselves."""
    found = list(_files(origin, links))
    _bounded(found, origin)
    for path in found:
        _copy(path, root / path.relative_to(origin))
    root.mkdir(exist_ok=True)
    return f"the folder {origin.name}"


def _files(origin: Path, links: Sequence[Path]) -> Iterator[Path]:
    for folder, folders, files in os.walk(origin):
        here = Path(folder)
        linked = [name for name in folders if (here / name).is_symlink()]
        folders[:] = [
            name
            for name in folders
            if name not in _LEFT_OUT and name not in linked and not _within(here / name, links)
        ]
        yield from (here / n for n in (*files, *linked) if not _within(here / n, links))


def _bounded(paths: Sequence[Path] | Iterator[Path], origin: Path) -> None:
    """UsageError when copying would take too much; it names what is largest."""
    sizes: dict[str, int] = {}
    for count, path in enumerate(paths, start=1):
        first = path.relative_to(origin).parts[0]
        with contextlib.suppress(OSError):
            sizes[first] = sizes.get(first, 0) + path.lstat().st_size
        if count > MOST_FILES or sum(sizes.values()) > MOST_BYTES:
            largest = max(sizes, key=lambda name: sizes[name])
            raise UsageError(
                f"{origin}: too much to copy (more than {MOST_BYTES >> 20} MiB or {MOST_FILES:,} "
                f"files that git does not track).\nLink what no run changes: --link {largest}"
            )


def _copy(source: Path, target: Path) -> None:
    if not os.path.lexists(source):
        target.unlink(missing_ok=True)
        return
    if source.is_dir() and not source.is_symlink():
        return  # a repository of its own within this one
    target.parent.mkdir(parents=True, exist_ok=True)
    if os.path.lexists(target):
        target.unlink()
    with contextlib.suppress(shutil.SpecialFileError):
        shutil.copy2(source, target, follow_symlinks=False)


def _links(paths: Sequence[str], here: Path, origin: Path) -> list[Path]:
    found = []
    for path in paths:
        absolute = Path(os.path.normpath(here / path))
        if not os.path.lexists(absolute):
            raise UsageError(f"--link {path}: no such file or folder.\nCheck its spelling.")
        if absolute == origin or not absolute.is_relative_to(origin):
            raise UsageError(
                f"--link {path}: lies not within {origin}.\n"
                "Only what the trees lack needs a link; absolute paths work as they are."
            )
        found.append(absolute)
    return found


def _within(path: Path, links: Sequence[Path]) -> bool:
    return any(path.is_relative_to(link) for link in links)


def _furnished(tree: Tree) -> Tree:
    """Put the links into a tree; what it has of its own at such a place stays."""
    for link in tree.links:
        _link(link, tree.root / link.relative_to(tree.origin))
    if not tree.folder.is_dir():
        raise UsageError(
            f"{tree.holds}: has no folder {tree.folder.relative_to(tree.root)}.\n"
            "Run whyidle in a folder that both sides have."
        )
    return tree


def _link(source: Path, target: Path) -> None:
    if not os.path.lexists(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(source)
    elif source.is_dir() and target.is_dir() and not target.is_symlink():
        for child in source.iterdir():
            if child.name != ".git":
                _link(child, target / child.name)


def check_command(command: Sequence[str], tree: Tree) -> None:
    """Raise UsageError for a command that cannot run in a tree, or would run the user's files."""
    for word in command:
        path = Path(word)
        if path.is_file() and _astray(path, tree):
            inside = os.path.relpath(path, tree.origin / tree.folder.relative_to(tree.root))
            raise UsageError(
                f"{word}: would run the same file on both sides.\nWrite it as {inside}, which each "
                "tree has, or share it on purpose with --link."
            )
    if os.sep in command[0] and not Path(command[0]).is_absolute():
        if not os.access(tree.folder / command[0], os.X_OK):
            first = Path(command[0]).parts[0]
            raise UsageError(
                f"{command[0]}: not in {tree.holds}, or not executable.\n"
                f"What git does not track can be linked: --link {first}"
            )
    elif shutil.which(command[0]) is None:
        raise UsageError(
            f"{command[0]}: no such command, or not executable.\n"
            "Check its spelling; a script needs its interpreter before it: python train.py"
        )


def notes_on(trees: Sequence[Tree], say: Callable[[str], None]) -> None:
    """Say which tree is which, and what both of them lack."""
    for side, tree in zip(("before", "after"), trees, strict=True):
        say(f"{side}: {tree.holds}")
    lacking = {
        path
        for tree in trees
        for path in git.submodules(tree.root)
        if not any((tree.root / path).glob("*"))
    }
    if lacking:
        say(
            f"submodules are empty in the trees: {', '.join(sorted(lacking)[:5])} (--link shares "
            "the working tree's)"
        )


def stray_of(bundle: Path, tree: Tree) -> str | None:
    """A file of the user's own tree that a run stepped in, although it ran in ``tree``; or None.

    So it is with a package that is installed with ``pip install -e``: its files are the user's,
    whichever tree the command runs in.
    """
    for path in sorted((bundle / "processes").glob("*.jsonl")):
        for event in events_of(path):
            told = event.get("file")
            if event.get("event") not in ("optimizer", "loader", "site"):
                continue
            if isinstance(told, str) and _astray(Path(told), tree):
                return told
    return None


def _astray(file: Path, tree: Tree) -> bool:
    """Whether a path leads into the user's own tree, and not to what is installed there."""
    inside = file.is_absolute() and file.is_relative_to(tree.origin)
    if not inside or file.is_relative_to(tree.root) or tree.shared(file):
        return False
    return not any((parent / "pyvenv.cfg").is_file() for parent in file.parents)


def missing_there(tree: Tree) -> list[str]:
    """Paths of the user's tree, relative to it, that git ignores and this tree lacks; a few."""
    if git.top_of(tree.origin) is None:
        return []
    found = [path.rstrip("/") for path in git.ignored(tree.origin)]
    told = [p for p in found if Path(p).name not in _LEFT_OUT and not (tree.root / p).exists()]
    return told[:5]
