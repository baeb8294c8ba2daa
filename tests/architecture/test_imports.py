"""Who may import whom, and how little an import or a --help costs."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAVY = ("polars", "numpy", "torch", "rich", "pandas")


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, cwd=ROOT, timeout=120
    )


def test_the_import_contracts_of_the_design_hold() -> None:
    done = python("-c", "from importlinter.cli import lint_imports_command as c; c(['--no-cache'])")
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_import_contract_was_really_checked() -> None:
    done = python("-c", "from importlinter.cli import lint_imports_command as c; c(['--no-cache'])")
    kept = [line for line in done.stdout.splitlines() if re.search(r" KEPT( \(|$)", line)]
    contracts = (ROOT / "pyproject.toml").read_text().count("[[tool.importlinter.contracts]]")
    assert len(kept) == contracts


@pytest.mark.parametrize(
    "statement",
    [
        "import whyidle",
        "import whyidle, whyidle.cli; whyidle.cli.build_parser()",
        "from whyidle import Diagnosis",
        "import whyidle.render.json, whyidle.render.markdown, whyidle.render.html",
    ],
)
def test_nothing_heavy_is_imported_before_it_is_used(statement: str) -> None:
    code = f"{statement}\nimport sys\nprint([m for m in {HEAVY!r} if m in sys.modules])"
    done = python("-c", code)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


def best_seconds(statement: str, tries: int = 5) -> float:
    """CPU seconds of the statement alone, in the best of a few fresh interpreters."""
    code = (
        f"import time; t = time.process_time(); exec({statement!r}); print(time.process_time() - t)"
    )
    return min(float(python("-c", code).stdout) for _ in range(tries))


def test_importing_the_package_takes_less_than_50_ms() -> None:
    assert best_seconds("import whyidle") < 0.050


def test_help_takes_less_than_100_ms() -> None:
    def once() -> float:
        start = time.perf_counter()
        assert python("-m", "whyidle", "--help").returncode == 0
        return time.perf_counter() - start

    def bare() -> float:
        start = time.perf_counter()
        python("-c", "pass")
        return time.perf_counter() - start

    # The interpreter's own start is the machine's affair, and CI shares its cores.
    assert min(once() for _ in range(5)) - min(bare() for _ in range(5)) < 0.100


def test_the_name_diagnose_stays_the_function_after_its_module_was_imported() -> None:
    code = (
        "import whyidle, whyidle.diagnose\n"
        "from whyidle.diagnose import diagnose\n"
        "print(callable(whyidle.diagnose), callable(diagnose))"
    )
    done = python("-c", code)
    assert done.stdout.split() == ["True", "True"], done.stderr
