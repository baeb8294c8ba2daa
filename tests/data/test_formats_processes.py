"""Readers and sources work in a loader's processes, forked after use or spawned."""

import h5py
import numpy as np
import pytest
from torch.utils.data import DataLoader

from tests.data.format_sets import ALL, AsDataset, AsSourceDataset, packed, reader_of
from tests.data.test_formats_same_samples import EQUAL
from whyidle.data.sources import hdf5, tar, tfrecords


def first(batch):
    return batch[0]


def loaded(dataset, start: str):
    return list(DataLoader(dataset, num_workers=2, multiprocessing_context=start, collate_fn=first))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("format", ALL)
def test_forked_after_the_parent_has_read(tmp_path, format):
    reader = reader_of(packed(tmp_path / "set", format, EQUAL, samples_per_shard=2))
    assert loaded(AsDataset(reader, touched=True), "fork") == [tuple(one) for one in EQUAL]
    assert reader.fields(6) == EQUAL[6].fields  # the parent's files are still its own


@pytest.mark.parametrize("format", ["hdf5", "tfrecord", "webdataset", "npy"])
def test_spawned_workers_read_the_same_samples(tmp_path, format):
    reader = reader_of(packed(tmp_path / "set", format, EQUAL, samples_per_shard=2))
    assert loaded(AsDataset(reader, touched=True), "spawn") == [tuple(one) for one in EQUAL]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_sources_in_processes(tmp_path, start):
    archive = packed(tmp_path / "tar", "webdataset", EQUAL) / "shard-00000.tar"
    records = packed(tmp_path / "rec", "tfrecord", EQUAL) / "shard-00000.tfrecord"
    rows = tmp_path / "rows.h5"
    with h5py.File(rows, "w") as out:
        out["label"] = np.arange(7)
    sources = [tar.opened(str(archive), {}), tfrecords.opened(str(records), {})]
    sources.append(hdf5.opened(str(rows), {}))
    for source in sources:
        here = [(source.key(i), source.read(i)) for i in range(len(source))]
        assert loaded(AsSourceDataset(source), start) == here
        assert len(here) == 7
