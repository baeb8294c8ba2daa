"""The formats' own libraries read our files, with the same samples, and we read theirs."""

import io
import subprocess
import tarfile

import h5py
import numpy as np
import pytest
import tfrecord
import webdataset
from tfrecord.reader import tfrecord_loader
from webdataset import tariterators

from tests.data.format_sets import files_of, packed
from whyidle.data.records import Sample
from whyidle.data.sources import hdf5, tar, tfrecords


def npy(values) -> bytes:
    out = io.BytesIO()
    np.save(out, values)
    return out.getvalue()


SAMPLES = [
    Sample(
        f"class {i % 3}/bild-ä{i}", {"jpg": b"\xff\xd8\xff" + bytes([i]) * i * 40, "cls": b"%d" % i}
    )
    for i in range(9)
]


def as_webdataset(path) -> list[Sample]:
    with open(path, "rb") as stream:  # WebDataset would leave closing to the collector
        files = tariterators.tar_file_expander([{"url": str(path), "stream": stream}])
        return [
            Sample(one["__key__"], {k: v for k, v in one.items() if not k.startswith("__")})
            for one in tariterators.group_by_keys(files)
        ]


def test_webdataset_reads_our_archives(tmp_path):
    folder = packed(tmp_path / "set", "webdataset", SAMPLES, samples_per_shard=4)
    read = [one for file in files_of(folder) for one in as_webdataset(folder / file)]
    assert read == SAMPLES


def test_webdataset_keeps_samples_apart_whose_keys_are_odd(tmp_path):
    keys = ["a.b/c.d", "a.b/c.e", "same", "same", "", "__x__/y", "é" * 90, "p/" * 60 + "q", "end/"]
    odd = [Sample(key, {"jpg": b"%d" % i, "seg.png": b"s"}) for i, key in enumerate(keys)]
    folder = packed(tmp_path / "set", "webdataset", odd)
    read = as_webdataset(folder / "shard-00000.tar")
    assert [one.fields for one in read] == [one.fields for one in odd]
    assert [one.key for one in read][:3] == ["a.b/c%2Ed", "a.b/c%2Ee", "same"]
    assert len({one.key for one in read}) == len(odd)


@pytest.mark.parametrize("command", ["python", "gnu"])
def test_tar_itself_unpacks_our_archives(tmp_path, command):
    long = [
        *SAMPLES,
        Sample("ordner/" * 40 + "ü", {"bin": b"deep"}),
        Sample("x" * 98, {"bin": b"n"}),
    ]
    archive = packed(tmp_path / "set", "webdataset", long) / "shard-00000.tar"
    out = tmp_path / "out"
    out.mkdir()
    if command == "gnu":
        done = subprocess.run(["tar", "-xf", archive, "-C", out], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
    else:
        with tarfile.open(archive) as held:
            held.extractall(out, filter="data")
    for sample in long:
        for name, content in sample.fields.items():
            assert (out / f"{sample.key}.{name}").read_bytes() == content


def test_the_tfrecord_package_reads_our_files(tmp_path):
    folder = packed(tmp_path / "set", "tfrecord", SAMPLES)
    wanted = {"jpg": "byte", "cls": "byte", "__key__": "byte"}
    read = list(tfrecord_loader(str(folder / "shard-00000.tfrecord"), None, wanted))
    assert [one["__key__"].decode() for one in read] == [sample.key for sample in SAMPLES]
    assert [{"jpg": one["jpg"], "cls": one["cls"]} for one in read] == [s.fields for s in SAMPLES]


def test_protobuf_writes_the_same_bytes_as_we_do():
    from tfrecord import example_pb2

    from whyidle.data.formats.example import example_of

    fields = {"a": b"", "b": b"x" * 127, "c": b"y" * 128, "é": b"z" * 70000}
    theirs = example_pb2.Example()
    for name, content in fields.items():
        theirs.features.feature[name].bytes_list.value.append(content)
    assert theirs.SerializeToString(deterministic=True) == example_of(fields)


def test_h5py_reads_our_files(tmp_path):
    samples = [
        Sample(key, {**fields, "npy": npy(np.full((2, 3), i, "f4"))})
        for i, (key, fields) in enumerate(SAMPLES)
    ]
    folder = packed(tmp_path / "set", "hdf5", samples)
    with h5py.File(folder / "shard-00000.h5") as held:
        assert held["cls"][:].tolist() == list(range(9))
        assert held["npy"].chunks == (1, 2, 3) and held["npy"].fletcher32
        assert held["npy"][:].tolist() == [np.full((2, 3), i).tolist() for i in range(9)]
        assert [row.tobytes() for row in held["jpg"]] == [s.fields["jpg"] for s in samples]
        assert [key.decode() for key in held["__key__"]] == [s.key for s in samples]


def test_numpy_maps_our_arrays(tmp_path):
    samples = [
        Sample(str(i), {"npy": npy(np.full((2, 3), i, "f4")), "cls": b"%d" % i}) for i in range(5)
    ]
    folder = packed(tmp_path / "set", "npy", samples)
    images = np.load(folder / "npy.npy", mmap_mode="r")
    assert images.shape == (5, 2, 3) and images.dtype == np.float32
    assert images[:, 0, 0].tolist() == np.load(folder / "cls.npy").tolist() == list(range(5))


def read_all(source) -> list[Sample]:
    return [Sample(source.key(i), source.read(i)) for i in range(len(source))]


def test_we_read_what_webdataset_writes(tmp_path):
    with webdataset.ShardWriter(f"file:{tmp_path}/t-%03d.tar", maxcount=4, verbose=0) as out:
        for key, fields in SAMPLES:
            out.write({"__key__": key, "jpg": fields["jpg"], "cls": int(fields["cls"])})
    for spec in (str(tmp_path), f"{tmp_path}/t-{{000..002}}.tar", f"{tmp_path}/t-*.tar"):
        assert tar.knows(spec)
        assert read_all(tar.opened(spec, {})) == SAMPLES


@pytest.mark.parametrize("format", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT])
def test_we_read_every_dialect_of_tar(tmp_path, format):
    name = "folder/" * 20 + "long" if format == tarfile.USTAR_FORMAT else "ordner/" * 40 + "lang-é"
    with tarfile.open(tmp_path / "a.tar", "w", format=format) as out:
        folder = tarfile.TarInfo("folder.d")
        folder.type = tarfile.DIRTYPE
        out.addfile(folder)
        for ending in ("JPG", "cls"):
            facts = tarfile.TarInfo(f"{name}.{ending}")
            facts.size, facts.mtime = 3, 1.5 if format == tarfile.PAX_FORMAT else 1
            out.addfile(facts, io.BytesIO(b"abc"))
        out.addfile(tarfile.TarInfo("README"))
    assert read_all(tar.opened(str(tmp_path / "a.tar"), {})) == [
        Sample(name, {"cls": b"abc", "jpg": b"abc"})
    ]


def test_we_read_what_the_tfrecord_package_writes(tmp_path):
    out = tfrecord.TFRecordWriter(str(tmp_path / "d.tfrecord-00000-of-00001"))
    for i, (_, fields) in enumerate(SAMPLES):
        out.write(
            {
                "image/encoded": (fields["jpg"], "byte"),
                "image/class/label": (i - 4, "int"),
                "box": ([0.5, 1.5], "float"),
                "ids": ([1, -2, 3], "int"),
            }
        )
    out.close()
    assert tfrecords.knows(str(tmp_path))
    source = tfrecords.opened(str(tmp_path), {})
    assert [source.key(i) for i in (0, 8)] == ["d/00000000", "d/00000008"]
    for i in range(len(source)):
        fields = source.read(i)
        assert fields["jpg"] == SAMPLES[i].fields["jpg"] and fields["cls"] == b"%d" % (i - 4)
        assert np.load(io.BytesIO(fields["box.npy"])).tolist() == [0.5, 1.5]
        assert np.load(io.BytesIO(fields["ids.npy"])).tolist() == [1, -2, 3]
        assert len(fields) == 4


def test_records_that_are_no_examples_are_bytes(tmp_path):
    from whyidle.data.formats.example import framed

    (tmp_path / "raw.tfrecord").write_bytes(framed(b"\x07 no example") + framed(b""))
    source = tfrecords.opened(str(tmp_path / "raw.tfrecord"), {})
    assert source.read(0) == {"bin": b"\x07 no example"} and len(source) == 2


def test_we_read_what_h5py_writes(tmp_path):
    with h5py.File(tmp_path / "d.hdf5", "w") as out:
        out["images"] = np.arange(24, dtype="u1").reshape(4, 2, 3)
        out["labels"] = np.array([3, 1, 2, 0])
        out["group/score"] = np.array([0.5, 1, 2, 3])
        out["names"] = ["a", "ß", "", "d"]
        jpegs = out.create_dataset("jpeg", (4,), h5py.vlen_dtype(np.uint8))
        for i in range(4):
            jpegs[i] = np.frombuffer(b"\xff\xd8\xff" + bytes(i), np.uint8)
        out["mean"] = np.zeros(3)
        out.create_dataset(
            "packed", (4, 5), "i4", chunks=(4, 5), compression="gzip", data=np.ones((4, 5))
        )
    assert hdf5.knows(str(tmp_path / "d.hdf5"))
    source = hdf5.opened(str(tmp_path / "d.hdf5"), {})
    assert len(source) == 4 and source.key(1) == "d/00000001"
    fields = source.read(1)
    assert np.load(io.BytesIO(fields["images.npy"])).tolist() == [[6, 7, 8], [9, 10, 11]]
    assert fields["cls"] == b"1" and fields["names.txt"] == "ß".encode()
    assert fields["jpeg.jpg"] == b"\xff\xd8\xff\0"
    assert float(np.load(io.BytesIO(fields["group_score.npy"]))) == 1.0
    assert np.load(io.BytesIO(fields["packed.npy"])).tolist() == [1] * 5
    assert len(fields) == 6
