"""What changes leave alone in scripts as people write them, and how long lines are wrapped."""

from __future__ import annotations

import ast

import pytest

pytest.importorskip("libcst", reason="needs the fix extra")

from whyidle.fix import said
from whyidle.fix.asked import asked
from whyidle.fix.catalogue import CHANGES
from whyidle.fix.one_file import Fixed, fixed

LOADER = "from torch.utils.data import DataLoader, Dataset\n"


@pytest.fixture(autouse=True)
def three_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(said, "usable_cpus", lambda: 3)


def change(name: str, code: str) -> Fixed:
    changes = [c for c in CHANGES if name == c.NAME]
    done = fixed("train.py", code.encode(), changes, start_method="fork")
    ast.parse(done.after)
    assert fixed("train.py", done.after, changes, start_method="fork").after == done.after
    return done


KEPT = [
    (
        "persistent_workers",
        LOADER + "rows = Rows()\nx = DataLoader(rows, num_workers=4)\nfor e in range(3):\n"
        "    rows.level = e\n",
        "changed elsewhere",
    ),
    (
        "persistent_workers",
        LOADER + "x = DataLoader(Rows(), num_workers=4)\nfor e in range(3):\n"
        "    x.dataset.resample()\n",
        "changed elsewhere",
    ),
    (
        "persistent_workers",
        LOADER + "data = Rows()\nx = DataLoader(Subset(data, ids), num_workers=4)\n"
        "data.transform = none\n",
        "changed elsewhere",
    ),
    (
        "loader_workers",
        LOADER + "class Rows(Dataset):\n    def __getitem__(self, i):\n"
        "        self.kept[i] = read(i)\n        return self.kept[i]\nDataLoader(Rows())\n",
        "keeps what it reads",
    ),
    (
        "loader_workers",
        "import h5py\n" + LOADER + "class Rows(Dataset):\n    def __init__(self):\n"
        "        self.file = h5py.File('x.h5')\nDataLoader(Rows())\n",
        "h5py.File",
    ),
    (
        "pinned_copies",
        LOADER + "x = DataLoader(rows, collate_fn=nested)\nfor a, b in x:\n    a = a.to(device)\n",
        "no tensors",
    ),
    (
        "anomaly_mode",
        "import torch\nif args.debug:\n    torch.autograd.set_detect_anomaly(True)\n",
        "a condition",
    ),
    (
        "anomaly_mode",
        "import torch\ntry:\n    with torch.autograd.detect_anomaly():\n        step()\n"
        "except RuntimeError:\n    skip()\n",
        "handling of errors",
    ),
    (
        "empty_cache",
        "import torch\nfor x in y:\n    if torch.cuda.memory_reserved() > limit:\n"
        "        torch.cuda.empty_cache()\n",
        "only in some passes",
    ),
    (
        "empty_cache",
        "import torch\nfor k in range(5):\n    train_model(k)\n    torch.cuda.empty_cache()\n",
        "many batches",
    ),
    (
        "checkpoint_every",
        "import torch\nfor i in range(9):\n    loss.backward()\n    torch.save(state, 'last.pt')\n"
        "    if is_best(i):\n        copy('last.pt', 'best.pt')\n",
        "used in the loop",
    ),
]


@pytest.mark.parametrize(("name", "code", "why"), KEPT)
def test_what_a_change_would_break_is_left_alone(name: str, code: str, why: str) -> None:
    done = change(name, code)
    assert not done.done
    assert any(why in told.what for told in done.left)


def test_set_to_none_is_not_safe_since_zeros_still_move_weights() -> None:
    safe = [c for c in asked(CHANGES, None, None) if c.SAFE]
    assert not fixed("t.py", b"o.zero_grad(set_to_none=False)\n", safe).done


ALIGNED = """log = print("one",
            "two")
"""
MADE = "loader = DataLoader(ImageRows('a/long/path'), batch_size=256, shuffle=True, drop_last=True)"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            LOADER + MADE + "  # all\n",
            "loader = DataLoader(\n    ImageRows('a/long/path'),\n    batch_size=256,\n"
            "    shuffle=True,\n    drop_last=True,\n    num_workers=3,\n"
            "    persistent_workers=True,\n)  # all\n",
        ),
        (
            LOADER + ALIGNED + MADE + "\n",
            "loader = DataLoader(ImageRows('a/long/path'), batch_size=256, shuffle=True, "
            "drop_last=True,\n                    num_workers=3, persistent_workers=True)\n",
        ),
        (
            LOADER + "loader = DataLoader(\n  ImageRows('a/long/path/to/the/pictures'),\n"
            "  batch_size=256, shuffle=True, drop_last=True, pin_memory=True, timeout=0)\n",
            "loader = DataLoader(\n  ImageRows('a/long/path/to/the/pictures'),\n"
            "  batch_size=256, shuffle=True, drop_last=True, pin_memory=True, timeout=0,\n"
            "  num_workers=3, persistent_workers=True)\n",
        ),
        (
            (LOADER + "def f():\n\t" + MADE + "\n").replace("\n", "\r\n"),
            "\tloader = DataLoader(\r\n\t\tImageRows('a/long/path'),\r\n\t\tbatch_size=256,\r\n"
            "\t\tshuffle=True,\r\n\t\tdrop_last=True,\r\n\t\tnum_workers=3,\r\n"
            "\t\tpersistent_workers=True,\r\n\t)\r\n",
        ),
    ],
    ids=["hanging", "aligned", "packed", "tabs and carriage returns"],
)
def test_a_call_that_gets_too_long_is_wrapped_as_the_file_does(before: str, after: str) -> None:
    assert change("loader_workers", before).after.decode().endswith(after)


def test_a_line_that_was_too_long_before_stays_on_its_own() -> None:
    code = "import torch\no = torch.optim.Adam(p, foreach=False, " + "x" * 100 + "=1)\n"
    assert change("optimizer_foreach", code).after.decode().count("\n") == 2
