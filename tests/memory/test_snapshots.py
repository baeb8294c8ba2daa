"""Snapshots of a simulated allocator, whose own counts are the truth."""

from __future__ import annotations

import gzip
import pickle
import random
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tests.memory.simulator import MIB, T0_US, Device, stack, train
from whyidle.diagnose import diagnose
from whyidle.diagnosis import Observation
from whyidle.errors import NothingRecorded, UnknownEvidence, UnreadableEvidence
from whyidle.model import Evidence
from whyidle.readers import cuda_memory, read
from whyidle.readers.source_bytes import head_of
from whyidle.views.allocator import DeviceMemory, device_memories


def saved(tmp_path: Path, snapshot: Any, protocol: int = 4, name: str = "snapshot.pickle") -> Path:
    path = tmp_path / name
    path.write_bytes(pickle.dumps(snapshot, protocol))
    return path


def memory(evidence: Evidence) -> DeviceMemory:
    (found,) = device_memories(evidence)
    return found


def told(evidence: Evidence, cause: str) -> list[Observation]:
    found = diagnose(evidence)
    assert [crash for crash in found.crashed if crash.cause.startswith("memory")] == []
    return [o for o in found.observations if o.cause == f"memory.{cause}"]


def by_line(held: pl.DataFrame) -> dict[int, int]:
    found: dict[int, int] = {}
    for text, count in held.select("stack", "bytes").iter_rows():
        line = int(text.partition("train.py(")[2].partition(")")[0])
        found[line] = found.get(line, 0) + count
    return found


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_every_protocol_gives_the_same_tables(protocol: int, tmp_path: Path) -> None:
    device = Device()
    train(device, 3)
    one = read([saved(tmp_path, device.snapshot(), 4, "a.pickle")])
    two = read([saved(tmp_path, device.snapshot(), protocol, "b.pickle")])
    for name in ("allocations", "memory_blocks", "settings"):
        assert one.table(name).equals(two.table(name))
    assert one.table("allocations").height == len(device.trace)
    first = one.table("allocations").row(0, named=True)
    assert (first["action"], first["t_ns"], first["device"]) == ("segment_alloc", T0_US * 1000, 0)
    assert first["stack"].splitlines()[0].endswith("functional.py(125): linear")


@pytest.mark.parametrize("seed", range(5))
def test_levels_and_holders_at_the_peak_are_the_allocators_own(seed: int, tmp_path: Path) -> None:
    device, draw = Device(segment=2 * MIB), random.Random(seed)
    held: list[int] = []
    for _ in range(400):
        if held and draw.random() < 0.45:
            device.free(held.pop(draw.randrange(len(held))))
        else:
            held.append(device.alloc(draw.randrange(1, 3 * MIB), draw.randrange(10, 20)))
    found = memory(read([saved(tmp_path, device.snapshot())]))
    peak = found.peak(found.allocated)
    assert peak is not None
    assert peak.bytes == device.peak[0]
    assert by_line(found.held_by(peak.at)) == device.peak[1]
    assert (found.allocated[-1], found.reserved[-1]) == (device.allocated, device.reserved)
    assert by_line(found.held_by(found.events.height - 1)) == device.by_line()
    assert found.segment_bytes == device.reserved


@pytest.mark.parametrize("most", [1, 17, 150])
def test_a_ring_whose_beginning_is_cut_keeps_the_levels(most: int, tmp_path: Path) -> None:
    device = Device()
    train(device, 30)
    whole = memory(read([saved(tmp_path, device.snapshot(), name="a.pickle")]))
    cut = memory(read([saved(tmp_path, device.snapshot(most), name="b.pickle")]))
    assert cut.allocated.tolist() == whole.allocated[-most:].tolist()
    assert cut.reserved.tolist() == whole.reserved[-most:].tolist()
    peak = cut.peak(cut.allocated)
    assert peak is not None
    assert cut.held_by(peak.at)["bytes"].sum() == peak.bytes


def test_the_peak_names_the_users_line_and_not_the_librarys(tmp_path: Path) -> None:
    device = Device()
    train(device, 4)
    (sign,) = told(read([saved(tmp_path, device.snapshot())]), "peak_by_line")
    assert sign.level == "seen"
    assert sign.where[0].file == "/proj/train.py"
    assert sign.where[0].line == max(device.peak[1], key=lambda line: device.peak[1][line])
    assert f"{device.peak[0] / MIB:.4g} MiB allocated" in sign.what


def test_a_loss_that_is_kept_every_step_is_found_on_its_line(tmp_path: Path) -> None:
    device = Device()
    train(device, 40, leak=MIB // 2)
    (sign,) = told(read([saved(tmp_path, device.snapshot())]), "graph_retained_leak")
    assert (sign.where[0].line, sign.level) == (30, "deduced")
    assert "keeps 20 MiB" in sign.what
    assert "40 of its 40 allocations" in sign.what


def test_no_leak_is_told_without_one_nor_within_one_step(tmp_path: Path) -> None:
    steady, forward = Device(), Device()
    train(steady, 40)
    for layer in range(60):  # one forward pass, cut short: activations of one line, all kept
        kept = forward.alloc(2 * MIB, 21)
        forward.free(forward.alloc(6 * MIB, 22))
        assert kept
        if layer % 10 == 9:
            forward.alloc(MIB, 23)
    for name, device in (("steady", steady), ("forward", forward)):
        evidence = read([saved(tmp_path, device.snapshot(), name=name)])
        assert told(evidence, "graph_retained_leak") == []


def test_a_request_that_pieces_cannot_meet_is_fragmentation(tmp_path: Path) -> None:
    device = Device(capacity=400 * MIB, segment=100 * MIB)
    held = [device.alloc(10 * MIB, 20) for _ in range(40)]
    for address in held[::2]:
        device.free(address)
    with pytest.raises(MemoryError):
        device.alloc(60 * MIB, 50)
    evidence = read([saved(tmp_path, device.snapshot())])
    (sign,) = told(evidence, "fragmentation")
    assert sign.level == "seen"
    assert "A request of 60 MiB failed" in sign.what
    assert "200 MiB were reserved and not allocated; the largest free block is 10 MiB" in sign.what
    assert (sign.where[0].file, sign.where[0].line) == ("/proj/train.py", 50)
    (shortage,) = memory(evidence).shortages
    assert shortage.device_free == 0


def test_memory_that_is_just_full_is_no_fragmentation(tmp_path: Path) -> None:
    device = Device(capacity=400 * MIB, segment=100 * MIB)
    for _ in range(39):
        device.alloc(10 * MIB, 20)
    with pytest.raises(MemoryError):
        device.alloc(60 * MIB, 50)
    assert told(read([saved(tmp_path, device.snapshot())]), "fragmentation") == []


def test_retries_are_counted_and_an_emptied_cache_is_not_one(tmp_path: Path) -> None:
    device = Device(capacity=100 * MIB, segment=20 * MIB)
    device.alloc(30 * MIB, 10)
    for size in (25, 45, 60, 35, 66):
        device.free(device.alloc(size * MIB, 20))
    assert device.retries >= 2
    evidence = read([saved(tmp_path, device.snapshot(), name="retries")])
    assert len(memory(evidence).retries) == device.retries
    (sign,) = told(evidence, "allocator_retries")
    assert sign.level == "deduced"
    assert told(evidence, "empty_cache_in_loop") == []

    emptied = Device()
    train(emptied, 6, empty=True)
    evidence = read([saved(tmp_path, emptied.snapshot(), name="emptied")])
    assert told(evidence, "allocator_retries") == []
    (sign,) = told(evidence, "empty_cache_in_loop")
    assert "times" in sign.what


def test_old_snapshots_without_times_addresses_or_history_are_read(tmp_path: Path) -> None:
    device = Device()
    train(device, 2)
    snapshot = device.snapshot()
    for segment in snapshot["segments"]:
        for block in segment["blocks"]:
            del block["address"]
            size, frames = block.pop("requested_size"), block.pop("frames")
            if block["state"] == "active_allocated":
                block["history"] = [{"addr": 1, "real_size": size, "frames": frames}]
    for entry in snapshot["device_traces"][0]:
        for key in ("time_us", "device", "compile_context", "user_metadata"):
            del entry[key]
    old = read([saved(tmp_path, snapshot, name="old")])
    bare = read([saved(tmp_path, snapshot["segments"], name="bare")])
    now = read([saved(tmp_path, device.snapshot(), name="now")])
    columns = ["address", "bytes", "requested_bytes", "state", "stack"]
    active = pl.col("state") == "active_allocated"
    for evidence in (old, bare):
        table = evidence.table("memory_blocks")
        assert (
            table.filter(active)
            .select(columns)
            .equals(now.table("memory_blocks").filter(active).select(columns))
        )
    assert old.table("allocations")["t_ns"].null_count() == len(device.trace)
    assert memory(old).allocated.tolist() == memory(now).allocated.tolist()
    assert bare.table("allocations").height == 0
    assert "at the snapshot" in told(bare, "peak_by_line")[0].what


def test_several_devices_expandable_segments_and_odd_events_have_their_place(
    tmp_path: Path,
) -> None:
    one, two = Device(), Device()
    train(one, 2)
    train(two, 3)
    for entry in two.trace:
        entry["action"] = entry["action"].replace("segment_alloc", "segment_map")
    two.trace.append({"action": "snapshot", "addr": 0, "size": 0, "stream": 0, "time_us": T0_US})
    two.trace.append({"action": 7, "size": "x"})
    snapshot = one.snapshot()
    snapshot["device_traces"] = [one.trace, [], two.trace]
    for segment in two.blocks():
        snapshot["segments"].append(segment | {"device": 2, "is_expandable": True})
    evidence = read([saved(tmp_path, snapshot, name="rank4.pickle")])
    first, second = device_memories(evidence)
    assert (first.rank, first.device, second.rank, second.device) == (4, 0, 4, 2)
    assert first.reserved[-1] == one.reserved
    assert second.reserved[-1] == two.reserved
    assert second.allocated.max() == two.peak[0]
    assert any("1 events without" in note for note in evidence.sources[0].notes)


def test_a_private_pool_is_told_apart(tmp_path: Path) -> None:
    device = Device()
    train(device, 1)
    snapshot = device.snapshot()
    snapshot["segments"][0]["segment_pool_id"] = (0, 1)
    evidence = read([saved(tmp_path, snapshot)])
    pools = evidence.table("memory_blocks")["pool"].unique().to_list()
    assert set(pools) == {None, "0,1"}


def test_gzip_and_names_without_an_ending_are_known_by_content(tmp_path: Path) -> None:
    device = Device()
    train(device, 1)
    path = tmp_path / "mem"
    path.write_bytes(gzip.compress(pickle.dumps(device.snapshot())))
    assert cuda_memory.sniff(path, head_of(path))
    assert read([path]).sources[0].reader == "cuda_memory"


def test_what_is_no_snapshot_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(NothingRecorded, match="without segments"):
        read([saved(tmp_path, {"segments": [], "device_traces": []})])
    with pytest.raises(UnknownEvidence, match="no memory snapshot"):
        read([saved(tmp_path, {"segments": 3})])
    with pytest.raises(UnknownEvidence, match="no memory snapshot"):
        read([saved(tmp_path, "segments")])
    entry = {"action": "alloc", "addr": 1, "size": 2, "stream": 0, "frames": stack(3)}
    twice = {"segments": [], "device_traces": [[entry, entry]]}
    with pytest.raises(UnreadableEvidence, match="1 events of the allocator, but 2"):
        read([saved(tmp_path, twice)])


def test_frames_of_a_snapshot_made_from_a_profile_are_lines_too(tmp_path: Path) -> None:
    frames = [
        {"name": "torch/optim/adam.py(214): step", "filename": "none", "line": 0},
        {"name": "train.py(31): main", "filename": "none", "line": 0},
    ]
    entry = {"action": "alloc", "addr": 7, "size": 5, "stream": 0, "frames": frames}
    evidence = read([saved(tmp_path, {"segments": [], "device_traces": [[entry]]})])
    stack_text = evidence.table("allocations")["stack"][0]
    assert stack_text == "torch/optim/adam.py(214): step\ntrain.py(31): main"


def test_blocks_and_events_of_odd_types_are_left_out_and_counted(tmp_path: Path) -> None:
    device = Device()
    train(device, 1)
    snapshot = device.snapshot()
    snapshot["segments"] += [3, {"blocks": [{"size": "x"}, None]}, {"blocks": 7}]
    snapshot["segments"][0]["blocks"][0] |= {"frames": [3, {"line": "x"}], "state": []}
    evidence = read([saved(tmp_path, snapshot)])
    assert any(note.startswith("4 segments or blocks") for note in evidence.sources[0].notes)
