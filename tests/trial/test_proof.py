"""The digest of a proof: what it covers, and how anyone can check it."""

from __future__ import annotations

import hashlib
import json
import math
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from whyidle.trial.child import Ended
from whyidle.trial.judged import proof_of
from whyidle.trial.measured import Measured, Pace
from whyidle.trial.pairs import Plan, Run, Side
from whyidle.trial.proof import verify


def run(side: Side, step_s: float) -> Run:
    measured = Measured(Pace(step_s, step_s, 20, 17), {0: 2.0, 1: math.nan})
    return Run(side, Ended(0, 20 * step_s), measured, Path("output.txt"))


def saved() -> str:
    plan = Plan(["python", "träin.py", "\udcff"], ["python", "b.py"], pairs=2)
    runs = [run("before", 0.3), run("after", 0.1), run("after", 0.1), run("before", 0.2)]
    at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    return proof_of(plan, runs, at, at_least=1.05, tolerance=0.02).to_json()


def changed(**new: object) -> str:
    return json.dumps({**json.loads(saved()), **new})


def test_anyone_can_check_the_digest_with_the_standard_library() -> None:
    document = json.loads(saved())
    digest = document.pop("digest")
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert hashlib.sha256(text.encode()).hexdigest() == digest


def test_a_proof_is_whole_however_it_is_laid_out() -> None:
    document: dict[str, Any] = json.loads(saved())
    assert verify(document)
    assert verify(saved())
    assert verify(saved().encode())
    assert verify(json.dumps(dict(reversed(document.items())), indent=7))


@pytest.mark.parametrize(
    "broken",
    [
        changed(proven=True, started="2020-01-01T00:00:00Z"),
        changed(digest="0" * 64),
        changed(digest=None),
        changed(extra=1),
        saved().replace("0.3", "0.4"),
        saved()[:-20],
        "[]",
        "null",
        "{}",
        "[" * 100_000,
        b"\xff\xfe",
    ],
)
def test_what_was_changed_or_is_no_proof_is_refused(broken: str | bytes) -> None:
    assert not verify(broken)


def test_a_foreign_record_with_a_digest_of_its_own_is_no_proof() -> None:
    rest = {"schema": "other/1"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"))
    assert not verify({**rest, "digest": hashlib.sha256(text.encode()).hexdigest()})


def test_the_record_holds_what_was_measured_and_no_invented_number() -> None:
    document = json.loads(saved())
    assert document["started"] == "2026-01-02T03:04:05Z"
    assert document["before"]["median"] == pytest.approx(0.25)
    assert (document["before"]["low"], document["before"]["high"]) == (0.2, 0.3)
    assert document["before"]["runs"][0]["loss_last"] is None
    assert document["ratio"]["mid"] == pytest.approx(math.sqrt(3 * 2))
    assert document["loss"]["verdict"] == "within tolerance"
    assert "over 1 step" in document["loss"]["why"]
    assert document["machine"]["cpus"] >= 1


def test_the_options_can_be_built_without_anything_heavy() -> None:
    code = (
        "import argparse, sys\nfrom whyidle.trial import command\n"
        "command.add(argparse.ArgumentParser())\n"
        "print([m for m in ('numpy', 'polars', 'msgspec', 'rich') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr
