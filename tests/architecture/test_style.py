"""A file fits in a head: the parts of the style guide that a machine can check."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("src", "tests", "examples", "benchmarks", "docs")
FILES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
PRODUCT = [path for path in FILES if path.is_relative_to(ROOT / "src")]

LONGEST_FILE = 500
LONGEST_FUNCTION = 60
FORBIDDEN = re.compile(r"utils?|commons?|misc|managers?|helpers?|stuff")

Function = ast.FunctionDef | ast.AsyncFunctionDef


def named(paths: list[Path]) -> list[object]:
    return [pytest.param(path, id=str(path.relative_to(ROOT))) for path in paths]


def functions(path: Path) -> Iterator[Function]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, Function):
            yield node


def test_there_is_source_to_check() -> None:
    assert len(PRODUCT) > 10


@pytest.mark.parametrize("path", named(FILES))
def test_a_file_stays_under_500_lines(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= LONGEST_FILE


@pytest.mark.parametrize("path", named(FILES))
def test_a_function_stays_under_60_lines(path: Path) -> None:
    long = {
        f.name: lines
        for f in functions(path)
        if (lines := (f.end_lineno or f.lineno) - f.lineno + 1) > LONGEST_FUNCTION
    }
    assert long == {}


@pytest.mark.parametrize("path", named(FILES))
def test_no_file_or_folder_has_a_name_that_says_nothing(path: Path) -> None:
    parts = path.relative_to(ROOT).with_suffix("").parts
    words = {word for part in parts for word in part.split("_")}
    assert not {word for word in words if FORBIDDEN.fullmatch(word)}


@pytest.mark.parametrize("path", named(PRODUCT))
def test_everything_public_has_a_docstring_that_is_a_sentence(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    bare = [name for name, text in documented(tree, path.stem) if not is_sentence(text)]
    assert bare == []


def documented(tree: ast.Module, module: str) -> Iterator[tuple[str, str | None]]:
    """(name, docstring) of the module and of every public class, function and method in it."""
    yield module, ast.get_docstring(tree)
    for node in tree.body:
        yield from documented_below(node, public=True)


def documented_below(node: ast.stmt, *, public: bool) -> Iterator[tuple[str, str | None]]:
    if not isinstance(node, Function | ast.ClassDef) or node.name.startswith("_"):
        return
    yield node.name, ast.get_docstring(node)
    if isinstance(node, ast.ClassDef):
        for inner in node.body:
            yield from documented_below(inner, public=public)


def is_sentence(text: str | None) -> bool:
    return bool(text) and text.split("\n\n")[0].rstrip()[-1] in ".:?!"


def test_test_names_are_sentences() -> None:
    short = [
        f"{path.name}:{f.lineno} {f.name}"
        for path in FILES
        if path.is_relative_to(ROOT / "tests")
        for f in functions(path)
        if f.name.startswith("test_") and f.name.count("_") < 3
    ]
    assert short == []


def test_the_lower_bounds_of_what_we_install_are_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    unbound = [need for need in project["dependencies"] if ">=" not in need]
    assert unbound == []
    assert {re.split(r"[^\w-]", need)[0] for need in project["dependencies"]} == {
        "polars", "msgspec", "numpy", "rich",
    }  # fmt: skip


def test_nothing_that_is_tracked_names_the_machine_it_was_written_on() -> None:
    home = re.compile(r"(?<![\w.])/(?:work|root|home/\w+)/")
    texts = [p for p in ROOT.rglob("*") if p.suffix in {".py", ".md", ".toml", ".json"}]
    ours = [p for p in texts if not any(part.startswith(".") for part in p.relative_to(ROOT).parts)]
    told = [
        str(path.relative_to(ROOT))
        for path in ours
        if path != Path(__file__) and home.search(path.read_text(encoding="utf-8"))
    ]
    assert told == []
