"""The made-up diagnoses are themselves held to the law of the ledger."""

from __future__ import annotations

import pytest

from tests.render.cases import CASES


@pytest.mark.parametrize("name", CASES)
def test_the_seconds_of_every_device_add_up_to_its_wall_time(name: str) -> None:
    found = CASES[name]()
    for device in found.devices:
        states = device.compute_s + device.communication_s + device.copy_s + device.empty_s
        parts = device.useful_s + device.lost_s + device.unexplained_s
        assert states == pytest.approx(device.wall_s, rel=1e-6)
        assert parts == pytest.approx(device.wall_s, rel=1e-6)
        assert (device.end_ns - device.start_ns) / 1e9 == pytest.approx(device.wall_s, rel=1e-6)
        mine = [r for r in found.ledger if (r.rank, r.device) == (device.rank, device.device)]
        assert sum(row.lost_s for row in mine) == pytest.approx(device.lost_s, abs=1e-9)
