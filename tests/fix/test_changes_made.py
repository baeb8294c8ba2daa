"""Each change: before and after by hand, comments kept, nothing to do the second time."""

from __future__ import annotations

import textwrap

import pytest

pytest.importorskip("libcst", reason="needs the fix extra")

from whyidle.executor import cpus
from whyidle.fix import said, threads
from whyidle.fix.asked import asked
from whyidle.fix.catalogue import CHANGES
from whyidle.fix.one_file import Fixed, fixed

ROWS = """
from torch.utils.data import DataLoader, Dataset
class Rows(Dataset):
    pass
"""

BOTH = {
    "loader_workers": [
        (
            ROWS + "loader = DataLoader(Rows(), 16)  # rows\n",
            ROWS
            + "loader = DataLoader(Rows(), 16, num_workers=3, persistent_workers=True)  # rows\n",
        ),
        (
            ROWS + "loader = DataLoader(\n    Rows(),\n    batch_size=2,  # two\n)\n",
            ROWS
            + "loader = DataLoader(\n    Rows(),\n    batch_size=2,  # two\n    num_workers=3,\n"
            "    persistent_workers=True,\n)\n",
        ),
        (
            ROWS + "loader = DataLoader(\n    Rows(),\n    batch_size=2  # two\n)\n",
            ROWS
            + "loader = DataLoader(\n    Rows(),\n    batch_size=2,  # two\n    num_workers=3,\n"
            "    persistent_workers=True\n)\n",
        ),
        (
            "from torch.utils import data\nloader = data.DataLoader(rows, shuffle=True, "
            "num_workers=0, drop_last=True)\n",
            "from torch.utils import data\nloader = data.DataLoader(rows, shuffle=True, "
            "num_workers=3, drop_last=True, persistent_workers=True)\n",
        ),
        (
            "import torch as t\nloader = t.utils.data.DataLoader(rows, 8, True, None, None, 0)\n",
            "import torch as t\nloader = t.utils.data.DataLoader(rows, 8, True, None, None, 3, "
            "persistent_workers=True)\n",
        ),
        (
            ROWS + "for epoch in range(3):\n    loader = DataLoader(Rows())\n",
            ROWS + "for epoch in range(3):\n    loader = DataLoader(Rows(), num_workers=3)\n",
        ),
    ],
    "persistent_workers": [
        (
            "from torch.utils.data import DataLoader\nx = DataLoader(rows, num_workers=4)\n",
            "from torch.utils.data import DataLoader\n"
            "x = DataLoader(rows, num_workers=4, persistent_workers=True)\n",
        ),
        (
            "from torch.utils.data import DataLoader as L\n"
            "x = L(rows, persistent_workers=False, num_workers=4)\n",
            "from torch.utils.data import DataLoader as L\n"
            "x = L(rows, persistent_workers=True, num_workers=4)\n",
        ),
    ],
    "anomaly_mode": [
        (
            "import torch\n\n# look for NaN\ntorch.autograd.set_detect_anomaly(True)\nwork()\n",
            "import torch\n\n# look for NaN\nwork()\n",
        ),
        (
            "from torch import autograd\ndef f():\n"
            "    with autograd.detect_anomaly():  # slow\n"
            "        # forward\n        loss()\n        back()  # ward\n        # end\n"
            "    step()\n",
            "from torch import autograd\ndef f():\n"
            "    # slow\n    # forward\n    loss()\n    back()  # ward\n    # end\n    step()\n",
        ),
        (
            "import torch\nwith torch.autograd.set_detect_anomaly(mode=True):\n    a()\n",
            "import torch\na()\n",
        ),
    ],
    "empty_cache": [
        (
            "import gc\nimport torch\nwhile go():\n    step()\n    # tidy\n"
            "    torch.cuda.empty_cache()\n    gc.collect()  # all of it\n",
            "import gc\nimport torch\nwhile go():\n    step()\n    # tidy\n",
        ),
        (
            "import torch.cuda as c\nfor x in y:\n    with late:\n        c.empty_cache()\n",
            "import torch.cuda as c\nfor x in y:\n    with late:\n        pass\n",
        ),
    ],
    "optimizer_foreach": [
        (
            "import torch\no = torch.optim.AdamW(p, foreach=False, lr=0.1, fused=False)  # Adam\n",
            "import torch\no = torch.optim.AdamW(p, lr=0.1)  # Adam\n",
        ),
        (
            "from torch.optim import SGD\no = SGD(\n    p,\n    foreach=False,\n)\n",
            "from torch.optim import SGD\no = SGD(\n    p,\n)\n",
        ),
    ],
    "pinned_copies": [
        (
            "from torch.utils.data import DataLoader\nloader = DataLoader(rows, num_workers=2)\n"
            "for i, (x, y) in enumerate(loader):\n"
            "    x = x.to(device)  # image\n    y = y.cuda()\n    z = z.to(device)\n",
            "from torch.utils.data import DataLoader\n"
            "loader = DataLoader(rows, num_workers=2, pin_memory=True)\n"
            "for i, (x, y) in enumerate(loader):\n"
            "    x = x.to(device, non_blocking=True)  # image\n"
            "    y = y.cuda(non_blocking=True)\n    z = z.to(device)\n",
        ),
        (
            "from torch.utils.data import DataLoader\n"
            "for x in DataLoader(rows, pin_memory=True):\n    f(x.to(c.device))\n",
            "from torch.utils.data import DataLoader\n"
            "for x in DataLoader(rows, pin_memory=True):\n"
            "    f(x.to(c.device, non_blocking=True))\n",
        ),
    ],
    "matmul_precision": [
        (
            "import torch\ntorch.set_float32_matmul_precision('highest')  # all bits\n",
            'import torch\ntorch.set_float32_matmul_precision("high")  # all bits\n',
        ),
        (
            "import torch as t\ndef main():\n    loss.backward()\n"
            "if __name__ == '__main__':\n    # go\n    main()\n",
            "import torch as t\ndef main():\n    loss.backward()\n"
            "if __name__ == '__main__':\n    t.set_float32_matmul_precision(\"high\")\n"
            "    # go\n    main()\n",
        ),
    ],
    "unused_parameters": [
        (
            "from torch.nn.parallel import DistributedDataParallel as DDP\n"
            "m = DDP(net, find_unused_parameters=True, device_ids=[0])\n",
            "from torch.nn.parallel import DistributedDataParallel as DDP\n"
            "m = DDP(net, device_ids=[0])\n",
        ),
    ],
    "zero_grad": [
        (
            "for x in y:\n    optimizer.zero_grad(set_to_none=False)  # zeros\n",
            "for x in y:\n    optimizer.zero_grad()  # zeros\n",
        ),
    ],
    "loss_item": [
        (
            "def f():\n    total = 0.0\n    for x in y:\n        loss = model(x)\n"
            "        loss.backward()\n        total += loss.item()  # sum\n    print(total)\n",
            "def f():\n    total = 0.0\n    for x in y:\n        loss = model(x)\n"
            "        loss.backward()\n        total += loss.detach()  # sum\n"
            "    total = float(total)\n    print(total)\n",
        ),
        (
            "one = 0.0\ntwo = 0.0\nfor x in y:\n    (loss := m(x)).backward()\n"
            "    s.scale(loss).backward()\n    one += loss.item() * len(x)\n"
            "    two += loss.item()\n"
            "done()\n",
            "one = 0.0\ntwo = 0.0\nfor x in y:\n    (loss := m(x)).backward()\n"
            "    s.scale(loss).backward()\n    one += loss.detach() * len(x)\n"
            "    two += loss.detach()\ntwo = float(two)\none = float(one)\ndone()\n",
        ),
    ],
    "no_sync": [
        (
            "import os\nfrom torch.nn.parallel import DistributedDataParallel as DDP\n"
            "model = DDP(net)\nfor micro in range(4):\n    x = rows()\n    # forward\n"
            "    loss = model(x)  # one\n    loss.backward()\n    log()\noptimizer.step()\n",
            "import os\nfrom contextlib import nullcontext\n"
            "from torch.nn.parallel import DistributedDataParallel as DDP\n"
            "model = DDP(net)\nfor micro in range(4):\n    x = rows()\n    # forward\n"
            "    with model.no_sync() if micro < 3 else nullcontext():\n"
            "        loss = model(x)  # one\n        loss.backward()\n    log()\n"
            "optimizer.step()\n",
        ),
    ],
    "checkpoint_every": [
        (
            "import torch\nfor step in range(N):\n    loss.backward()\n"
            "    # keep\n    torch.save(m.state_dict(), p)  # all\n",
            "import torch\nfor step in range(N):\n    loss.backward()\n    # keep\n"
            "    if step % 100 == 0 or step == N - 1:\n"
            "        torch.save(m.state_dict(), p)  # all\n",
        ),
    ],
    "log_every": [
        (
            "for x in y:\n    loss.backward()\n    w.add_histogram('a', x)\n"
            "    # b\n    w.add_histogram('b', x)\n",
            "for step, x in enumerate(y):\n    loss.backward()\n    if step % 100 == 0:\n"
            "        w.add_histogram('a', x)\n        # b\n        w.add_histogram('b', x)\n",
        ),
    ],
    "threads": [
        (
            "import torch\n# all of them\ntorch.set_num_threads(64)\nrun()\n",
            "import torch\n# all of them\nrun()\n",
        ),
    ],
    "compile": [
        (
            "from torch import nn, optim\nmodel = nn.Linear(2, 2)\nmodel.to('cuda')  # there\n"
            "o = optim.SGD(model.parameters())\n",
            "from torch import nn, optim\nmodel = nn.Linear(2, 2)\nmodel.to('cuda')  # there\n"
            "model.compile()\no = optim.SGD(model.parameters())\n",
        ),
    ],
    "optimizer_fused": [
        (
            "from torch import optim\no = optim.AdamW(p, lr=0.1)  # Adam\n",
            "from torch import optim\no = optim.AdamW(p, lr=0.1, fused=True)  # Adam\n",
        ),
    ],
    "cudnn_benchmark": [
        (
            "import torch\nlayer = torch.nn.Conv2d(1, 2, 3)\nif __name__ == '__main__':\n"
            "    main()\n",
            "import torch\nlayer = torch.nn.Conv2d(1, 2, 3)\nif __name__ == '__main__':\n"
            "    torch.backends.cudnn.benchmark = True\n    main()\n",
        ),
    ],
    "deterministic": [
        (
            "import torch\ntorch.use_deterministic_algorithms(True)\n"
            "torch.backends.cudnn.deterministic = True\nmain()\n",
            "import torch\nmain()\n",
        ),
    ],
}  # fmt: skip

ALONE = [
    ("loader_workers", "import torch\ntorch.utils.data.DataLoader(rows, **more)\n", "elsewhere"),
    ("loader_workers", ROWS + "DataLoader(Rows(), num_workers=n)\n", "decided elsewhere"),
    ("loader_workers", ROWS + "DataLoader(Rows(), worker_init_fn=f)\n", "worker_init_fn"),
    ("loader_workers", ROWS + "DataLoader(rows)\n", "IterableDataset"),
    (
        "loader_workers",
        "from torch.utils.data import DataLoader, IterableDataset\n"
        "class Rows(IterableDataset):\n    pass\nDataLoader(Rows())\n",
        "IterableDataset",
    ),
    (
        "loader_workers",
        "from torch.utils.data import *\nfrom torch.utils.data import DataLoader\n"
        "if fast:\n    from mine import DataLoader\nDataLoader(rows)\n",
        "another than that of torch",
    ),
    (
        "loader_workers",
        "from torch.utils.data import DataLoader, TensorDataset\nDataLoader(TensorDataset(x))\n",
        "in memory",
    ),
    (
        "loader_workers",
        ROWS + "    def __getitem__(self, i):\n        return x[i].cuda()\n",
        None,
    ),
    ("persistent_workers", ROWS + "DataLoader(Rows(), num_workers=n)\n", "may be 0"),
    (
        "persistent_workers",
        ROWS + "for e in x:\n    DataLoader(Rows(), num_workers=2)\n",
        "anew",
    ),
    (
        "persistent_workers",
        ROWS + "DataLoader(Rows(), num_workers=2)\nrows.set_epoch(1)\n",
        "set_epoch",
    ),
    ("anomaly_mode", "import torch\ntorch.autograd.set_detect_anomaly(on)\n", "elsewhere"),
    ("anomaly_mode", "import torch\ntorch.autograd.set_detect_anomaly(False)\n", None),
    (
        "anomaly_mode",
        "import torch\nwith torch.autograd.detect_anomaly(), other():\n    a()\n",
        "more than",
    ),
    ("empty_cache", "import torch\ntorch.cuda.empty_cache()\n", "no loop"),
    ("empty_cache", "import gc\nfor x in y:\n    n = gc.collect()\n", "something else"),
    (
        "empty_cache",
        "import gc\ngc.disable()\nfor x in y:\n    gc.collect()\n",
        "schedules",
    ),
    (
        "empty_cache",
        "import gc\nfor x in y:\n    if x % 9 == 0:\n        gc.collect()\n",
        "some passes",
    ),
    (
        "empty_cache",
        "import gc\nfor x in y:\n    try:\n        a()\n    except E:\n        gc.collect()\n",
        "error",
    ),
    ("empty_cache", "def f(gc):\n    for x in y:\n        gc.collect()\n", None),
    ("empty_cache", "import gc\ndef f(gc):\n    for x in y:\n        gc.collect()\n", None),
    ("optimizer_foreach", "import torch\ntorch.optim.SGD(p, **how)\n", "elsewhere"),
    ("optimizer_foreach", "import torch\ntorch.optim.SGD(p, foreach=f)\n", "elsewhere"),
    ("optimizer_foreach", "from mine import SGD\nSGD(p, foreach=False)\n", None),
    ("zero_grad", "o.zero_grad(set_to_none=False)\nprint(w.grad.norm())\n", ".grad"),
    (
        "loss_item",
        "t = 0.0\nfor x in y:\n    loss.backward()\n    t += loss.item()\n    print(t)\n",
        "read inside",
    ),
    ("pinned_copies", ROWS + "loader = DataLoader(Rows())\n", "no loop here"),
    (
        "pinned_copies",
        ROWS + "loader = DataLoader(Rows())\nfor x in loader:\n    x = x.to(torch.float16)\n",
        "no loop here",
    ),
    (
        "pinned_copies",
        ROWS + "loader = DataLoader(Rows(), pin_memory=p)\nfor x in loader:\n    x.cuda()\n",
        "decided elsewhere",
    ),
    ("matmul_precision", "import torch\ntorch.set_float32_matmul_precision(p)\n", "elsewhere"),
    ("matmul_precision", "import torch\nloss.backward()\n", "not clear"),
    (
        "matmul_precision",
        "import torch\ntorch.backends.cuda.matmul.allow_tf32 = False\nloss.backward()\n",
        "itself",
    ),
    (
        "unused_parameters",
        "import torch.nn.parallel as p\n"
        "p.DistributedDataParallel(n, find_unused_parameters=not fixed)\n",
        "elsewhere",
    ),
    ("loss_item", "t = 0.0\nfor x in y:\n    t += loss.item()\n", "not known"),
    ("loss_item", "for x in y:\n    loss.backward()\n    t += loss.item()\n", "start as 0.0"),
    ("loss_item", "t = 0.0\nfor x in y:\n    loss.backward()\n    log(loss.item())\n", "more"),
]


@pytest.fixture(autouse=True)
def three_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(said, "bounded_workers", lambda: 3)
    monkeypatch.setattr(cpus, "usable_cpus", lambda: 3)
    monkeypatch.setattr(threads, "_affinity", lambda: 3)


def change(name: str, code: str, start_method: str = "fork") -> Fixed:
    chosen = [c for c in CHANGES if name == c.NAME]
    assert chosen
    return fixed("train.py", code.encode(), chosen, start_method=start_method)


CASES = [(name, *both) for name, all_of in BOTH.items() for both in all_of]


@pytest.mark.parametrize(("name", "before", "after"), CASES)
def test_a_change_gives_the_code_written_by_hand_and_then_finds_nothing(
    name: str, before: str, after: str
) -> None:
    done = change(name, before)
    assert done.after.decode() == after
    assert done.done
    again = change(name, after)
    assert again.after == done.after
    assert not again.done


def test_every_change_has_a_case_and_names_causes_that_exist() -> None:
    from whyidle.causes import all_causes

    assert {c.NAME for c in CHANGES} == set(BOTH)
    for one in CHANGES:
        assert one.WHY.endswith(".")
        assert set(one.CAUSES) <= set(all_causes())


@pytest.mark.parametrize(("name", "code", "reason"), ALONE)
def test_a_place_that_is_not_understood_is_left_alone_with_its_reason(
    name: str, code: str, reason: str | None
) -> None:
    done = change(name, code)
    assert done.after.decode() == code
    assert not done.done
    if reason is None:
        assert not done.left
    else:
        assert [t for t in done.left if reason in t.what], done.left


def test_workers_under_spawn_need_a_guarded_entry() -> None:
    bare = ROWS + "loader = DataLoader(Rows())\n"
    assert "__main__" in change("loader_workers", bare, "spawn").left[0].what
    guarded = ROWS + textwrap.dedent("""
        def main():
            loader = DataLoader(Rows())
        if __name__ == "__main__":
            main()
        """)
    assert b"num_workers=3" in change("loader_workers", guarded, "spawn").after


def test_a_data_set_that_uses_a_device_gets_no_workers() -> None:
    code = ROWS.replace("pass", "def __getitem__(self, i):\n        return x[i].cuda()")
    done = change("loader_workers", code + "DataLoader(Rows())\n")
    assert not done.done
    assert "device" in done.left[0].what


def test_all_changes_together_name_lines_of_the_file_as_it_is() -> None:
    code = (
        "import gc\nimport torch\ntorch.autograd.set_detect_anomaly(True)\n"
        "o = torch.optim.SGD(p, foreach=False)\nfor x in y:\n    gc.collect()\n"
        "    o.zero_grad(set_to_none=False)\n"
    )
    done = fixed("train.py", code.encode(), asked(CHANGES, None, None))
    assert [(t.line, t.change) for t in done.done] == [
        (3, "anomaly_mode"),
        (4, "optimizer_foreach"),
        (6, "empty_cache"),
        (7, "zero_grad"),
    ]


def test_a_named_line_wins_over_other_places() -> None:
    code = "import gc\nfor x in y:\n    gc.collect()\n    a()\n    gc.collect()\n"
    done = fixed("train.py", code.encode(), CHANGES, named=[5])
    assert done.after.decode() == "import gc\nfor x in y:\n    gc.collect()\n    a()\n"
    assert (done.left[0].line, done.left[0].what) == (3, "the diagnosis points at other lines")
