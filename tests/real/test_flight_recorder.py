"""Real dumps of 16 ranks with injected faults: the log beside them is the truth."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from tests.evidence_dir import WHY_ABSENT, evidence_dir
from whyidle.diagnose import diagnose
from whyidle.diagnosis import Observation
from whyidle.readers import read

SETS = ("lock_gil_1st", "gpu_error_2nd", "lock_gil_2nd")
each_set = pytest.mark.parametrize("name", SETS)


def folder(name: str) -> Path:
    root = evidence_dir()
    found = root / "monitoring" / "nccl-flight-recorder" / name if root else Path("absent")
    if not found.is_dir():
        pytest.skip(WHY_ABSENT)
    return found


def truth(name: str) -> set[int]:
    log = (folder(name) / "fault_injection.log").read_text()
    found = re.search(r"Fault ranks: \[([\d, ]+)\]", log)
    assert found is not None
    return {int(word) for word in found.group(1).split(",")}


def told(name: str, gone: set[int]) -> list[Observation]:
    paths = [folder(name) / f"_dump_{rank}" for rank in range(16) if rank not in gone]
    found = diagnose(read(paths))
    assert found.crashed == []
    return [o for o in found.observations if o.cause.startswith("communication.")]


def ranks(observations: list[Observation], level: str) -> set[int | None]:
    return {p.rank for o in observations if o.level == level for p in o.where}


@each_set
def test_the_faulty_ranks_are_named_exactly(name: str) -> None:
    found = told(name, set())
    assert {o.cause for o in found} == {"communication.rank_absent"}
    assert ranks(found, "deduced") == truth(name)
    assert ranks(found, "suspected") == set()


@each_set
def test_the_collective_is_the_one_that_the_reference_names(name: str) -> None:
    reference = (folder(name).parent / f"{name}_reference.txt").read_text().splitlines()[1:]
    found = told(name, set())
    for line in reference:
        group, description, operation = (part.strip() for part in line.split("|")[:3])
        assert any(
            f"group {group} ({description.split(',')[0]})" in o.what and operation in o.what
            for o in found
        )


@each_set
@pytest.mark.parametrize("seed", range(8))
def test_no_innocent_rank_is_deduced_when_dumps_are_missing(name: str, seed: int) -> None:
    draw = random.Random(seed)
    gone = set(draw.sample(range(16), draw.choice([1, 2, 3, 4])))
    found = told(name, gone)
    assert ranks(found, "deduced") == truth(name) - gone
    for rank in truth(name) & gone:  # suspected, or told of as one that left no dump
        text = " ".join(o.what for o in found)
        assert rank in ranks(found, "suspected") or re.search("left no dump|No dump", text)


@each_set
def test_faulty_ranks_that_left_no_dump_are_suspected_alone(name: str) -> None:
    found = told(name, truth(name))
    assert ranks(found, "deduced") == set()
    assert ranks(found, "suspected") == truth(name)
