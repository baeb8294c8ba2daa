"""The README's commands and code are true."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli import tiny_trace
from tests.cli.running import whyidle
from whyidle.causes import all_causes
from whyidle.cli import build_parser

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def commands(text: str) -> list[list[str]]:
    """Every ``whyidle ...`` command line in shell and text blocks, as words."""
    found = []
    for block in [*blocks(text, "sh"), *blocks(text, "text")]:
        for line in block.replace("\\\n", " ").splitlines():
            match = re.match(r"\s*(?:\S*/)?whyidle\s+([a-z].*)", line)
            if match and not re.search(r"[A-Z\[]{3,}|│|─", line):
                found.append(shlex.split(match[1], comments=True))
    return found


@pytest.mark.parametrize("page", [pytest.param(p, id=p.name) for p in PAGES])
def test_every_command_shown_is_one_that_the_parser_takes(page: Path) -> None:
    for words in commands(page.read_text(encoding="utf-8")):
        assert callable(build_parser().parse_args(words).act)


def test_the_first_command_runs_the_main_job_on_evidence_in_the_repository() -> None:
    (first, second, *_) = blocks(README, "sh")
    assert "pip install -q ." in first
    words = shlex.split(first[first.index("diagnose") :])
    assert (ROOT / words[1]).is_file()
    done = whyidle(*words, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")
    shown = "\n".join(line.rstrip() for line in done.stdout.strip("\n").splitlines())
    assert shown in README
    assert "pytest" in second


def test_ci_runs_the_readmes_second_command() -> None:
    script = (ROOT / ".ci/run").read_text(encoding="utf-8")
    second = blocks(README, "sh")[1]
    for part in ("-m venv .venv", "-e '.[test]'", "-m pytest -n 2"):
        assert part in second
        assert part in script


@pytest.mark.parametrize("page", [pytest.param(p, id=p.name) for p in PAGES])
def test_python_blocks_are_python(page: Path) -> None:
    for block in blocks(page.read_text(encoding="utf-8"), "python"):
        assert ast.parse(block).body != []


@pytest.mark.parametrize("page", [ROOT / "README.md", ROOT / "docs/reading.md"])
def test_the_blocks_that_use_whyidle_run(page: Path, tmp_path: Path) -> None:
    (tmp_path / "traces").mkdir()
    tiny_trace.write(tmp_path / "traces" / "a.json")
    found = [b for b in blocks(page.read_text(encoding="utf-8"), "python") if "import whyidle" in b]
    assert found != []
    for block in found:
        code = f"import sys; sys.path.insert(0, {str(ROOT / 'src')!r})\n{block}"
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip() != ""
        assert (tmp_path / "diagnosis.json").is_file()


def test_the_ways_to_record_are_the_same_wherever_they_are_shown() -> None:
    recording = (ROOT / "docs/recording.md").read_text(encoding="utf-8")
    (ours,) = (b for b in blocks(README, "python") if "profile(" in b)
    assert ours in blocks(recording, "python")


def test_the_causes_that_pages_name_exist() -> None:
    folders = {cause.partition(".")[0] for cause in all_causes()}
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        id_of = r"(?<![\w.,=]){}\.[a-z_0-9]+\b"
        named = {name for f in folders for name in re.findall(id_of.format(f), text)}
        assert named - set(all_causes()) <= {"data_loading.cold_cache"}, page.name
