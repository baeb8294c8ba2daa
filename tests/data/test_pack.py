"""What goes wrong around packing gets a sentence and exit code 2, and nothing is lost."""

from __future__ import annotations

import json
import os
import resource
import shutil
from pathlib import Path

import pytest

from tests.data.packing import contents, picture_folder, rows, untouched, whyidle
from whyidle.data import journal
from whyidle.data.pack import Plan, pack
from whyidle.data.reading import PackedDataset
from whyidle.data.sources import source_of
from whyidle.errors import DataError, OutputError


def test_every_sample_has_the_bytes_of_its_file_in_the_listed_order(tmp_path: Path) -> None:
    truth = picture_folder(tmp_path / "src", 30)
    before = untouched(tmp_path / "src")
    pack(source_of(str(tmp_path / "src")), tmp_path / "dst", Plan())
    dataset = PackedDataset(tmp_path / "dst")
    read = {dataset.key(i): (dataset[i]["jpg"], int(dataset[i]["cls"])) for i in range(30)}
    assert read == truth
    assert list(read) == sorted(truth)
    assert untouched(tmp_path / "src") == before


def test_bad_pictures_are_left_out_counted_and_listed(tmp_path: Path) -> None:
    source = tmp_path / "src"
    picture_folder(source, 4)
    (source / "empty").mkdir()
    (source / "cat/short.jpg").write_bytes(b"\xff\xd8 cut")
    (source / "dog/zero.png").touch()
    (source / "dog/text.jpg").write_bytes(b"hello")
    (source / "dog/gone.jpg").symlink_to("nowhere")
    (source / "cat/0000.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    done = whyidle("pack", source, tmp_path / "dst")
    assert done.returncode == 0, done.stderr
    assert "4 samples as blob" in done.stdout
    assert "5 bad samples were left out" in done.stdout
    told = json.loads((tmp_path / "dst/whyidle-pack.json").read_bytes())
    assert told["classes"] == ["cat", "dog", "empty"]
    assert {one["key"]: one["reason"] for one in told["bad"]} == {
        "cat/0000.png": "the PNG is cut short: its end is missing",
        "cat/short.jpg": "the JPEG is cut short: its end is missing",
        "dog/gone.jpg": "No such file or directory",
        "dog/text.jpg": "no JPEG: it does not begin as one",
        "dog/zero.png": "the file is empty",
    }
    done = whyidle("pack", source, tmp_path / "strict", "--strict")
    assert done.returncode == 2
    assert "cat/0000.png: the PNG is cut short" in done.stderr


def test_names_that_are_no_utf8_and_names_that_repeat_survive(tmp_path: Path) -> None:
    truth = picture_folder(tmp_path / "src", 2)
    strange = os.fsencode(tmp_path) + b"/src/cat/\xff\xfe.jpg"
    shutil.copy(tmp_path / "src/cat/0000.jpg", strange)
    shutil.copy(tmp_path / "src/cat/0000.jpg", tmp_path / "src/dog/0000.jpg")
    assert whyidle("pack", tmp_path / "src", tmp_path / "dst").returncode == 0
    dataset = PackedDataset(tmp_path / "dst")
    keys = [os.fsencode(dataset.key(i)) for i in range(len(dataset))]
    assert keys == [b"cat/0000.jpg", b"cat/\xff\xfe.jpg", b"dog/0000.jpg", b"dog/0001.jpg"]
    assert dataset[1]["jpg"] == truth["cat/0000.jpg"][0]


def test_a_full_disk_keeps_what_is_there_and_the_same_command_goes_on(tmp_path: Path) -> None:
    rows(tmp_path / "rows.npy", 400)
    how = (tmp_path / "rows.npy", tmp_path / "dst", "--workers", 0, "--journal-every", "4k")
    limit = (30_000, resource.RLIM_INFINITY)
    done = whyidle(
        "pack", *how, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    )
    assert done.returncode == 2, done.stderr
    assert "the largest size that is allowed here" in done.stderr
    assert "goes on once there is room" in done.stderr
    kept = json.loads((tmp_path / "dst.partial/journal.json").read_bytes())
    assert kept["next"] > 0
    assert whyidle("pack", *how).returncode == 0
    pack(source_of(str(tmp_path / "rows.npy")), tmp_path / "calm", Plan())
    assert contents(tmp_path / "dst") == contents(tmp_path / "calm")


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    rows(tmp_path / "rows.npy", 2)
    done = whyidle("pack", tmp_path / "rows.npy", "/proc/dst")
    assert done.returncode == 2
    assert "/proc/dst.partial: cannot be made" in done.stderr


def test_nothing_that_exists_is_overwritten(tmp_path: Path) -> None:
    source = tmp_path / "src"
    picture_folder(source, 2)
    (tmp_path / "dst").mkdir()
    (tmp_path / "other.partial").mkdir()
    (tmp_path / "other.partial/mine.txt").write_text("mine")
    for target, told in (
        (tmp_path / "dst", "exists already"),
        (tmp_path / "other", "holds 'mine.txt' and no journal"),
        (source / "inside", "lies inside the source"),
    ):
        done = whyidle("pack", source, target)
        assert done.returncode == 2
        assert told in done.stderr
    assert contents(tmp_path / "other.partial") == {"mine.txt": b"mine"}
    assert len(contents(source)) == 2


def test_what_another_source_or_other_options_began_is_left_alone(tmp_path: Path) -> None:
    for count in (3, 4):
        rows(tmp_path / f"{count}.npy", count)
    three, four = (source_of(str(tmp_path / f"{count}.npy")) for count in (3, 4))
    target = tmp_path / "dst"
    partial = tmp_path / "dst.partial"
    journal.Journal(partial, Plan().job(three)).release()
    before = contents(partial)
    with pytest.raises(OutputError, match="begun with another source and samples"):
        pack(four, target, Plan())
    with pytest.raises(OutputError, match="begun with another shuffle seed"):
        pack(three, target, Plan(shuffle=1))
    assert contents(partial) == before
    held = journal.Journal(partial, Plan().job(three))
    with pytest.raises(OutputError, match="another process is packing"):
        pack(three, target, Plan())
    held.release()
    pack(three, target, Plan())


def test_a_set_of_bad_samples_only_is_refused(tmp_path: Path) -> None:
    (tmp_path / "src/cat").mkdir(parents=True)
    (tmp_path / "src/cat/a.jpg").touch()
    with pytest.raises(DataError, match="none of 1 samples could be packed"):
        pack(source_of(str(tmp_path / "src")), tmp_path / "dst", Plan())


def test_smaller_pictures_state_their_loss_and_equal_their_source(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    import numpy as np

    (tmp_path / "src/one").mkdir(parents=True)
    for number in range(3):
        pixels = np.random.default_rng(number).integers(0, 256, (5, 8, 3), np.uint8)
        picture = image.fromarray(pixels).resize((128, 80))
        picture.save(tmp_path / f"src/one/{number}.png")
    how = ("--resize", 40, "--quality", 90)
    assert whyidle("pack", tmp_path / "src", tmp_path / "dst", *how).returncode == 0
    dataset = PackedDataset(tmp_path / "dst", "auto")
    assert [dataset[i]["jpg"].shape for i in range(3)] == [(40, 64, 3)] * 3
    told = dataset.manifest.reencode
    assert told is not None and told["compared"] == 3
    assert 20 < told["psnr_db_after_resize"]["least"] < 60
    done = whyidle("verify", tmp_path / "dst", "--against", tmp_path / "src")
    assert (done.returncode, "3 equal to" in done.stdout) == (0, True), done.stdout
