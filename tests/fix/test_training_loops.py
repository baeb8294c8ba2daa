"""Changes of training loops: what they understand, what they leave alone, and that results stay."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytest.importorskip("libcst", reason="needs the fix extra")

from whyidle.executor import cpus
from whyidle.fix import said, threads
from whyidle.fix.catalogue import CHANGES
from whyidle.fix.one_file import fixed
from whyidle.fix.said import NOTHING, Said
from whyidle.fix.told import Fixed

DDP = "import torch\nfrom torch.nn.parallel import DistributedDataParallel as DDP\n"
WRAPPED = DDP + "model = DDP(net)\n"


def change(name: str, code: str, about: Said = NOTHING) -> Fixed:
    chosen = [c for c in CHANGES if name == c.NAME]
    done = fixed("train.py", code.encode(), chosen, said=about)
    again = fixed("train.py", done.after, chosen, said=about)
    assert again.after == done.after, "a second run must find nothing"
    return done


def code(text: str) -> str:
    return textwrap.dedent(text).lstrip()


def test_every_nth_batch_reduces_with_the_condition_of_its_own_step() -> None:
    loop = code("""
        for i, x in enumerate(loader):
            loss = model(x)
            scaler.scale(loss).backward()
            if (i + 1) % 4 == 0:
                scaler.step(optimizer)
    """)
    after = change("no_sync", WRAPPED + loop).after.decode()
    assert "    with model.no_sync() if (i + 1) % 4 != 0 else nullcontext():\n" in after
    other = loop.replace("% 4 == 0", "% 4 == 0 or i + 1 == len(loader)")
    after = change("no_sync", WRAPPED + other).after.decode()
    assert "no_sync() if not ((i + 1) % 4 == 0 or i + 1 == len(loader)) else null" in after


def test_a_wrapped_model_is_followed_into_the_function_that_trains_it() -> None:
    text = DDP + code("""
        def train(net, optimizer):
            for _ in range(STEPS):
                for _ in range(MICRO):
                    net(x).backward()
                optimizer.step()

        def main():
            model = DDP(made())
            train(model, optimizer)
    """)
    after = change("no_sync", text).after.decode()
    assert "        for micro in range(MICRO):\n" in after
    assert "            with net.no_sync() if micro < MICRO - 1 else nullcontext():\n" in after
    plain = text.replace("train(model, ", "train(made(), ")
    assert change("no_sync", plain).after.decode() == plain


LOOP = """
for micro in range(4):
    loss = model(x)
    loss.backward()
optimizer.step()
"""


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (DDP + "if many:\n    model = DDP(net)\n" + LOOP, "only in some runs"),
        (DDP + "model = DDP(net) if many else net\n" + LOOP, "something else"),
        (DDP + "model = DDP(net, find_unused_parameters=True)\n" + LOOP, "unused"),
        (DDP + "model = DDP(net, static_graph=True)\n" + LOOP, "static_graph"),
        (WRAPPED + LOOP.replace("loss.backward()\n", "loss.backward()\n    break\n"), "early"),
        (
            WRAPPED
            + LOOP.replace("loss.backward()\n", "loss.backward()\n    clip_grad_norm_(p)\n"),
            "gradients of each",
        ),
        (WRAPPED + LOOP.replace("range(4)", "batches"), "not known"),
        (WRAPPED + "model.register_comm_hook(s, h)\n" + LOOP, "hook"),
        (
            WRAPPED
            + "for i, x in enumerate(y):\n    model(x).backward()\n"
            + "    if i % 4 == 0:\n        optimizer.step()\noptimizer.step()\n",
            "another step",
        ),
        (
            WRAPPED
            + "for x in y:\n    model(x).backward()\n    n += 1\n"
            + "    if n % 4 == 0:\n        optimizer.step()\n",
            "when it begins",
        ),
    ],
)
def test_gradients_that_may_be_needed_in_between_are_reduced_as_before(
    text: str, reason: str
) -> None:
    done = change("no_sync", text)
    assert done.after.decode() == text
    assert [t for t in done.left if reason in t.what], done.left


def test_a_step_for_each_batch_is_no_accumulation() -> None:
    text = WRAPPED + "for x in y:\n    model(x).backward()\n    optimizer.step()\n"
    done = change("no_sync", text)
    assert done.after.decode() == text
    assert not done.left


def test_what_is_made_for_a_checkpoint_only_is_made_as_rarely() -> None:
    text = "import torch\n" + code("""
        for epoch in range(3):
            for x, y in loader:
                loss.backward()
                if rank == 0:
                    state = {"model": model.state_dict()}
                    torch.save(state, "last.pt")
    """)
    assert change("checkpoint_every", text).after.decode() == "import torch\n" + code("""
        for epoch in range(3):
            for step, (x, y) in enumerate(loader):
                loss.backward()
                if rank == 0:
                    if step % 100 == 0:
                        state = {"model": model.state_dict()}
                        torch.save(state, "last.pt")
            if rank == 0:
                state = {"model": model.state_dict()}
                torch.save(state, "last.pt")
    """)


def test_a_save_after_the_loop_is_not_doubled() -> None:
    text = "import torch\n" + code("""
        while True:
            step += 1
            loss.backward()
            torch.save(model.state_dict(), path)
            if done():
                break
        torch.save(model.state_dict(), path)
    """)
    after = change("checkpoint_every", text).after.decode()
    assert "    if step % 100 == 0:\n        torch.save(model.state_dict(), path)\n" in after
    assert after.count("torch.save") == 2


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("if loss < best:\n        torch.save(m, p)", "condition"),
        ("if i % 9 == 0:\n        torch.save(m, p)", "condition"),
        ("torch.save({'loss': loss}, p)\n    if late:\n        break", "could not be kept"),
        ("try:\n        torch.save(m, p)\n    except OSError:\n        pass", "error"),
        ("with open(p) as f:\n        f.write(b)\n        torch.save(m, f)", "more than save"),
    ],
)
def test_checkpoints_with_a_purpose_are_left(body: str, reason: str) -> None:
    loop = "import torch\nfor i, x in enumerate(y):\n    loss = f(x)\n    loss.backward()\n"
    text = f"{loop}    {body}\n"
    done = change("checkpoint_every", text)
    assert done.after.decode() == text
    assert [t for t in done.left if reason in t.what], done.left


def test_a_checkpoint_for_each_epoch_is_fine() -> None:
    loop = "import torch\nfor e in range(3):\n    for x in y:\n        loss.backward()\n"
    text = f"{loop}    torch.save(m, p)\n"
    done = change("checkpoint_every", text)
    assert done.after.decode() == text
    assert not done.left


def test_a_loop_over_weights_that_only_logs_is_guarded_whole() -> None:
    text = code("""
        for i, x in enumerate(loader):
            loss.backward()
            for name, weight in model.named_parameters():
                writer.add_histogram(name, weight, i)
    """)
    assert change("log_every", text).after.decode() == code("""
        for i, x in enumerate(loader):
            loss.backward()
            if i % 100 == 0:
                for name, weight in model.named_parameters():
                    writer.add_histogram(name, weight, i)
    """)


def test_threads_below_a_quota_are_bounded_and_few_ones_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cpus, "usable_cpus", lambda: 2)
    monkeypatch.setattr(threads, "_affinity", lambda: 16)
    text = "import torch\ntorch.set_num_threads(8)  # half\n"
    after = change("threads", text).after.decode()
    assert after == "import torch\ntorch.set_num_threads(2)  # half\n"
    monkeypatch.setattr(cpus, "usable_cpus", lambda: 8)
    done = change("threads", text)
    assert done.after.decode() == text
    assert not done.left
    assert "elsewhere" in change("threads", text.replace("8", "n")).left[0].what


ONE_WORKER = (
    "from torch.utils.data import DataLoader\n"
    "loader = DataLoader(rows, shuffle=True, num_workers=1, prefetch_factor=4)\n"
)
TOO_FEW = frozenset({"data_loading.loader_workers_too_few"})


def test_more_workers_only_where_a_diagnosis_asks_and_as_many_as_it_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(said, "bounded_workers", lambda: 6)
    assert change("loader_workers", ONE_WORKER).after.decode() == ONE_WORKER
    for workers, expected in [(None, 6), (4, 4), (8, 8), (32, 16)]:
        done = change("loader_workers", ONE_WORKER, Said(TOO_FEW, workers))
        assert f"num_workers={expected}, prefetch" in done.after.decode()
    full = change("loader_workers", ONE_WORKER.replace("=1", "=6"), Said(TOO_FEW))
    assert not full.done
    assert "the most" in full.left[0].what


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("import torch\no = torch.optim.SGD(m.parameters())\n", "made elsewhere"),
        ("import torch\nm = made()\no = torch.optim.SGD(m.parameters())\n", "not known"),
        ("import torch\no = torch.optim.SGD([a, b])\n", "one plain model"),
    ],
)
def test_only_what_is_a_module_for_sure_is_compiled(text: str, reason: str) -> None:
    done = change("compile", text)
    assert done.after.decode() == text
    assert reason in done.left[0].what


def test_a_model_wrapped_in_some_runs_is_compiled_after_that() -> None:
    text = DDP + code("""
        class Net(torch.nn.Module):
            pass

        def main():
            model = Net().to(device)
            if many:
                model = DDP(model)
            o = torch.optim.SGD(model.parameters())
    """)
    after = change("compile", text).after.decode()
    assert "        model = DDP(model)\n    model.compile()\n    o = " in after


def test_a_search_that_was_diagnosed_is_switched_off() -> None:
    text = "import torch\ntorch.backends.cudnn.benchmark = True  # fast\n"
    assert change("cudnn_benchmark", text).after.decode() == text
    found = Said(frozenset({"model_design.cudnn_benchmark_mismatch"}))
    after = change("cudnn_benchmark", text, found).after.decode()
    assert after == "import torch\ntorch.backends.cudnn.benchmark = False  # fast\n"


SCRIPT = code("""
    import os
    import tempfile
    import torch
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    def main():
        torch.manual_seed(0)
        path = os.path.join(tempfile.mkdtemp(), "one")
        where = f"file://{path}"
        torch.distributed.init_process_group("gloo", where, rank=0, world_size=1)
        model = DistributedDataParallel(nn.Linear(4, 4))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        for step in range(5):
            optimizer.zero_grad()
            for _ in range(3):
                loss = model(torch.randn(2, 4)).square().mean()
                loss.backward()
            optimizer.step()
            torch.save({"step": step, "model": model.state_dict()}, path + ".pt")
        saved = torch.load(path + ".pt")
        assert saved["step"] == 4
        print(sorted(saved["model"]), [round(w.sum().item(), 4) for w in saved["model"].values()])
        torch.distributed.destroy_process_group()

    if __name__ == "__main__":
        main()
""")


def test_a_changed_script_runs_and_trains_to_the_same_weights(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="needs torch")
    names = {"no_sync", "checkpoint_every", "compile", "optimizer_fused"}
    chosen = [c for c in CHANGES if c.NAME in names]
    done = fixed("train.py", SCRIPT.encode(), chosen)
    assert {t.change for t in done.done} == names
    outputs = []
    for name, text in [("before", SCRIPT.encode()), ("after", done.after)]:
        path = tmp_path / f"{name}.py"
        path.write_bytes(text)
        ran = subprocess.run(
            [sys.executable, path],
            capture_output=True,
            text=True,
            check=False,
            env={"TORCHDYNAMO_DISABLE": "1", "PATH": "", "OMP_NUM_THREADS": "1"},
        )
        assert ran.returncode == 0, ran.stderr
        outputs.append(ran.stdout)
    assert outputs[0] == outputs[1]
    assert "module.weight" in outputs[0]
