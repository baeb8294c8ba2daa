"""Small packed sets for tests of the formats: a writer, an index and a manifest, and no engine."""

import json
from pathlib import Path

from whyidle.data.formats import Options, module_of, writer
from whyidle.data.index import IndexWriter
from whyidle.data.manifest import Manifest, digest_of_file, load, write
from whyidle.data.records import Sample, sample_hash

ALL = ("blob", "tfrecord", "webdataset", "hdf5", "npy")


def packed(folder: Path, format: str, samples: list[Sample], **options) -> Path:
    """The samples in one format below ``folder``, which is made."""
    folder.mkdir()
    out = writer(format, folder, Options(len(samples), **options), None)
    index = IndexWriter(folder)
    for key, fields in samples:
        index.append(key, out.append(key, fields), sample_hash(fields))
    out.flush()
    facts = out.finish()
    index.finish()
    index.remove_parts()
    write(folder, manifest_of(folder, format, samples, facts))
    return folder


def manifest_of(folder: Path, format: str, samples: list[Sample], facts: dict) -> Manifest:
    shards = [
        {**shard, "digest": digest_of_file(folder / shard["file"])} for shard in facts["shards"]
    ]
    return Manifest(
        format=format,
        samples=len(samples),
        fields=sorted({name for _, fields in samples for name in fields}),
        shards=shards,
        files=[],
        classes=None,
        source={"name": "planted", "digest": ""},
        order={"kind": "listed", "seed": None},
        reencode=None,
        bad=[],
        facts=json.loads(json.dumps({k: v for k, v in facts.items() if k != "shards"})),
    )


def reader_of(folder: Path):
    manifest = load(folder)
    return module_of(manifest.format).Reader(folder, manifest)


def samples_in(folder: Path) -> list[Sample]:
    reader = reader_of(folder)
    return [Sample(reader.key(i), reader.fields(i)) for i in range(len(reader))]


def files_of(folder: Path) -> dict[str, bytes]:
    """The bytes of every file of data: all but the index and the manifest."""
    apart = ("samples.index", "whyidle-pack.json", "rows.partial", "keys.partial")
    return {p.name: p.read_bytes() for p in sorted(folder.iterdir()) if p.name not in apart}


class AsDataset:
    """A reader as a map-style data set, so that a loader's workers read through it."""

    def __init__(self, reader, touched: bool) -> None:
        self.reader = reader
        if touched:
            reader.fields(0)

    def __len__(self) -> int:
        return len(self.reader)

    def __getitem__(self, i: int) -> tuple[str, dict[str, bytes]]:
        return self.reader.key(i), self.reader.fields(i)


class AsSourceDataset(AsDataset):
    """A source the same way."""

    def __init__(self, source) -> None:
        self.reader = source

    def __getitem__(self, i: int) -> tuple[str, dict[str, bytes]]:
        return self.reader.key(i), self.reader.read(i)
