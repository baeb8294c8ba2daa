"""Damage: every byte of a packed set counts, and whoever reads it notices and names it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.data.packing import picture_folder, rows, whyidle
from whyidle.data import manifest
from whyidle.data.index import NAME as INDEX
from whyidle.data.pack import Plan, pack
from whyidle.data.reading import PackedDataset
from whyidle.data.sources import source_of
from whyidle.data.verify import verify
from whyidle.errors import DamagedSample, DataError


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    picture_folder(tmp_path / "src", 9, size=20)
    pack(source_of(str(tmp_path / "src")), tmp_path / "dst", Plan(samples_per_shard=5))
    return tmp_path / "dst"


def flipped(path: Path) -> Iterator[int]:
    """The file with each of its bytes flipped in turn, and whole again at the end."""
    whole = path.read_bytes()
    for at in range(len(whole)):
        with open(path, "r+b") as file:
            file.seek(at)
            file.write(bytes([whole[at] ^ (1 << at % 8)]))
        yield at
    path.write_bytes(whole)


def names_of_damage(folder: Path) -> set[str]:
    """What a reader of the whole set is told: names of files, or the words of its refusal."""
    try:
        dataset = PackedDataset(folder)
    except DataError as error:
        return {str(error)}
    found = set()
    for i in range(len(dataset)):
        try:
            dataset[i]
        except DamagedSample as damage:
            found.add(damage.shard)
    dataset.close()
    return found


@pytest.mark.parametrize("name", ["shard-00000.blob", "shard-00001.blob"])
def test_each_flipped_byte_of_the_data_is_found_and_named(packed: Path, name: str) -> None:
    for at in flipped(packed / name):
        verdict = verify(packed)
        assert {one["file"] for one in verdict.files} == {name}, at
        assert {one["shard"] for one in verdict.samples} == {name}, at
        assert names_of_damage(packed) == {name}, at
    assert verify(packed).sound


def test_each_flipped_byte_of_the_index_is_found_and_named(packed: Path) -> None:
    for at in flipped(packed / INDEX):
        verdict = verify(packed)
        assert {one["file"] for one in verdict.files} == {INDEX}, at
        told = names_of_damage(packed)
        assert told and all(INDEX in one for one in told), at
    assert verify(packed).sound


def test_each_flipped_byte_of_the_manifest_is_found_and_named(packed: Path) -> None:
    for at in flipped(packed / manifest.NAME):
        with pytest.raises(DataError, match=manifest.NAME):
            verify(packed)
        assert all(manifest.NAME in one for one in names_of_damage(packed)), at
        assert names_of_damage(packed), at
    assert verify(packed).sound


def test_a_missing_short_or_strange_file_is_named(packed: Path) -> None:
    (packed / "shard-00001.blob").unlink()
    with open(packed / "shard-00000.blob", "r+b") as file:
        file.truncate(100)
    (packed / "strange").write_text("?")
    done = whyidle("verify", packed, "--format", "json")
    told = json.loads(done.stdout)
    assert done.returncode == 1
    assert {one["file"] for one in told["files"]} == {
        "shard-00000.blob",
        "shard-00001.blob",
        "strange",
    }


def test_the_rest_of_a_damaged_set_is_still_served(packed: Path) -> None:
    with open(packed / "shard-00000.blob", "r+b") as file:
        file.seek(60)
        file.write(b"\0\0\0")
    dataset = PackedDataset(packed)
    sound = 0
    for i in range(len(dataset)):
        try:
            dataset[i]
        except DamagedSample as damage:
            assert (damage.index, damage.key) == (0, "cat/0000.jpg")
        else:
            sound += 1
    assert sound == 8
    skipping = PackedDataset(packed, on_damage="skip")
    assert skipping[0] == skipping[1]
    assert skipping.skipped == 1


def test_a_set_equals_its_source_and_a_changed_source_is_told(tmp_path: Path) -> None:
    picture_folder(tmp_path / "src", 12)
    (tmp_path / "src/cat/bad.jpg").write_bytes(b"\xff\xd8 no end")
    assert whyidle("pack", tmp_path / "src", tmp_path / "dst", "--shuffle", 2).returncode == 0
    done = whyidle("verify", tmp_path / "dst", "--against", tmp_path / "src")
    assert (done.returncode, done.stdout) == (
        0,
        f"{tmp_path}/dst: sound. 12 samples read, 12 equal to the source's.\n",
    )
    changed = tmp_path / "src/dog/0003.jpg"
    changed.write_bytes(changed.read_bytes()[:-3] + b"?\xff\xd9")
    done = whyidle("verify", tmp_path / "dst", "--against", tmp_path / "src")
    assert done.returncode == 1
    assert "(dog/0003.jpg) differs from the source: jpg differs" in done.stdout
    (tmp_path / "src/dog/more.jpg").write_bytes(changed.read_bytes())
    done = whyidle("verify", tmp_path / "dst", "--against", tmp_path / "src")
    assert done.returncode == 2
    assert "lists 14 samples, and 13 were packed" in done.stderr


def test_files_of_two_sets_cannot_be_mixed(tmp_path: Path) -> None:
    for count in (3, 4):
        rows(tmp_path / f"{count}.npy", count)
        pack(source_of(str(tmp_path / f"{count}.npy")), tmp_path / str(count), Plan())
    (tmp_path / "3" / INDEX).write_bytes((tmp_path / "4" / INDEX).read_bytes())
    with pytest.raises(DataError, match="Files of two sets are mixed"):
        PackedDataset(tmp_path / "3")
    assert not verify(tmp_path / "3").sound
