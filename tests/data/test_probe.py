"""Planted faults are named first, the data set stays as it is, and its crashes cost a sentence."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

torch = pytest.importorskip("torch", reason="the probe's loaders are PyTorch's")

from tests.data import probe_planted  # noqa: E402
from whyidle.cli import main  # noqa: E402
from whyidle.data import limits, probe, probe_run, probe_text, spec  # noqa: E402
from whyidle.data.probe_record import Probe  # noqa: E402
from whyidle.data.probe_stages import Stages, chunk_bytes, composed  # noqa: E402
from whyidle.errors import NotFound, UsageError  # noqa: E402

PLANTED = Path(probe_planted.__file__)
SECONDS = 1.5


@pytest.fixture(autouse=True)
def _data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(probe_planted.FOLDER, str(tmp_path))


def probed(name: str, **options: Any) -> Probe:
    return probe.probe(f"{PLANTED}:{name}", seconds=SECONDS, **options)


def causes(found: Probe) -> list[str]:
    return [one.cause for one in found.findings]


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("slow_storage", "data.storage_waiting"),
        ("heavy_python", "data.python_heavy"),
        ("float_handover", "data.float32_handover"),
        ("opencv_threads", "data.opencv_threads"),
        ("slow_transform", "data.transform_heavy"),
    ],
)
def test_a_planted_fault_is_named_first(name: str, cause: str) -> None:
    found = probed(name)
    assert causes(found)[:1] == [cause], probe_text.terminal(found)
    first = found.findings[0]
    assert first.remedies and first.evidence
    assert any(remedy.gain is not None for remedy in first.remedies)


def test_compressed_chunks_of_64_samples_are_named_first(tmp_path: Path) -> None:
    pytest.importorskip("h5py", reason="chunks are HDF5's")
    probe_planted.make_chunks(tmp_path)
    found = probed("chunks_of_64")
    assert causes(found)[:1] == ["data.chunk_amplification"], probe_text.terminal(found)
    assert found.storage is not None
    assert found.storage.used_bytes == pytest.approx(48 * 48 * 3)
    assert found.storage.chunk_bytes == pytest.approx(64 * 48 * 48 * 3)


def test_shared_memory_that_is_too_small_is_named_first_and_nothing_is_put_there() -> None:
    small = msgspec.structs.replace(limits.read(), shm_free=4_000_000, shm_bytes=4_000_000)
    found = probed("large_batches", read_limits=lambda: small)
    assert causes(found)[:1] == ["data.shm_small"]
    assert [one.workers for one in found.rates if one.measured] == [0]


def test_a_cpu_quota_is_named_first(tmp_path: Path) -> None:
    files = {"proc/self/cgroup": "0::/job\n", "groups/job/cpu.max": "25000 100000\n"}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    held = limits.read(tmp_path / "proc", tmp_path / "groups")
    if not held.affinity > 0.25:
        pytest.skip("one CPU or more is needed")
    found = probed("ordinary", read_limits=lambda: held)
    assert causes(found)[:1] == ["data.cpu_quota"]
    assert "0.25 CPUs" in found.findings[0].evidence[0].what


def test_samples_that_lie_in_memory_are_loaded_without_workers() -> None:
    found = probed("in_memory")
    assert found.pick == 0
    assert causes(found)[:1] == ["data.handover"]
    assert [one.workers for one in found.rates if one.measured] == [0, 1]


def test_a_loader_keeps_its_batch_size_and_number_of_workers() -> None:
    found = probed("a_loader", step_s=10.0)
    assert (found.batch_size, found.workers, found.samples) == (8, 0, 1000)
    assert found.findings == []  # a step of ten seconds hides it
    assert "RandomSampler" in (found.order or "")


def test_stages_of_a_compose_are_told_apart_and_the_slow_one_is_named() -> None:
    found = probed("slow_transform")
    walls = {one.name: one.wall_s for one in found.stages}
    assert max(walls, key=walls.__getitem__) == "transform Blur"
    assert {"transform Nothing", "transform Nothing #2", "rest of __getitem__"} <= set(walls)
    assert "Blur" in found.findings[0].title


@pytest.fixture
def images(tmp_path: Path) -> Iterator[Path]:
    image = pytest.importorskip("PIL.Image", reason="images are Pillow's")
    folder = tmp_path / "images"
    folder.mkdir()
    for number in range(24):
        image.effect_noise((300, 300), 40).convert("RGB").save(folder / f"{number}.jpg")
    yield folder


def test_a_folder_of_images_is_read_decoded_and_counted(images: Path) -> None:
    found = probe.probe(str(images), seconds=SECONDS)
    kinds = {one.kind for one in found.stages}
    assert {"read", "decode", "collate"} <= kinds
    assert found.storage is not None
    assert found.storage.opens == pytest.approx(1.0)
    mean = sum(path.stat().st_size for path in images.iterdir()) / 24
    assert found.storage.asked_bytes == pytest.approx(mean, rel=0.2)
    assert found.samples == 24
    assert any("no code of its own" in note for note in found.notes)


def test_a_crash_of_the_data_set_costs_a_sentence() -> None:
    with pytest.raises(UsageError, match="died of SIGSEGV in asking for the first sample"):
        probed("crashing")


def test_a_crash_in_a_later_part_keeps_what_was_measured() -> None:
    found = probed("crashing_in_workers")
    assert found.stages
    assert any("died of SIGSEGV" in note for note in found.notes)


def test_a_hang_of_the_data_set_costs_a_sentence() -> None:
    named = spec.parse(f"{PLANTED}:hanging")
    with pytest.raises(UsageError, match="hung and was ended"):
        probe_run.measured(named, limits.read(), None, 0.5, patience_s=8.0)


def test_an_error_of_the_data_set_is_told_with_its_line() -> None:
    with pytest.raises(UsageError, match=r"no such picture.*probe_planted\.py:\d+"):
        probed("raising")


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("nowhere/at/all", NotFound, "no such file"),
        ("word", UsageError, "names nothing"),
        (str(PLANTED), UsageError, "what in this file"),
        ("no-module:x", UsageError, "no name of a module"),
        ("missing.py:x", NotFound, "no such file"),
    ],
)
def test_a_spec_that_names_nothing_is_a_sentence(
    text: str, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        spec.parse(text)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("absent", "has no absent"),
        ("needs_an_argument", "cannot be called without arguments"),
        ("a_number", "is a int, not a data set"),
    ],
)
def test_an_attribute_that_is_no_data_set_is_a_sentence(name: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        spec.load(spec.parse(f"{PLANTED}:{name}"), None)


def test_a_data_set_and_all_modules_are_as_before_when_the_stages_are_taken_off() -> None:
    import builtins
    import io

    made = probe_planted.Transformed()
    before = (builtins.open, io.open, os.open, os.read, list(made.transform.transforms))
    stages = Stages()
    with pytest.raises(KeyError), stages.around(made):
        assert builtins.open is not before[0]
        made[0]
        raise KeyError
    assert (builtins.open, io.open, os.open, os.read) == before[:4]
    assert made.transform.transforms == before[4]
    assert list(composed(made)) == [(made.transform, "transforms", before[4])]


def test_a_file_opened_while_it_is_timed_is_a_file(tmp_path: Path) -> None:
    path = tmp_path / "some.bin"
    path.write_bytes(bytes(range(256)) * 1000)
    stages = Stages()
    with stages.around(object()), open(path, "rb") as file:
        import io

        assert isinstance(file, io.BufferedReader)
        assert file.read(3) == b"\0\1\2"
        assert len(file.read()) == 255_997
    assert stages.opens == 1
    assert stages.wall["read"] > 0
    assert (stages.paths, stages.kinds["read"]) == ({str(path): 1}, "read")


def test_stages_that_nest_count_their_time_once() -> None:
    stages = Stages()
    inner = stages.timed("inner", "decode", lambda: sum(range(200_000)))
    outer = stages.timed("outer", "sample", lambda: inner() and sum(range(100)))
    outer()
    assert stages.wall["inner"] > 10 * stages.wall["outer"]


class Array:
    chunks, shape = (64, 8, 8), (1000, 8, 16)
    dtype = type("dtype", (), {"itemsize": 2})


@pytest.mark.parametrize(
    ("key", "chunks"),
    [
        (5, 2),
        (slice(60, 70), 4),
        (slice(64, 64), 0),
        (slice(0, 1000), 32),
        ((5, ..., 3), 1),
        ((slice(0, 64), slice(None), slice(0, 8)), 1),
        (([0, 1, 70], 0, 0), 2),
    ],
)
def test_whole_chunks_that_are_touched_are_counted(key: Any, chunks: int) -> None:
    assert chunk_bytes(Array(), key) == chunks * 64 * 8 * 8 * 2


def test_the_report_of_the_verb_is_text_json_and_markdown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written = tmp_path / "probe.json"
    page = tmp_path / "probe.md"
    words = ["data", "probe", f"{PLANTED}:slow_transform", "--seconds", "1", "--step-ms", "5"]
    assert main([*words, "-o", str(written), "-o", str(page), "--quiet"]) == 0
    told = json.loads(written.read_text())
    assert told["schema"] == "whyidle.probe/1"
    assert {"cause", "reason", "title", "lost_s", "share", "remedies"} <= set(told["findings"][0])
    assert "| transform Blur |" in page.read_text()
    again = Probe.from_json(written.read_text())
    assert again.to_json() == written.read_text()
    assert "The transform Blur holds samples up" in probe_text.terminal(again)
    assert all(one.busy is not None for one in again.rates)
    assert capsys.readouterr().out == ""
