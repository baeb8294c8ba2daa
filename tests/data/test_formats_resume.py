"""A pack that was killed anywhere goes on, and its files end up equal to undisturbed ones."""

import pytest

from tests.data.format_sets import files_of, packed
from tests.data.test_formats_same_samples import EQUAL, ODD
from whyidle.data.formats import Options, writer
from whyidle.errors import DataError

CASES = [(format, ODD) for format in ("blob", "tfrecord", "webdataset", "hdf5")] + [("npy", EQUAL)]


@pytest.mark.parametrize("per_shard", [None, 3])
@pytest.mark.parametrize(("format", "samples"), CASES, ids=[format for format, _ in CASES])
def test_resumed_after_any_sample_the_files_are_equal(tmp_path, format, samples, per_shard):
    undisturbed = files_of(packed(tmp_path / "whole", format, samples, samples_per_shard=per_shard))
    options = Options(len(samples), per_shard)
    for kept in range(len(samples) + 1):
        for lost in (0, 1, 4):
            folder = tmp_path / f"{kept}-{lost}"
            folder.mkdir()
            out = writer(format, folder, options, None)
            for sample in samples[:kept]:
                out.append(*sample)
            out.flush()
            position = out.position()
            for sample in samples[kept : kept + lost]:
                out.append(*sample)
            out.close()  # killed: what came after the position may lie on disk or not
            again = writer(format, folder, options, position)
            assert position["samples"] <= kept
            for sample in samples[position["samples"] :]:
                again.append(*sample)
            again.finish()
            assert files_of(folder) == undisturbed, (kept, lost)


@pytest.mark.parametrize(("format", "samples"), CASES, ids=[format for format, _ in CASES])
def test_killed_while_it_finishes_the_files_are_equal(tmp_path, format, samples):
    undisturbed = files_of(packed(tmp_path / "whole", format, samples))
    folder = tmp_path / "killed"
    folder.mkdir()
    out = writer(format, folder, Options(len(samples)), None)
    for sample in samples[:-1]:
        out.append(*sample)
    out.flush()
    position = out.position()
    out.append(*samples[-1])
    out.finish()
    again = writer(format, folder, Options(len(samples)), position)
    for sample in samples[position["samples"] :]:
        again.append(*sample)
    again.finish()
    assert files_of(folder) == undisturbed


@pytest.mark.parametrize("format", ["tfrecord", "webdataset", "npy"])
def test_a_file_shorter_than_its_position_is_told(tmp_path, format):
    out = writer(format, tmp_path, Options(7), None)
    for sample in EQUAL:
        out.append(*sample)
    out.flush()
    position = out.position()
    out.close()
    for file in files_of(tmp_path):
        (tmp_path / file).write_bytes(b"")
    with pytest.raises((ValueError, DataError), match="shorter than the journal says"):
        writer(format, tmp_path, Options(7), position)
