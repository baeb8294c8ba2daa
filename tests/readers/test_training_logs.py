"""TensorBoard event files and W&B runs, against files of real writers and an own encoder."""

from __future__ import annotations

import gzip
import json
import struct
import zlib
from pathlib import Path

import polars as pl
import pytest

from whyidle.errors import NothingRecorded, UnreadableEvidence
from whyidle.model import Evidence
from whyidle.readers import read

RECORDED = Path(__file__).with_name("recorded")
SECOND = 1_000_000_000


def series(evidence: Evidence, metric: str) -> list[tuple[object, ...]]:
    rows = evidence.table("samples").filter(pl.col("metric") == metric)
    return rows.select("t_ns", "value").rows()


def test_scalars_of_tensorboardx_keep_tag_time_and_value() -> None:
    found = read([RECORDED / "events.out.tfevents.tensorboardx"])
    start = 1_700_000_000 * SECOND
    expected = [(start + i * 5 * SECOND // 2, 2.0 / (i + 1)) for i in range(4)]
    got = series(found, "user/train/loss")
    assert [when for when, _ in got] == [when for when, _ in expected]
    assert [value for _, value in got] == pytest.approx([value for _, value in expected])
    assert series(found, "user/throughput") == [(start + 10 * SECOND, 123.5)]
    assert found.table("samples")["metric"].n_unique() == 2


def crc32c(data: bytes) -> int:
    """Bit by bit, as the standard has it: independent of the reader's table."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def record(data: bytes) -> bytes:
    size = struct.pack("<Q", len(data))
    return size + struct.pack("<I", crc32c(size)) + data + struct.pack("<I", crc32c(data))


def varint(value: int) -> bytes:
    out = b""
    while value > 127:
        out, value = out + bytes([value & 127 | 128]), value >> 7
    return out + bytes([value])


def blob(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(data)) + data


def event(tag: str, value: bytes, wall: float = 1.7e9) -> bytes:
    summary = blob(1, blob(1, tag.encode()) + value)
    return struct.pack("<Bd", 9, wall) + blob(5, summary)


FIRST = record(struct.pack("<Bd", 9, 1.7e9) + blob(3, b"brain.Event:2"))
AS_FLOAT = b"\x15" + struct.pack("<f", 0.5)
TENSORS = {
    "content": blob(8, b"\x08\x01" + blob(2, b"") + blob(4, struct.pack("<f", 0.5))),
    "float_val": blob(8, b"\x08\x01" + blob(2, b"") + blob(5, struct.pack("<f", 0.5))),
    "double_val": blob(8, b"\x08\x02" + blob(2, b"") + blob(6, struct.pack("<d", 0.5))),
}


@pytest.mark.parametrize("value", TENSORS.values(), ids=list(TENSORS))
def test_scalars_that_tensorflow_2_writes_as_tensors_are_read(tmp_path: Path, value: bytes) -> None:
    path = tmp_path / "events.out.tfevents.1"
    path.write_bytes(FIRST + record(event("loss", value)))
    assert series(read([path]), "user/loss") == [(1_700_000_000 * SECOND, 0.5)]


def test_a_negative_whole_number_keeps_its_sign(tmp_path: Path) -> None:
    """-3 as int64_val: protobuf writes it as 2^64 - 3, in ten bytes."""
    value = blob(8, b"\x08\x09" + blob(2, b"") + varint(10 << 3) + varint((1 << 64) - 3))
    path = tmp_path / "events.out.tfevents.1"
    path.write_bytes(FIRST + record(event("balance", value)))
    assert series(read([path]), "user/balance") == [(1_700_000_000 * SECOND, -3.0)]


def test_a_value_that_is_no_number_is_unknown(tmp_path: Path) -> None:
    path = tmp_path / "events.out.tfevents.1"
    path.write_bytes(FIRST + record(event("loss", b"\x15" + struct.pack("<f", float("nan")))))
    rows = read([path]).table("samples").select("value", "reason").rows()
    assert rows == [(None, "not a number")]


def test_a_last_record_that_was_cut_costs_only_itself(tmp_path: Path) -> None:
    path = tmp_path / "events.out.tfevents.1"
    path.write_bytes(FIRST + record(event("loss", AS_FLOAT)) + record(event("loss", AS_FLOAT))[:-9])
    found = read([path])
    assert len(series(found, "user/loss")) == 1
    assert any("cut short" in note for note in found.sources[0].notes)


@pytest.mark.parametrize("at", [3, 9, 20, -2])
def test_a_flipped_bit_is_seen(tmp_path: Path, at: int) -> None:
    data = bytearray(record(event("loss", AS_FLOAT)))
    data[at] ^= 4
    path = tmp_path / "events.out.tfevents.1"
    path.write_bytes(FIRST + bytes(data) + record(event("loss", AS_FLOAT)) * 3)
    with pytest.raises(UnreadableEvidence, match="checksum"):
        read([path])


def test_a_file_of_texts_and_images_alone_has_nothing_to_judge(tmp_path: Path) -> None:
    path = tmp_path / "events.out.tfevents.1"
    path.write_bytes(FIRST + record(event("note", blob(4, b"an image"))))
    with pytest.raises(NothingRecorded, match="without a scalar"):
        read([path])


def test_what_a_user_logged_to_wandb_is_read_from_the_run_itself() -> None:
    found = read([RECORDED / "three_steps.wandb"])
    assert [value for _, value in series(found, "user/loss")] == pytest.approx([1, 1 / 2, 1 / 3])
    assert [value for _, value in series(found, "user/nested.a")] == [0, 1, 2]
    times = [when for when, _ in series(found, "user/loss")]
    assert all(isinstance(when, int) for when in times) and times == sorted(times)
    assert not found.table("samples")["metric"].cast(pl.String).str.contains("text").any()


def statistics(seconds: int, **items: float) -> bytes:
    told = b"".join(
        blob(3, blob(1, key.encode()) + varint(16 << 3 | 2) + varint(len(text)) + text.encode())
        for key, value in items.items()
        for text in [json.dumps(value)]
    )
    return blob(7, blob(2, b"\x08" + varint(seconds)) + told)


def wandb_log(*records: bytes, flip: int | None = None) -> bytes:
    """A LevelDB log as W&B writes it: blocks of 32 KiB, records split over them."""
    out = bytearray(b":W&B\xe1\xbe\x00")
    for number, data in enumerate(records):
        first = True
        while True:
            left = 32768 - len(out) % 32768
            if left < 7:
                out += b"\x00" * left
                continue
            part, data = data[: left - 7], data[left - 7 :]
            kind = (1 if not data else 2) if first else (4 if not data else 3)
            crc = zlib.crc32(part, zlib.crc32(bytes([kind]))) ^ (number == flip)
            out += struct.pack("<IHB", crc, len(part), kind) + part
            first = False
            if not data:
                break
    return bytes(out)


def test_statistics_of_wandb_become_readings_of_each_gpu(tmp_path: Path) -> None:
    path = tmp_path / "run-x.wandb"
    items = {"gpu.0.gpu": 35.0, "gpu.1.smActive": 12.5, "gpu.1.powerWatts": 70.25,
             "gpu.process.0.gpu": 35.0, "cpu": 50.0, "disk./.usageGB": 3.0}  # fmt: skip
    path.write_bytes(
        wandb_log(
            statistics(1_700_000_000, **items), statistics(1_700_000_015, **{"gpu.0.gpu": 0.0})
        )
    )
    found = read([path])
    assert series(found, "gpu_utilization") == [
        (1_700_000_000 * SECOND, 0.35), (1_700_000_015 * SECOND, 0.0)
    ]  # fmt: skip
    assert series(found, "sm_active") == [(1_700_000_000 * SECOND, 0.125)]
    devices = found.table("samples").select("metric", "gpu", "device").rows()
    assert ("power", "1", 1) in devices and ("host/cpu_utilization", None, None) in devices
    assert any("2 system metrics" in note for note in found.sources[0].notes)


def test_records_that_span_blocks_are_put_together_and_broken_ones_left_out(tmp_path: Path) -> None:
    path = tmp_path / "run-x.wandb"
    long = blob(4, b"x" * 70_000)
    parts = [long, statistics(1, **{"gpu.0.gpu": 1.0}), long, statistics(2, **{"gpu.0.gpu": 2.0})]
    path.write_bytes(wandb_log(*parts, flip=1))
    found = read([path])
    assert series(found, "gpu_utilization") == [(2 * SECOND, 0.02)]
    assert any("1 records with a wrong checksum" in note for note in found.sources[0].notes)


def test_exported_events_and_csv_of_wandb_are_read(tmp_path: Path) -> None:
    events = tmp_path / "wandb-events.jsonl"
    line = {"system.gpu.0.gpu": 35.0, "system.gpu.0.temp": 60, "_timestamp": 1.7e9, "_runtime": 3}
    events.write_text(json.dumps(line) + "\n")
    assert series(read([events]), "gpu_utilization") == [(1_700_000_000 * SECOND, 0.35)]
    table = tmp_path / "wandb_export.csv"
    table.write_text('"_timestamp","run-1 - system.gpu.3.gpu"\n1700000000,42.5\n1700000015,\n')
    rows = read([table]).table("samples").select("device", "value", "reason").rows()
    assert rows == [(3, 0.425, None), (3, None, "not a number")]


def test_compressed_logs_are_read_like_plain_ones(tmp_path: Path) -> None:
    path = tmp_path / "events.out.tfevents.1.gz"
    path.write_bytes(gzip.compress(FIRST + record(event("loss", AS_FLOAT))))
    assert len(series(read([path]), "user/loss")) == 1
