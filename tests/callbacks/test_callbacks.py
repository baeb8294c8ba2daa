"""Callbacks tell one step per optimizer step, in the real frameworks where they are installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from tests.observe.jobs import events, observe

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PYTHON = os.environ.get("WHYIDLE_FRAMEWORKS", sys.executable)
"""A Python that has the frameworks, which the tests of this repository do not install."""


def has(module: str) -> bool:
    asked = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    return subprocess.run([PYTHON, "-c", asked], check=False).returncode == 0


def needs(module: str) -> None:
    if not has(module):
        pytest.skip(f"{module} is not installed; WHYIDLE_FRAMEWORKS can name a Python that has it")


class Steps(ModuleType):
    """Stands where the hook of ``whyidle run`` is; counts what it is told."""

    def __init__(self) -> None:
        super().__init__("_whyidle_hook")
        self.told = 0
        self.announced = 0
        self.evaluations: list[bool] = []

    def step(self) -> None:
        self.told += 1

    def steps_will_be_said(self) -> None:
        self.announced += 1

    def evaluation(self, begins: bool) -> None:
        self.evaluations.append(begins)


def test_a_batch_that_only_accumulates_is_no_step(monkeypatch: pytest.MonkeyPatch) -> None:
    from whyidle.callbacks import LightningSteps

    hook = Steps()
    monkeypatch.setitem(sys.modules, "_whyidle_hook", hook)
    told = LightningSteps()
    trainer = SimpleNamespace(global_step=100)  # resumed
    told.on_train_start(trainer, None)
    seen = []
    for batch, now in enumerate([100, 101, 101, 103, 103, 104]):
        trainer.global_step = now
        told.on_train_batch_end(trainer, None, None, None, batch)
        seen.append(hook.told)
    assert seen == [0, 1, 1, 2, 2, 3]
    assert hook.announced == 1


def test_evaluations_of_lightning_begin_and_end(monkeypatch: pytest.MonkeyPatch) -> None:
    from whyidle.callbacks import LightningSteps

    hook = Steps()
    monkeypatch.setitem(sys.modules, "_whyidle_hook", hook)
    told = LightningSteps()
    told.on_validation_start(None, None)
    told.on_validation_end(None, None)
    assert hook.evaluations == [True, False]


def test_a_step_of_the_trainer_is_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    from whyidle.callbacks import TrainerSteps

    hook = Steps()
    monkeypatch.setitem(sys.modules, "_whyidle_hook", hook)
    told = TrainerSteps()
    told.on_train_begin(None, None, None, model=None)
    for _ in range(3):
        told.on_step_end(None, None, None, model=None)
    assert (hook.told, hook.announced) == (3, 1)


def test_outside_a_run_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    from whyidle.callbacks import LightningSteps, TrainerSteps

    monkeypatch.delitem(sys.modules, "_whyidle_hook", raising=False)
    TrainerSteps().on_step_end(None, None, None)
    LightningSteps().on_train_batch_end(SimpleNamespace(global_step=1), None, None, None, 0)


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("LightningCallback", "pip install lightning"),
        ("TrainerCallback", "pip install 'transformers[torch]'"),
    ],
)
def test_without_the_framework_a_sentence_says_what_to_install(name: str, advice: str) -> None:
    code = (
        "import sys\n"
        "for name in ('lightning', 'pytorch_lightning', 'transformers'):\n"
        "    sys.modules[name] = None\n"
        "import whyidle.callbacks\n"
        "assert 'torch' not in sys.modules and 'polars' not in sys.modules\n"
        f"from whyidle.callbacks import {name}\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=_with_source(),
        check=False,
    )
    assert done.returncode == 1
    assert f"ImportError: whyidle.callbacks.{name} needs" in done.stderr
    assert advice in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["lightning", "pytorch_lightning"])
def test_lightning_tells_its_optimizer_steps(framework: str, tmp_path: Path) -> None:
    needs(framework)
    job = str(HERE / "lightning_job.py")
    ran = observe(tmp_path, PYTHON, job, framework, options=("--no-profile",), **_with_source())
    _twelve_steps(ran, tmp_path)


@pytest.mark.slow
def test_the_trainer_tells_its_optimizer_steps(tmp_path: Path) -> None:
    needs("transformers")
    job = str(HERE / "trainer_job.py")
    where = str(tmp_path / "out")
    ran = observe(tmp_path, PYTHON, job, where, options=("--no-profile",), **_with_source())
    _twelve_steps(ran, tmp_path)


@pytest.mark.slow
def test_a_callback_can_be_pickled_for_processes_of_its_own() -> None:
    needs("lightning")
    code = (
        "import pickle\nfrom whyidle.callbacks import LightningCallback as made\n"
        "assert type(pickle.loads(pickle.dumps(made()))) is made\n"
        "from lightning.pytorch import Callback\nassert issubclass(made, Callback)\n"
    )
    done = subprocess.run(
        [PYTHON, "-c", code], capture_output=True, text=True, env=_with_source(), check=False
    )
    assert done.returncode == 0, done.stderr


def _twelve_steps(ran: subprocess.CompletedProcess[str], folder: Path) -> None:
    assert ran.returncode == 0, ran.stderr
    assert "optimizer steps 12" in ran.stdout
    told = [row for event in events(folder, "steps") for row in event["rows"]]
    assert [row[0] for row in told] == list(range(12))
    pauses = [row for event in events(folder, "pauses") for row in event["rows"]]
    assert [row[0] for row in pauses].count("evaluation") >= 3


def _with_source() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT / "src"), "HF_HUB_OFFLINE": "1"}
