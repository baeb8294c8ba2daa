"""Each kind of source gives the samples that were put into it, byte for byte."""

from __future__ import annotations

import io
import json
import pickle
from pathlib import Path

import numpy as np
import pytest

from tests.data.packing import jpeg_like, picture_folder, whyidle
from whyidle.data.pack import Plan, pack
from whyidle.data.reading import PackedDataset
from whyidle.data.sources import source_of
from whyidle.errors import DataError, NotFound, UsageError


def array_of(content: bytes) -> np.ndarray:
    return np.load(io.BytesIO(content), allow_pickle=False)


def test_a_table_names_files_labels_and_more(tmp_path: Path) -> None:
    for number in range(2):
        (tmp_path / f"{number}.jpg").write_bytes(jpeg_like(number))
    table = "path,label,split\n0.jpg,wolf,train\n1.jpg,ant,test\n0.jpg,wolf,test\nno.jpg,ant,test\n"
    (tmp_path / "index.csv").write_text(table)
    source = source_of(str(tmp_path / "index.csv"))
    assert source.classes == ["ant", "wolf"]
    packed = pack(source, tmp_path / "dst", Plan())
    assert [one["key"] for one in packed.bad] == ["no.jpg"]
    dataset = PackedDataset(tmp_path / "dst")
    assert [dataset[i]["jpg"] for i in range(3)] == [jpeg_like(0), jpeg_like(1), jpeg_like(0)]
    assert [dataset[i]["cls"] for i in range(3)] == [b"1", b"0", b"1"]
    assert json.loads(dataset[2]["json"]) == {"split": "test"}


def test_a_table_without_paths_is_told(tmp_path: Path) -> None:
    (tmp_path / "index.csv").write_text("a,b\n1,2\n")
    with pytest.raises(DataError, match="no column of paths among a, b"):
        source_of(str(tmp_path / "index.csv"))


@pytest.mark.parametrize("kind", ["folder", "npz"])
def test_rows_of_arrays_are_samples(tmp_path: Path, kind: str) -> None:
    images = np.arange(48, dtype=np.uint8).reshape(4, 3, 4)
    labels = np.array([3, 1, 2, 0])
    if kind == "npz":
        path = tmp_path / "set.npz"
        np.savez(path, images=images, labels=labels)
    else:
        path = tmp_path / "set"
        path.mkdir()
        np.save(path / "images.npy", np.asfortranarray(images))
        np.save(path / "labels.npy", labels)
    source = pickle.loads(pickle.dumps(source_of(str(path))))
    assert len(source) == 4
    for i in range(4):
        fields = source.read(i)
        assert sorted(fields) == ["cls", "images.npy"]
        assert fields["cls"] == str(labels[i]).encode()
        assert np.array_equal(array_of(fields["images.npy"]), images[i])


def test_arrays_that_cannot_be_rows_are_told(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "a.npz", x=np.zeros(3))
    np.save(tmp_path / "b.npy", np.array([{}], dtype=object))
    np.savez(tmp_path / "c.npz", x=np.zeros(3), z=np.zeros(4))
    for name, told in (("a.npz", "compressed"), ("b.npy", "cannot be read"), ("c.npz", "x 3, z 4")):
        with pytest.raises(DataError, match=told):
            source_of(str(tmp_path / name))


def test_lines_of_text_are_samples(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"one\r\n\ntwo two\n\r\n\xff\nx\nlast")
    source = source_of(str(tmp_path / "a.txt"))
    lines = [source.read(i)["txt"] for i in range(len(source))]
    assert lines == [b"one", b"two two", b"\xff", b"x", b"last"]
    assert source.key(1) == "a.txt:6"


def test_lines_of_text_become_tokens(tmp_path: Path) -> None:
    (tmp_path / "words.py").write_text(
        "def lengths(text):\n    return [len(w) for w in text.split()]\n"
    )
    (tmp_path / "a.txt").write_bytes(b"a bb ccc\n\xff\ndddd\n")
    how = ("--tokenizer", "words:lengths", "--workers", 2)
    done = whyidle("pack", "a.txt", "dst", *how, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "the line is no UTF-8" in done.stdout
    dataset = PackedDataset(tmp_path / "dst", "auto")
    assert [dataset[i]["npy"].tolist() for i in range(2)] == [[1, 2, 3], [4]]
    assert dataset[0]["npy"].dtype == np.int32
    with pytest.raises(UsageError, match="cannot be found"):
        source_of(str(tmp_path / "a.txt"), tokenizer="json:no_such_name")


DATASET = """
import random

class Numbers:
    classes = ["even", "odd"]
    def __len__(self):
        return 150
    def __getitem__(self, i):
        if i == 7:
            raise ValueError("seven is broken")
        import numpy as np
        return np.full(3, i, np.float32), i % 2, {"draw": random.random()}

def make():
    return Numbers()
"""


def test_a_users_dataset_is_packed_the_same_by_any_number_of_processes(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(DATASET)
    for workers in (0, 2):
        how = ("pack", "mine.py:make", f"dst{workers}", "--workers", workers)
        done = whyidle(*how, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert "000000007: ValueError: seven is broken" in done.stdout
    zero, two = (PackedDataset(tmp_path / f"dst{n}") for n in (0, 2))
    assert len(zero) == 149 and zero.classes == ["even", "odd"]
    assert [zero[i] for i in range(149)] == [two[i] for i in range(149)]
    assert array_of(zero[7]["npy"]).tolist() == [8, 8, 8] and zero[7]["cls"] == b"0"


def test_a_packed_set_is_a_source_too(tmp_path: Path) -> None:
    truth = picture_folder(tmp_path / "src", 6)
    pack(source_of(str(tmp_path / "src")), tmp_path / "one", Plan())
    pack(source_of(str(tmp_path / "one")), tmp_path / "two", Plan(format="tfrecord", shuffle=4))
    dataset = PackedDataset(tmp_path / "two")
    assert {dataset.key(i): dataset[i]["jpg"] for i in range(6)} == {
        key: content for key, (content, _) in truth.items()
    }
    assert dataset.classes == ["cat", "dog"]


def test_what_is_no_source_is_told(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        source_of(str(tmp_path / "nothing"))
    with pytest.raises(DataError, match="no pictures"):
        source_of(str(tmp_path))
    (tmp_path / "a.doc").touch()
    with pytest.raises(DataError, match="no kind of data set"):
        source_of(str(tmp_path / "a.doc"))
