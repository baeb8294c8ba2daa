"""What the loader did while the device waited, by the frames recorded in it."""

from __future__ import annotations

import pytest

from whyidle.diagnose import diagnose
from whyidle.stories import Story, loader_run
from whyidle.views import Views
from whyidle.views.loading import stage_of


@pytest.mark.parametrize(
    ("frame", "stage"),
    [
        ("<built-in method read of _io.BufferedReader object at 0x7f>", "storage"),
        ("<built-in function open>", "storage"),
        ("h5py/_hl/dataset.py(765): __getitem__", "storage"),
        ("numpy/lib/npyio.py(365): load", "storage"),
        ("site-packages/fsspec/spec.py(1900): read", "storage"),
        ("transformers/tokenization_utils_fast.py(500): _batch_encode_plus", "tokens"),
        ("train.py(9): tokenize_row", "tokens"),
        ("torch/multiprocessing/reductions.py(300): rebuild_storage_fd", "handover"),
        ("PIL/Image.py(2200): resize", "sample"),
        ("torchvision/transforms/v2/_transform.py(50): forward", "sample"),
        ("data.py(31): __getitem__", "sample"),
        ("torch/utils/data/_utils/collate.py(398): default_collate", "sample"),
        ("torch/utils/data/dataloader.py(700): __next__", None),
        ("train.py(40): train_one_epoch", None),
        ("<built-in method acquire of _thread.lock object at 0x7f>", None),
    ],
)
def test_a_frame_tells_its_stage(frame: str, stage: str | None) -> None:
    assert stage_of(frame) == stage


def test_the_innermost_frame_that_tells_a_stage_decides() -> None:
    story = Story()
    for number in range(3):
        begin = number * 10_000
        story.step(number, begin, begin + 10_000)
        loader = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
        story.annotate(loader, begin, begin + 5000)
        story.frame("data.py(31): __getitem__", begin, begin + 4000)
        story.frame("PIL/Image.py(3300): open", begin + 500, begin + 2500)
        story.frame("<built-in function open>", begin + 1000, begin + 1600)
        story.launch("gemm", (begin + 5002, begin + 5008), (begin + 5008, begin + 10_000))
    rows = Views(story.evidence()).loading
    found = {(r["stage"], r["op"]): r["waited_ns"] for r in rows.iter_rows(named=True)}
    # The window begins with the first step; by hand, per step: 0.6 ms opening, 1.4 ms in PIL
    # around it, 2 ms in the rest of __getitem__.
    assert found == {
        ("storage", "<built-in function open>"): 3 * 600_000,
        ("sample", "PIL/Image.py(3300): open"): 3 * 1_400_000,
        ("sample", "data.py(31): __getitem__"): 3 * 2_000_000,
    }
    assert set(rows["file"].to_list()) == {"data.py"}
    assert set(rows["line"].to_list()) == {31}


def test_a_frame_outside_of_the_loader_is_no_part_of_loading() -> None:
    story = Story()
    for number in range(3):
        begin = number * 10_000
        story.step(number, begin, begin + 10_000)
        story.frame("data.py(31): __getitem__", begin, begin + 5000)
        story.launch("gemm", (begin + 5002, begin + 5008), (begin + 5008, begin + 10_000))
    assert Views(story.evidence()).loading.height == 0


def test_a_stage_that_took_little_of_the_wait_is_not_told() -> None:
    told = {o.cause for o in diagnose(loader_run("<built-in function open>", 900)).observations}
    assert "data_loading.slow_storage" not in told
    told = {o.cause for o in diagnose(loader_run("<built-in function open>", 1100)).observations}
    assert "data_loading.slow_storage" in told


def test_what_is_told_of_loading_adds_no_seconds_to_the_wait() -> None:
    found = diagnose(loader_run("PIL/Image.py(2200): resize", 4000))
    (finding,) = (f for f in found.findings if f.cause.startswith("data_loading."))
    assert finding.cause == "data_loading.loader_workers_too_few"
    assert finding.lost_s == pytest.approx(3 * 5e-3, rel=0.01)
