"""On real Nsight Systems exports the product's figures are those of a plain sweep over the rows."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from contextlib import closing
from pathlib import Path

import pytest

import whyidle
from tests.evidence_dir import WHY_ABSENT, traces

BUSY = {
    "compute": ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"),
    "copy": ("CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET"),
}
DEVICES = {
    "nsysai__h100_2gpu_1s.sqlite": 2,
    "nsysai__healthy_1pct.sqlite": 1,
    "nsysai__mock.sqlite": 1,
}


def path_of(name: str) -> Path:
    """The export of this name; skips the calling test where it is absent."""
    folder = traces()
    if folder is None or not (folder / name).is_file():
        pytest.skip(WHY_ABSENT)
    return folder / name


def swept(path: Path) -> dict[int, dict[str, int]]:
    """Per device, nanoseconds of compute, of copies alone, and of it all, by a sweep of edges."""
    edges: dict[int, list[tuple[int, str, int]]] = defaultdict(list)
    with closing(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)) as database:
        there = {n for (n,) in database.execute("SELECT name FROM sqlite_master")}
        for state, tables in BUSY.items():
            for table in (t for t in tables if t in there):
                for start, end, device in database.execute(
                    f'SELECT start, "end", deviceId FROM {table}'
                ):
                    edges[device] += [(start, state, 1), (end, state, -1)]
    found = {}
    for device, mine in edges.items():
        mine.sort()
        depth, spent, before = {"compute": 0, "copy": 0}, {"compute": 0, "copy": 0}, mine[0][0]
        for at, state, change in mine:
            held = "compute" if depth["compute"] else "copy" if depth["copy"] else None
            if held is not None:
                spent[held] += at - before
            depth[state] += change
            before = at
        found[device] = {**spent, "wall": mine[-1][0] - mine[0][0]}
    return found


@pytest.mark.parametrize("name", sorted(DEVICES))
def test_every_device_has_the_seconds_of_the_rows(name: str) -> None:
    path = path_of(name)
    truth = swept(path)
    diagnosis = whyidle.diagnose(whyidle.read(path))
    assert len(diagnosis.devices) == len(truth) == DEVICES[name]
    assert diagnosis.crashed == []
    for device in diagnosis.devices:
        mine = truth[int(device.device)]
        assert round(device.wall_s * 1e9) == mine["wall"]
        assert round(device.compute_s * 1e9) == mine["compute"]
        assert round(device.copy_s * 1e9) == mine["copy"]
        assert device.communication_s == 0
        assert round(device.empty_s * 1e9) == mine["wall"] - mine["compute"] - mine["copy"]
        outcome = device.useful_s + device.lost_s + device.unexplained_s
        assert outcome == pytest.approx(device.wall_s, rel=1e-9)


def test_a_second_filled_by_copies_is_not_called_idle() -> None:
    diagnosis = whyidle.diagnose(whyidle.read(path_of("nsysai__h100_2gpu_1s.sqlite")))
    for device in diagnosis.devices:
        assert device.empty_s / device.wall_s == pytest.approx(0.007, abs=0.0005)
        assert device.compute_s / device.wall_s == pytest.approx(0.023, abs=0.001)
    first = diagnosis.findings[0]
    assert first.cause == "data_loading.h2d_copy_blocking"
    assert first.share > 0.9


def test_operators_of_emit_nvtx_lose_the_numbers_in_their_names() -> None:
    spans = whyidle.read(path_of("nsysai__h100_2gpu_1s.sqlite")).table("spans")
    names = spans.filter(spans["kind"] == "op")["name"].cast(str).unique().to_list()
    assert "aten::linear" in names
    assert not any("op_id" in name for name in names)
    assert len(names) < 200
