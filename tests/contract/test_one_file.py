"""Adding a cause touches one file: shown with a package that this project knows nothing about."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli import tiny_trace
from tests.cli.running import environment, whyidle

ROOT = Path(__file__).parents[2]
NEW = "data_loading.cold_cache"


def strangers_package(folder: Path) -> Path:
    """An installed package with the entry point and an empty folder of causes."""
    causes = folder / "stranger" / "causes"
    causes.mkdir(parents=True)
    (folder / "stranger" / "__init__.py").write_text("")
    about = folder / "stranger-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: stranger\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[whyidle.causes]\nstranger = stranger.causes\n")
    return causes


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*.py")}


@pytest.fixture
def package(tmp_path: Path) -> Path:
    causes = strangers_package(tmp_path)
    done = whyidle("new-cause", NEW, "--into", causes)
    assert done.returncode == 0, done.stderr
    return tmp_path


def test_a_new_cause_is_one_file_and_passes_every_contract_test(package: Path) -> None:
    written = files(package) - {"stranger/__init__.py"}
    assert {path for path in written if not path.endswith("__init__.py")} == {
        "stranger/causes/data_loading/cold_cache.py"
    }
    words = ["-q", "-p", "no:cacheprovider", "tests/contract/test_causes.py", "-k", "cold_cache"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words],
        cwd=ROOT,
        env=environment(package),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout
    passed = int(done.stdout.rsplit(" passed", 1)[0].split()[-1])
    assert passed >= 10
    assert "failed" not in done.stdout.splitlines()[-1]


def test_every_face_of_the_product_knows_the_new_cause(package: Path) -> None:
    assert NEW in whyidle("explain", path=package).stdout
    assert "Cold cache" in whyidle("explain", NEW, path=package).stdout
    demo = whyidle("explain", NEW, "--demo", "--format", "json", path=package)
    lost_s = [row["lost_s"] for row in json.loads(demo.stdout)["ledger"] if row["cause"] == NEW]
    assert sum(lost_s) == pytest.approx(6e-3)
    trace = tiny_trace.write(package / "a.json")
    gate = whyidle("diagnose", trace, "--fail-on", f"{NEW}>5%", "--format", "json", path=package)
    assert gate.returncode == 0, gate.stderr


def test_a_cause_that_raises_costs_its_own_line_and_not_the_report(package: Path) -> None:
    file = package / "stranger/causes/data_loading/cold_cache.py"
    text = file.read_text().replace("    return frame(CLAIMS, rows)", "    return 1 / 0")
    file.write_text(text)
    trace = tiny_trace.write(package / "a.json")
    done = whyidle("diagnose", trace, "--format", "json", path=package)
    assert done.returncode == 0
    found = json.loads(done.stdout)
    (crashed,) = (c for c in found["crashed"] if c["cause"] == NEW)
    assert "ZeroDivisionError" in crashed["error"]
    assert (
        found["ledger"]
        == json.loads(whyidle("diagnose", trace, "--format", "json").stdout)["ledger"]
    )


def test_a_cause_that_cannot_be_imported_costs_its_own_line_and_not_the_report(
    package: Path,
) -> None:
    (package / "stranger/causes/data_loading/cold_cache.py").write_text("import no_such_module\n")
    trace = tiny_trace.write(package / "a.json")
    done = whyidle("diagnose", trace, "--format", "json", path=package)
    assert done.returncode == 0, done.stderr
    (crashed,) = (c for c in json.loads(done.stdout)["crashed"] if c["cause"] == NEW)
    assert "no_such_module" in crashed["error"]


def test_new_cause_never_overwrites(package: Path) -> None:
    file = package / "stranger/causes/data_loading/cold_cache.py"
    file.write_text("# mine\n")
    done = whyidle("new-cause", NEW, "--into", package / "stranger/causes")
    assert done.returncode == 2
    assert "exists already" in done.stderr
    assert file.read_text() == "# mine\n"


@pytest.mark.parametrize("wrong", ["cold_cache", "kitchen.sink", "data_loading.Cold", "a.b.c"])
def test_a_name_that_is_no_cause_id_is_refused_with_the_folders(wrong: str, tmp_path: Path) -> None:
    done = whyidle("new-cause", wrong, "--into", tmp_path)
    assert done.returncode == 2
    assert "data_loading" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_outside_a_checkout_new_cause_asks_where(tmp_path: Path) -> None:
    done = whyidle("new-cause", NEW, cwd=tmp_path)
    assert done.returncode == 2
    assert "--into" in done.stderr


def test_in_a_checkout_new_cause_writes_beside_our_own(tmp_path: Path) -> None:
    (tmp_path / "src/whyidle/causes").mkdir(parents=True)
    done = whyidle("new-cause", NEW, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "src/whyidle/causes/data_loading/cold_cache.py").is_file()
    assert "tests/contract" in done.stdout
