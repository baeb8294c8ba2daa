"""Every byte of a shard that is changed is found, and the sample named whose byte it was."""

import pytest

from tests.data.format_sets import files_of, packed, reader_of
from tests.data.test_formats_same_samples import EQUAL, npy
from whyidle.data.manifest import digest_of_file, load
from whyidle.data.records import Sample
from whyidle.errors import DamagedSample

TINY = [
    Sample("a", {"jpg": b"\xff\xd8" * 9, "cls": b"7"}),
    Sample("ä", {"jpg": b""}),
    Sample("a", {"npy": npy([[1.5, 2.5]])}),
]
NOBODYS = {"blob": 16, "npy": 128}
"""Bytes at the beginning of a file that are no sample's: changed, they cost the whole file."""


def damaged_by(folder, file, at, mask, samples) -> list[int]:
    """The samples that cannot be read after one byte was changed; the others are as they were."""
    whole = (folder / file).read_bytes()
    (folder / file).unlink()
    (folder / file).write_bytes(whole[:at] + bytes([whole[at] ^ mask]) + whole[at + 1 :])
    reader, named = reader_of(folder), []
    for i, sample in enumerate(samples):
        try:
            assert reader.fields(i) == sample.fields, f"byte {at} of {file} changed sample {i}"
        except DamagedSample as damage:
            assert (damage.index, damage.key) == (i, sample.key)
            assert file in damage.shard.split(", ")  # of npy, the files of all fields
            named.append(i)
    reader.close()
    (folder / file).write_bytes(whole)
    return named


@pytest.mark.parametrize("mask", [0x01, pytest.param(0x80, marks=pytest.mark.slow), 0xFF])
@pytest.mark.parametrize("format", ["blob", "tfrecord", "webdataset", "npy"])
def test_every_changed_byte_names_the_one_sample_it_belongs_to(tmp_path, format, mask):
    samples = EQUAL[:3] if format == "npy" else TINY
    folder = packed(tmp_path / "set", format, samples)
    reader = reader_of(folder)
    for file, whole in files_of(folder).items():
        for at in range(len(whole)):
            named = damaged_by(folder, file, at, mask, samples)
            if at < NOBODYS.get(format, 0):
                assert named == list(range(len(samples)))
                continue
            assert len(named) == 1, f"byte {at} of {file}: {named}"
            if format != "npy":
                place = reader.index[named[0]].place
                last = place.offset + place.length + 1024 >= len(whole)
                assert place.offset <= at < place.offset + place.length or last


@pytest.mark.parametrize(
    "step", [61, pytest.param(1, marks=[pytest.mark.slow], id="every")], ids=lambda step: f"{step}"
)
def test_hdf5_never_gives_a_changed_byte_and_the_digest_finds_all(tmp_path, step):
    # HDF5 leaves room in its own tables that belongs to no sample: a change there harms none, and
    # only the digest of the file tells. Whatever a sample is made of is found when it is read.
    folder = packed(tmp_path / "set", "hdf5", TINY)
    (file,) = files_of(folder)
    whole = (folder / file).read_bytes()
    payload = whole.index(TINY[0].fields["jpg"])
    found = 0
    for at in [*range(payload, payload + 18), *range(0, len(whole), step)]:
        named = damaged_by(folder, file, at, 0xFF, TINY)
        found += bool(named)
        if payload <= at < payload + 18:
            assert named == [0]
    assert found > 18
    digest = load(folder).shards[0]["digest"]
    for at in range(0, len(whole), 997):
        (folder / file).write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert digest_of_file(folder / file) != digest


@pytest.mark.parametrize("format", ["blob", "tfrecord", "webdataset"])
def test_a_shard_cut_short_anywhere_gives_the_samples_before_the_cut(tmp_path, format):
    folder = packed(tmp_path / "set", format, TINY)
    (file,) = files_of(folder)
    whole, places = (
        (folder / file).read_bytes(),
        [reader_of(folder).index[i].place for i in range(3)],
    )
    for end in range(0, len(whole), 7):
        (folder / file).write_bytes(whole[:end])
        reader = reader_of(folder)
        for i, place in enumerate(places):
            if place.offset + place.length <= end:
                if format != "webdataset" or i < 2:  # the last one also owns the end mark
                    assert reader.fields(i) == TINY[i].fields
            else:
                with pytest.raises(DamagedSample, match=r"shard-00000\.\w+: sample \d"):
                    reader.fields(i)
        reader.close()
        (folder / file).unlink()
