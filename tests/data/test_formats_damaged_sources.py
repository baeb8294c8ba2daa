"""Damaged files of others: what is broken is named with file and byte, and the rest is served."""

import io
import tarfile

import h5py
import numpy as np
import pytest

from whyidle.data.formats.example import example_of, framed
from whyidle.data.records import BadSample
from whyidle.data.sources import hdf5, tar, tfrecords
from whyidle.errors import DataError, NotFound, UsageError


def read_all(source):
    """Contents by key of what is sound, and the reasons of what is bad."""
    good, bad = {}, []
    for i in range(len(source)):
        try:
            good[source.key(i)] = source.read(i)
        except BadSample as error:
            assert error.key == source.key(i)
            bad.append(error.reason)
    return good, bad


@pytest.fixture
def archive(tmp_path):
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as out:
        for i in range(4):
            for ending in ("cls", "jpg"):
                facts = tarfile.TarInfo(f"s{i}.{ending}")
                facts.size = 600
                out.addfile(facts, io.BytesIO(bytes([i]) * 600))
    return path


def changed(path, at, by=b"\xee") -> None:
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(by)


def test_after_a_damaged_header_the_rest_of_an_archive_is_read(archive):
    changed(archive, 1536 * 2 + 5)  # the first header of s1
    good, bad = read_all(tar.opened(str(archive), {}))
    assert list(good) == ["s0", "s1", "s2", "s3"]
    assert list(good["s1"]) == ["jpg"] and len(good["s2"]) == 2
    assert bad == ["a.tar, byte 3072: the header of a member is damaged"]


def test_a_lost_block_of_zeros_does_not_end_an_archive(archive):
    changed(archive, 1536 * 2, bytes(512))
    good, bad = read_all(tar.opened(str(archive), {}))
    assert set(good) >= {"s0", "s2", "s3"}
    assert bad == ["a.tar, byte 3072: blocks of zeros lie between members"]


def test_every_changed_byte_of_a_header_costs_one_member_at_most(archive):
    whole = archive.read_bytes()
    for at in range(1536 * 2, 1536 * 2 + 512, 5):
        changed(archive, at, bytes([whole[at] ^ 0x10]))
        good, bad = read_all(tar.opened(str(archive), {}))
        assert len(bad) == 1 and "byte 3072" in bad[0]
        assert {"s0", "s2", "s3"} <= set(good) and all(
            len(good[k]) == 2 for k in ("s0", "s2", "s3")
        )
        changed(archive, at, whole[at : at + 1])


@pytest.mark.parametrize("size", [*range(0, 1536 * 8, 257), 1536 * 4])
def test_an_archive_cut_anywhere_serves_what_is_whole_and_tells(archive, size):
    archive.write_bytes(archive.read_bytes()[:size])
    good, bad = read_all(tar.opened(str(archive), {}))
    contents_end = [3072 * i + 2048 + 600 for i in range(4)]
    whole = [
        key
        for key in good
        if good[key] == {"cls": bytes([int(key[1])]) * 600, "jpg": bytes([int(key[1])]) * 600}
    ]
    assert len(whole) == sum(end <= size for end in contents_end)
    assert len(bad) == 1 and bad[0].startswith("a.tar, byte ")


@pytest.fixture
def records(tmp_path):
    path = tmp_path / "r.tfrecord"
    path.write_bytes(b"".join(framed(example_of({"bin": bytes([i]) * 100})) for i in range(4)))
    return path


def test_every_changed_byte_of_a_record_costs_that_record_only(records):
    whole = records.read_bytes()
    size = len(whole) // 4
    for at in range(size, 2 * size):
        changed(records, at, bytes([whole[at] ^ 0x10]))
        good, bad = read_all(tfrecords.opened(str(records), {}))
        assert [fields["bin"][0] for fields in good.values()] == [0, 2, 3]
        assert len(bad) == 1 and bad[0].startswith(f"r.tfrecord, byte {size}: ")
        changed(records, at, whole[at : at + 1])


def test_the_next_record_is_found_across_a_gap_larger_than_the_search_window(tmp_path):
    one = framed(example_of({"bin": bytes(3_000_000)}))
    (tmp_path / "r.tfrecord").write_bytes(b"\xff" + one[1:] + framed(example_of({"txt": b"found"})))
    good, bad = read_all(tfrecords.opened(str(tmp_path / "r.tfrecord"), {}))
    assert list(good.values()) == [{"txt": b"found"}] and len(bad) == 1


def test_a_record_file_cut_anywhere_serves_what_is_whole(records):
    whole = records.read_bytes()
    for size in range(0, len(whole), 11):
        records.write_bytes(whole[:size])
        good, bad = read_all(tfrecords.opened(str(records), {}))
        assert len(good) == size // (len(whole) // 4)
        assert len(bad) == bool(size % (len(whole) // 4))


@pytest.mark.parametrize("name", ["a.tar.gz", "a.tgz", "a.tar.zst"])
def test_compressed_archives_are_refused_with_what_to_do(tmp_path, name):
    (tmp_path / name).write_bytes(b"\x1f\x8b")
    assert tar.knows(str(tmp_path / name))
    with pytest.raises(DataError, match="Unpack it"):
        tar.opened(str(tmp_path / name), {})


def test_compressed_records_are_refused_with_what_to_do(tmp_path):
    (tmp_path / "r.tfrecord").write_bytes(b"\x1f\x8b\x08" + bytes(50))
    with pytest.raises(DataError, match="gunzip"):
        tfrecords.opened(str(tmp_path / "r.tfrecord"), {})


def test_missing_files_and_endless_ranges_are_told(tmp_path, archive):
    with pytest.raises(NotFound):
        tar.opened(str(tmp_path / "none.tar"), {})
    archive.rename(tmp_path / "a-0.tar")
    with pytest.raises(DataError, match="1 of 2 files"):
        tar.opened(f"{tmp_path}/a-{{0..1}}.tar", {})
    with pytest.raises(UsageError, match="smaller range"):
        tar.opened(f"{tmp_path}/a-{{0..99999999}}.tar", {})


@pytest.mark.parametrize("module", [tar, tfrecords])
def test_a_sample_over_the_bound_is_bad_and_says_so(archive, records, module):
    source = module.opened(str(archive if module is tar else records), {"largest": 100})
    good, bad = read_all(source)
    assert not good and all("more than 100" in reason for reason in bad) and len(bad) == 4


def test_a_broken_hdf5_file_is_one_bad_sample_and_others_are_served(tmp_path):
    for i in range(3):
        with h5py.File(tmp_path / f"d{i}.h5", "w") as out:
            out.create_dataset("x", data=np.full((2, 3), i), chunks=(1, 3), fletcher32=True)
    (tmp_path / "d0.h5").write_bytes((tmp_path / "d0.h5").read_bytes()[:300])
    content = (tmp_path / "d2.h5").read_bytes()
    changed(tmp_path / "d2.h5", content.index(np.full(3, 2).tobytes()))
    good, bad = read_all(hdf5.opened(str(tmp_path), {}))
    assert list(good) == ["d1/00000000", "d1/00000001", "d2/00000001"]
    assert bad[0].startswith("d0.h5 cannot be read") and bad[1].startswith("d2.h5, row 0 of x: ")


def test_data_sets_of_different_lengths_are_asked_about(tmp_path):
    with h5py.File(tmp_path / "d.h5", "w") as out:
        out["a"], out["b"] = np.zeros(3), np.zeros(4)
    with pytest.raises(DataError, match=r"not clear: a \(3\), b \(4\)"):
        hdf5.opened(str(tmp_path / "d.h5"), {})


def test_nothing_is_written_beside_the_files_of_others(archive, records):
    before = sorted(archive.parent.iterdir())
    read_all(tar.opened(str(archive), {}))
    read_all(tfrecords.opened(str(records), {}))
    assert sorted(archive.parent.iterdir()) == before
