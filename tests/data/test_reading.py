"""Packed sets are read in any order, by many processes, and again from the middle."""

from __future__ import annotations

import multiprocessing
import os
import pickle
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tests.data.packing import rows
from whyidle.data.order import in_blocks, permuted
from whyidle.data.pack import Plan, pack
from whyidle.data.reading import PackedDataset, PackedStream
from whyidle.data.sources import source_of
from whyidle.errors import DamagedSample, UsageError

COUNT = 103


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packed")
    array = np.arange(COUNT, dtype=np.int64).reshape(COUNT, 1)
    np.save(folder / "rows.npy", array)
    pack(source_of(str(folder / "rows.npy")), folder / "dst", Plan(samples_per_shard=40))
    return folder / "dst"


def number(fields: dict[str, bytes]) -> int:
    return int(np.frombuffer(fields["npy"][-8:], np.int64)[0])


def stream(path: Path, **options: object) -> PackedStream:
    return PackedStream(path, number, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("count", [1, 2, 3, 5, 64, 1000, 4097])
def test_every_order_holds_every_sample_once(count: int) -> None:
    positions = np.arange(count, dtype=np.uint64)
    for seed in (0, 1, -1):
        assert sorted(permuted(positions, count, seed).tolist()) == list(range(count))
        for window in (1, 7, 5000):
            assert sorted(in_blocks(positions, count, seed, window).tolist()) == list(range(count))


def test_a_full_shuffle_puts_any_sample_anywhere_about_equally_often() -> None:
    seen = np.zeros((8, 8))
    for seed in range(4000):
        order = permuted(np.arange(8, dtype=np.uint64), 8, seed)
        seen[np.arange(8), order.astype(int)] += 1
    # 64 counts of 500 each; chi-square with 49 degrees of freedom stays below 94 in 99.99 %
    assert ((seen - 500) ** 2 / 500).sum() < 94


def by_number(dataset: PackedDataset, i: int, out: object) -> None:
    out.put((i, dataset[i]["npy"]))  # type: ignore[attr-defined]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_set_that_was_read_before_is_read_in_another_process(packed: Path, method: str) -> None:
    dataset = PackedDataset(packed)
    expected = dataset[50]["npy"]
    context = multiprocessing.get_context(method)
    out = context.Queue()
    process = context.Process(target=by_number, args=(dataset, 50, out))
    process.start()
    assert out.get(timeout=60) == (50, expected)
    process.join()
    assert pickle.loads(pickle.dumps(dataset))[50]["npy"] == expected


@pytest.mark.parametrize("shuffle", ["full", "blocks", None])
def test_ranks_share_an_epoch_and_each_has_equally_many(packed: Path, shuffle: str | None) -> None:
    parts = [list(stream(packed, shuffle=shuffle, rank=r, ranks=4)) for r in range(4)]
    assert {len(part) for part in parts} == {26}
    counts = Counter(sum(parts, []))
    assert set(counts) == set(range(COUNT))
    assert sum(counts.values()) == 104
    uneven = [list(stream(packed, rank=r, ranks=4, even=False)) for r in range(4)]
    assert sorted(sum(uneven, [])) == list(range(COUNT))


@pytest.mark.parametrize("shuffle", ["full", "blocks", None])
def test_a_stream_goes_on_in_the_middle_of_an_epoch(packed: Path, shuffle: str | None) -> None:
    whole = stream(packed, shuffle=shuffle, seed=3, window=10)
    epochs = [list(whole), list(whole)]
    assert (epochs[0] != epochs[1]) == (shuffle is not None)
    for taken in (0, 1, 50, COUNT - 1, COUNT):
        first = stream(packed, shuffle=shuffle, seed=3, window=10)
        list(first)
        read = iter(first)
        before = [next(read) for _ in range(taken)]
        state = pickle.loads(pickle.dumps(first.state_dict()))
        later = stream(packed, shuffle=shuffle, seed=3, window=10)
        later.load_state_dict(state)
        assert before + list(later) == epochs[1]
    with pytest.raises(UsageError, match="seed differs"):
        stream(packed, shuffle=shuffle, seed=4, window=10).load_state_dict(state)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataloader_goes_on_after_the_batches_that_were_used(packed: Path, workers: int) -> None:
    torch = pytest.importorskip("torch")

    def batches(one: PackedStream) -> list[list[int]]:
        loader = torch.utils.data.DataLoader(one, batch_size=8, num_workers=workers)
        return [batch.tolist() for batch in loader]

    whole = batches(stream(packed))
    assert sorted(sum(whole, [])) == list(range(COUNT))
    for used in (1, 5):
        later = stream(packed)
        later.load_state_dict(stream(packed).after(used, 8))
        rest = batches(later)
        assert sorted(sum(whole[:used] + rest, [])) == list(range(COUNT))
        if workers == 0 or used % workers == 0:
            assert rest == whole[used:]


def test_a_damaged_sample_is_skipped_only_where_asked(packed: Path, tmp_path: Path) -> None:
    import shutil

    damaged = tmp_path / "damaged"
    shutil.copytree(packed, damaged)
    shard = damaged / "shard-00001.blob"
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    with pytest.raises(DamagedSample) as raised:
        list(stream(damaged))
    assert (raised.value.shard, raised.value.index) == ("shard-00001.blob", 79)
    skipping = stream(damaged, on_damage="skip")
    assert sorted(skipping) == [i for i in range(COUNT) if i != 79]
    assert skipping.skipped == 1
    assert number(PackedDataset(damaged, verify=True)[78]) == 78


def test_opening_reads_the_same_few_bytes_however_many_samples_there_are(tmp_path: Path) -> None:
    opened = []
    for count in (50, 5000):
        rows(tmp_path / f"{count}.npy", count, width=4)
        pack(source_of(str(tmp_path / f"{count}.npy")), tmp_path / str(count), Plan())
        PackedDataset(tmp_path / str(count))
        before = _read_bytes()
        PackedDataset(tmp_path / str(count))
        opened.append(_read_bytes() - before)
    assert abs(opened[1] - opened[0]) < 200  # digits of counts in the manifest


def _read_bytes() -> int:
    with open(f"/proc/{os.getpid()}/io") as file:
        return int(next(line for line in file if line.startswith("rchar")).split()[1])


def test_spawned_workers_of_a_dataloader_read_a_stream(packed: Path) -> None:
    data = pytest.importorskip("torch.utils.data")
    loader = data.DataLoader(
        PackedStream(packed), batch_size=None, num_workers=1, multiprocessing_context="spawn"
    )
    assert sorted(number(fields) for fields in loader) == list(range(COUNT))
