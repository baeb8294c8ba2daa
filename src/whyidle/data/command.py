"""``whyidle data VERB``: which verbs there are; each has a module of its own."""

from __future__ import annotations

import argparse
from importlib import import_module
from importlib.util import find_spec
from typing import Any

DESCRIPTION = (
    "Find what a data loader waits for, set it right, store the data set in a format that can be "
    "read fast, and show that every sample is still what it was."
)

VERBS = {
    "probe": ("whyidle.data.probe_command", "what each stage of loading costs, and the limit"),
    "tune": ("whyidle.data.tune_command", "the best settings of a loader, in few trials"),
    "pack": ("whyidle.data.pack_command", "store a data set in one format, checked and resumable"),
    "verify": ("whyidle.data.verify_command", "whether every sample of a packed set is sound"),
    "bench": ("whyidle.data.bench_command", "loaders and formats side by side, as ratios"),
}
"""Verb -> the module with ``add_VERB(parser)``, and what the verb does in a line."""


def add(parser: argparse.ArgumentParser) -> None:
    """Add the verbs to the parser of ``data``."""
    parser.description = DESCRIPTION
    parser.set_defaults(act=None)
    verbs = parser.add_subparsers(
        title="verbs", metavar="VERB", required=True, parser_class=_lazy(type(parser))
    )
    for name, (module, help) in VERBS.items():
        if find_spec(module) is not None:
            verbs.add_parser(name, help=help, allow_abbrev=False).set_defaults(verb_module=module)


def _lazy(kind: type[argparse.ArgumentParser]) -> type[argparse.ArgumentParser]:
    """Parsers that import their verb and get its arguments when they are first used."""

    class Lazy(kind):  # type: ignore[valid-type, misc]
        def _fill(self) -> None:
            module = self._defaults.pop("verb_module", None)
            if module is None:
                return
            verb = import_module(module)
            for given in (("-q", "--quiet"), ("--debug",)):
                told = {"default": argparse.SUPPRESS, "help": argparse.SUPPRESS}
                self.add_argument(*given, action="store_true", **told)
            getattr(verb, "add_" + module.rpartition(".")[2].removesuffix("_command"))(self)

        def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
            self._fill()
            return super().parse_known_args(args, namespace)

        def format_help(self) -> str:
            self._fill()
            return str(super().format_help())

    return Lazy
