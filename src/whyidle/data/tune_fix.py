"""The diff that sets a DataLoader's arguments in a script as tuning advises."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import libcst as cst

from whyidle.data.tune_record import Arguments
from whyidle.errors import NotFound, UnreadableEvidence
from whyidle.fix import loaders
from whyidle.fix.arguments import argument, is_constant, open_ended, with_value, without
from whyidle.fix.base import base_of, below
from whyidle.fix.diff import unified
from whyidle.fix.edits import Edit, Left, at, left, replacing
from whyidle.fix.one_file import fixed
from whyidle.fix.source import Source

WORKERS_ONLY = ("prefetch_factor", "persistent_workers", "timeout")


class TunedLoader:
    """Sets the arguments of the loader that was measured."""

    NAME = "tuned_loader"
    CAUSES = ("data_loading.loader_workers_too_few",)
    SAFE = True
    WHY = "The settings that were measured to be the fastest that this machine can bear."

    def __init__(self, wanted: Arguments, function: str | None) -> None:
        """``function``: the one in the script that makes the loader, where it is known."""
        self._wanted, self._function = wanted, function

    def find(self, source: Source) -> Iterator[Edit | Left]:
        """The one loader that was measured; all others are left alone."""
        for call in source.unclear_calls(*loaders.LOADER):
            yield left(source, call, "this DataLoader may be another than that of torch")
        calls = source.calls_of(*loaders.LOADER)
        inside = [one for one in calls if self._made_in(source, one)]
        meant = inside or calls
        for call in calls:
            reason = self._reason(source, call)
            if call not in meant:
                yield left(source, call, "it is not the loader that was measured")
            elif len(meant) > 1:
                yield left(source, call, f"there are {len(meant)}, and it is not known which")
            elif reason is not None:
                yield left(source, call, reason)
            else:
                yield self._edit(source, call)

    def _made_in(self, source: Source, call: cst.Call) -> bool:
        function = source.function(call)
        return isinstance(function, cst.FunctionDef) and function.name.value == self._function

    def _reason(self, source: Source, call: cst.Call) -> str | None:
        if open_ended(call):
            return "its arguments are decided elsewhere (* or **)"
        if self._wanted.loader == "Loader":
            return "threads need another class: from whyidle.data import Loader, then Loader(...)"
        now = loaders.workers_of(call)
        if now is None:
            return "num_workers is decided elsewhere"
        if now == self._wanted.num_workers:
            return None
        special = loaders.sensitive(call, started=now > 0 and self._wanted.num_workers > 0)
        if special is not None and special != "prefetch_factor":
            return f"{special} is set, whose meaning depends on workers"
        return loaders.against_workers(source, call) if self._wanted.num_workers else None

    def _edit(self, source: Source, call: cst.Call) -> Edit:
        given = self._wanted.given()
        if loaders.keeps_workers(source, call) is not None:
            given.pop("persistent_workers", None)
        if loaders.workers_of(call) is None or self._wanted.num_workers == 0:
            given = {name: code for name, code in given.items() if name not in WORKERS_ONLY}
        if given.get("prefetch_factor") == "2" and argument(call, "prefetch_factor") is None:
            del given["prefetch_factor"]  # torch's own
        places = {"num_workers": loaders.WORKERS, "pin_memory": loaders.PIN}
        changed = {
            name: code for name, code in given.items()
            if not is_constant(argument(call, name, places.get(name)), code)
            and not (name == "num_workers" and code == "0" and argument(call, name, 5) is None)
        }  # fmt: skip

        def made(now: cst.Call) -> cst.Call:
            for name, code in changed.items():
                now = with_value(now, argument(now, name, places.get(name)), name, code)
            return without(now, *WORKERS_ONLY) if self._wanted.num_workers == 0 else now

        told = ", ".join(f"{name}={code}" for name, code in changed.items()) or "as it is"
        edit = at(source, call, told)
        edit.nodes[call] = replacing(made)
        return edit


def diff(path: str, wanted: Arguments, spec: str) -> tuple[bytes, list[str]]:
    """The diff of a script (empty where nothing changes), and what was left alone, by line."""
    file = Path(path)
    if not file.is_file():
        raise NotFound(path)
    try:
        before = file.read_bytes()
    except OSError as error:
        raise UnreadableEvidence(path, f"{error.strerror}", "Check the path.") from error
    where, _, attribute = spec.rpartition(":")
    same = where.removesuffix(".py").rpartition("/")[2].rpartition(".")[2] == file.stem
    done = fixed(path, before, [TunedLoader(wanted, attribute if same else None)])
    alone = [f"{path}:{one.line}: left alone: {one.what}" for one in done.left]
    if not done.done and not done.left:
        alone = [f"{path}: there is no DataLoader in it"]
    return unified(below(base_of([path]), path), done.before, done.after), alone
