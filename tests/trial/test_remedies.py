"""Remedies in real jobs: each has the effect that the job itself sees, or says why not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.trial.remedy_jobs import IMAGES, PARALLEL, PLAIN, SUBCLASSED, run
from tests.trial.try_jobs import tried, verdicts
from whyidle.trial.try_table import REMEDIES, Place

ALL = {remedy.name: [*remedy.values(Place(2)), True][0] for remedy in REMEDIES}


def test_a_dry_run_changes_nothing_and_tells_what_could_act(tmp_path: Path) -> None:
    plain = run(tmp_path / "plain", PLAIN, {"seed": 3})
    dry = run(tmp_path / "dry", PLAIN, {"seed": 3, **ALL}, dry=True)
    assert dry.told == plain.told
    assert plain.told["anomaly"] and plain.told["collected"]
    assert not dry.problems
    assert not any(dry.applied(name) for name in ALL)
    could = {name for name in ALL if dry.could(name)}
    assert could >= {
        "loader_workers",
        "no_anomaly",
        "no_empty_cache",
        "gc_schedule",
        "checkpoint_every",
        "foreach",
        "fused",
        "zero_grad",
        "threads",
        "bf16",
        "gradient_checkpointing",
        "batch_size",
    }
    for name in ("tf32", "cudnn_benchmark", "cuda_graphs", "pin_memory", "matmul_precision"):
        assert dry.why(name) == "no GPU"
    assert dry.why("channels_last") == "the model has no Conv2d"
    assert dry.why("persistent_workers") == "a loader without workers has none to keep"
    assert {"no_sync", "ddp_flags"}.isdisjoint(could)


def test_what_a_job_set_itself_is_overridden(tmp_path: Path) -> None:
    asked = {
        "seed": 0,
        "loader_workers": 1,
        "no_anomaly": True,
        "threads": 1,
        "foreach": True,
        "zero_grad": True,
        "no_empty_cache": True,
        "gc_schedule": 12_345,
        "checkpoint_every": 3,
        "batch_size": 2,
    }
    job = run(tmp_path, PLAIN, asked)
    assert all(job.applied(name) for name in asked), [n for n in asked if not job.applied(n)]
    assert not job.problems
    told = job.told
    assert (told["workers"], told["persistent"]) == (1, True)
    assert (told["batch_size"], told["lr"]) == (16, 0.02)
    assert (told["anomaly"], told["threads"], told["foreach"]) == (False, 1, True)
    assert told["dropped"] and not told["collected"]
    assert told["frozen"] > 1000 and told["threshold"] == 12_345
    assert (
        told["checkpoints"] == 2
    )  # of four batches: the first, and the third after training began


@pytest.mark.slow
def test_the_fused_optimizer_trains_the_same(tmp_path: Path) -> None:
    plain = run(tmp_path / "plain", PLAIN, {"seed": 0})
    fused = run(tmp_path / "fused", PLAIN, {"seed": 0, "fused": True})
    assert fused.applied("fused")
    assert (fused.told["fused"], fused.told["foreach"]) == (True, None)
    assert fused.told["loss"] == pytest.approx(plain.told["loss"], rel=1e-4)


@pytest.mark.slow
def test_autocast_and_channels_last_reach_the_model_and_outputs_stay_float(tmp_path: Path) -> None:
    job = run(tmp_path, IMAGES, {"bf16": True, "channels_last": True})
    assert job.applied("bf16") and job.applied("channels_last")
    assert job.told["type"] == "torch.bfloat16"
    assert job.told["last"] is True
    assert job.told["out"] == "torch.float32"
    assert job.told["passes"] == 4


@pytest.mark.slow
def test_checkpointed_layers_run_again_in_the_backward_pass(tmp_path: Path) -> None:
    job = run(tmp_path, IMAGES, {"gradient_checkpointing": True})
    assert job.applied("gradient_checkpointing")
    assert job.told["runs"] == 2 * job.told["passes"] == 8


@pytest.mark.slow
def test_the_model_is_compiled_or_it_is_told_why_not(tmp_path: Path) -> None:
    """The compiler itself is switched off, since it takes long: torch then runs the model as is."""
    job = run(tmp_path, IMAGES, {"compile": True}, variables={"TORCHDYNAMO_DISABLE": "1"})
    if job.applied("compile"):
        assert job.told["compiled"] is True
    else:
        assert "no C++ compiler" in job.why("compile")
        assert job.told["compiled"] is False


def test_a_stream_that_would_repeat_its_samples_gets_no_workers(tmp_path: Path) -> None:
    job = run(tmp_path, SUBCLASSED, {"loader_workers": 2})
    assert job.told["seen"] == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    assert not job.applied("loader_workers")
    assert "repeat its samples" in job.why("loader_workers")


def test_only_the_last_backward_pass_of_a_step_exchanges_gradients(tmp_path: Path) -> None:
    """The last step ends early, with two passes of four: nothing exchanged may be lost."""
    plain = run(tmp_path / "plain", PARALLEL, {}, ranks=2)
    assert plain.told["exchanges"] == [4, 4, 4, 4, 4, 2]
    asked = {"no_sync": True, "ddp_flags": "find_unused_parameters+gradient_as_bucket_view"}
    job = run(tmp_path / "remedied", PARALLEL, asked, ranks=2)
    assert job.applied("no_sync") and job.applied("ddp_flags")
    assert job.told["exchanges"] == [4, 4, 1, 1, 1, 0]
    assert (job.told["unused"], job.told["view"]) == (False, True)
    assert job.told["weights"] == pytest.approx(plain.told["weights"], rel=1e-5)
    assert not job.problems


def test_a_remedy_that_is_not_known_harms_nothing(tmp_path: Path) -> None:
    job = run(tmp_path, SUBCLASSED, {"magic": True})
    assert "does not know it" in job.why("magic")


SLEEPY = """
import time, torch
from torch.utils.data import DataLoader, Dataset

class Sleepy(Dataset):
    def __len__(self):
        return 200
    def __getitem__(self, i):
        time.sleep(0.02)
        return torch.full((4,), i / 200), torch.tensor([1.0])

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for numbers, target in DataLoader(Sleepy(), batch_size=8):
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(numbers), target).backward()
    optimizer.step()
"""


def test_workers_for_a_data_set_that_sleeps_are_found_to_pay(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SLEEPY, encoding="utf-8")
    words = ("--quiet", "--remedies", "loader_workers=4", "--pairs", "3", "--steps", "10")
    trial = tried(tmp_path, [sys.executable, str(script)], *words)
    assert verdicts(trial) == {"loader_workers=4": "pays"}
    (found,) = trial["remedies"]
    assert found["took_effect"] == ["num_workers=4 instead of 0"]
    assert found["loss"]["verdict"] == "within tolerance"
    assert found["keep"].endswith("train.py --only loader_workers")
