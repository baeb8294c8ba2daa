"""Settings: known values change at their own characters, in files, calls and on command lines."""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("yaml", reason="needs the fix extra")
pytest.importorskip("libcst", reason="needs the fix extra")

from whyidle.causes import all_causes
from whyidle.errors import UsageError
from whyidle.fix import command, said
from whyidle.fix.asked import asked
from whyidle.fix.one_file import fixed
from whyidle.fix.said import NOTHING, Said
from whyidle.fix.settings import files
from whyidle.fix.settings.command_line import changed
from whyidle.fix.settings.keywords import Keywords
from whyidle.fix.settings.table import ROWS, WORKERS, same

EVERY = asked(ROWS, {row.NAME for row in ROWS}, None)
"""Rows as with --only and all names."""

HF = """\
# the run
output_dir: out   # here
learning_rate: 5e-5
num_train_epochs: 3
dataloader_num_workers: 0  # later
dataloader_pin_memory: False
bf16: no
save_steps: '5'
logging_steps: 1
torch_empty_cache_steps: 4
ddp_find_unused_parameters: true
run_name: "a: b"
"""

LIGHTNING = """\
seed_everything: 1
trainer:
  precision: 32-true   # all bits
  detect_anomaly: on
  strategy: "ddp_find_unused_parameters_true"
  profiler: simple
data:
  class_path: mine.Data
  init_args: {num_workers: 0, persistent_workers: false}
"""

DEEPSPEED = """{
\t"train_batch_size": 8,
\t"fp16": {"enabled": false}, "bf16": {"enabled": false},
\t"zero_optimization": { "stage": 2, "overlap_comm" : false ,
\t\t"reduce_bucket_size": 5000000, "note": "\\"overlap_comm\\": {[ false" },
\t"wall_clock_breakdown": true
}
"""


@pytest.fixture(autouse=True)
def three_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(said, "bounded_workers", lambda: 3)


def changed_file(name: str, text: str, unsafe: bool = True) -> files.Fixed:
    done = files.fixed(name, text.encode(), EVERY, NOTHING, unsafe)
    assert files.fixed(name, done.after, EVERY, NOTHING, unsafe).after == done.after
    return done


def test_yaml_keeps_its_comments_quotes_and_order() -> None:
    done = changed_file("args.yaml", HF)
    assert done.after.decode() == HF.replace("workers: 0 ", "workers: 3 ").replace(
        "pin_memory: False", "pin_memory: True"
    ).replace("bf16: no", "bf16: true").replace("logging_steps: 1", "logging_steps: 50").replace(
        "cache_steps: 4", "cache_steps: null"
    ).replace("parameters: true", "parameters: false")
    assert [t.line for t in done.done] == [5, 6, 7, 9, 10, 11]
    assert any("not known here" in t.what and "run_name" in t.what for t in done.left)


def test_line_ends_and_a_mark_at_the_start_stay() -> None:
    text = "\ufeff" + HF.replace("\n", "\r\n")
    after = changed_file("args.yml", text).after.decode()
    assert after == "\ufeff" + changed_file("args.yml", HF).after.decode().replace("\n", "\r\n")


def test_lightning_settings_are_known_below_trainer_and_data() -> None:
    after = changed_file("config.yaml", LIGHTNING).after.decode()
    assert "  precision: bf16-mixed   # all bits\n" in after
    assert "  detect_anomaly: false\n" in after
    assert '  strategy: "ddp"\n' in after
    assert "  profiler: null\n" in after
    assert "  init_args: {num_workers: 3, persistent_workers: true}\n" in after


def test_json_changes_only_characters_of_values() -> None:
    after = changed_file("ds.json", DEEPSPEED).after.decode()
    assert after == DEEPSPEED.replace(
        '"bf16": {"enabled": false}', '"bf16": {"enabled": true}', 1
    ).replace('"overlap_comm" : false', '"overlap_comm" : true').replace(
        "5000000,", "500000000,"
    ).replace('breakdown": true', 'breakdown": false')
    assert json.loads(after)["zero_optimization"]["note"] == '"overlap_comm": {[ false'


def test_unsafe_settings_wait_and_say_why() -> None:
    done = changed_file("ds.json", DEEPSPEED, unsafe=False)
    assert [t.what for t in done.done] == ["wall_clock_breakdown: true -> false"]
    assert any("overlap_comm: needs --unsafe: Gradients" in t.what for t in done.left)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (HF.replace("bf16: no", "bf16: false\nfp16: true"), "bf16: fp16 is true"),
        (HF.replace("workers: 0 ", "workers: &n 0 ") + "other: *n\n", "shared by an anchor"),
        (HF.replace("logging_steps: 1", "logging_steps: 1\nlogging_steps: 1"), "twice"),
        (HF + "dataloader_persistent_workers: false\nx: 1\n", None),
        (HF.replace("workers: 0 ", "workers: 3 ") + "save_strategy: epoch\n", None),
    ],
)
def test_a_value_that_means_more_than_its_key_is_left(text: str, reason: str | None) -> None:
    done = changed_file("args.yaml", text)
    assert reason is None or [t for t in done.left if reason in t.what], done.left
    yaml = pytest.importorskip("yaml")
    before, after = yaml.safe_load(text), yaml.safe_load(done.after.decode())
    assert list(before) == list(after)


def test_workers_that_live_on_need_workers() -> None:
    text = LIGHTNING.replace("num_workers: 0", "num_workers: none")
    done = changed_file("c.yaml", text)
    assert any("needs data.init_args.num_workers above 0" in t.what for t in done.left)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.yaml", "a: [1\n"),
        ("a.yaml", "a: 1\n---\nb: 2\n"),
        ("a.yaml", "[" * 3000),
        ("a.json", "{"),
        ("a.json", "[" * 100_000),
        ("a.json", '{"a": NaN,}'),
    ],
)
def test_a_file_that_cannot_be_read_is_a_sentence(name: str, text: str) -> None:
    with pytest.raises(UsageError, match=rf"a\.{name[2:]}"):
        files.fixed(name, text.encode(), EVERY, NOTHING, True)


def test_many_aliases_cost_little() -> None:
    lines = ["a0: &a0 [x, x]"] + [f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 60)]
    with pytest.raises(UsageError, match="values"):
        files.fixed("a.yaml", "\n".join(lines).encode(), EVERY, NOTHING, True)


def test_settings_of_no_known_framework_are_left_and_said_so() -> None:
    done = changed_file("a.yaml", "num_workers: 0\nbatch_size: 3\n")
    assert done.after == done.before
    assert "no framework that is known" in done.left[0].what


SOURCE = """\
from transformers import TrainingArguments
import lightning as L
args = TrainingArguments(
    "out",
    bf16=False,  # later
    dataloader_pin_memory=False,
    save_steps=steps,
)
trainer = L.Trainer(detect_anomaly=True, precision="32-true")
"""


def test_keywords_of_trainers_change_as_in_their_files() -> None:
    rows = Keywords(EVERY, unsafe=True)
    done = fixed("t.py", SOURCE.encode(), [rows])
    assert done.after.decode() == SOURCE.replace("bf16=False", "bf16=True").replace(
        "pin_memory=False", "pin_memory=True"
    ).replace("detect_anomaly=True", "detect_anomaly=False").replace("32-true", "bf16-mixed")
    assert not fixed("t.py", done.after, [rows]).done


def test_a_diagnosis_adds_workers_that_nobody_mentioned() -> None:
    found = Said(frozenset({"data_loading.loader_workers_too_few"}))
    done = fixed("t.py", SOURCE.encode(), [Keywords(EVERY, unsafe=True)], said=found)
    assert "    save_steps=steps,\n    dataloader_num_workers=3,\n)" in done.after.decode()
    open_call = SOURCE.replace('"out"', "*more")
    done = fixed("t.py", open_call.encode(), [Keywords(EVERY, unsafe=True)], said=found)
    assert "num_workers" not in done.after.decode()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "python run.py --dataloader_num_workers 0 --name 'a b'",
            "python run.py --dataloader_num_workers 3 --name 'a b'",
        ),
        (
            "torchrun -n 2 run.py --dataloader-num-workers=0 --bf16 False \\\n -x $Y",
            "torchrun -n 2 run.py --dataloader-num-workers=3 --bf16 True \\\n -x $Y",
        ),
        (
            "python run.py --save_steps 500 --torch_empty_cache_steps 4 --full_determinism | tee l",
            "python run.py --save_steps 500 --full_determinism False | tee l",
        ),
        (
            "python main.py fit --trainer.precision 32 --data.num_workers=0",
            "python main.py fit --trainer.precision bf16-mixed --data.num_workers=3",
        ),
        (
            "CUDA_LAUNCH_BLOCKING=1 A='1 2' python t.py",
            "CUDA_LAUNCH_BLOCKING=0 A='1 2' python t.py",
        ),
        ("python train.py --lr 0.1 --debug underflow_overflow", None),
    ],
)
def test_a_command_keeps_all_but_the_known_values(line: str, expected: str | None) -> None:
    found = changed(line, EVERY, NOTHING, unsafe=True)
    assert found.command == (expected or line)
    assert bool(found.done) == (expected is not None)
    again = changed(found.command, EVERY, NOTHING, unsafe=True)
    assert again.command == found.command


def test_a_diagnosis_adds_an_option_only_where_a_command_ends_plainly() -> None:
    about = Said(frozenset({"data_loading.loader_workers_too_few"}), 2)
    line = "python run.py --per_device_train_batch_size 8"
    assert changed(line, EVERY, about, True).command == f"{line} --dataloader_num_workers 2"
    piped = changed(f"{line} | tee log", EVERY, about, True)
    assert piped.command == f"{line} | tee log"
    assert any("where the command ends" in told for told in piped.left)


def test_an_unfinished_quote_is_a_sentence() -> None:
    with pytest.raises(UsageError, match="shell"):
        changed("python 'a", EVERY, NOTHING, True)


def test_rows_name_causes_that_exist_and_new_values_are_not_bad() -> None:
    for row in ROWS:
        assert set(row.CAUSES) <= set(all_causes()), row.key
        assert row.WHY.endswith(".")
        assert row.new == WORKERS or not row.bad(row.new), row.key
    assert not same(1, True)


def fix(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    command.add(parser)
    return command.run(parser.parse_args(arguments))


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_one_diff_of_source_and_settings_outside_the_folder_applies_and_undoes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    job, here = tmp_path / "my job", tmp_path / "here"
    (job / "conf").mkdir(parents=True)
    here.mkdir()
    subprocess.run(["git", "init", "-q", str(job)], check=True)
    texts = {
        "train.py": "import gc\nfor x in y:\n    a()\n    gc.collect()\n",
        "conf/ds.json": DEEPSPEED,
    }
    for name, text in texts.items():
        (job / name).write_text(text)
    monkeypatch.chdir(here)
    assert fix("../my job/train.py", str(job / "conf/ds.json")) == 0
    out, err = capfd.readouterr()
    assert "b/train.py\n" in out
    assert "b/conf/ds.json\n" in out
    assert f"git -C '{job}' apply" in err
    (here / "change.diff").write_text(out)
    git = ["git", "-C", str(job), "apply"]
    subprocess.run([*git, str(here / "change.diff")], check=True)
    assert "collect()" not in (job / "train.py").read_text()
    assert '"wall_clock_breakdown": false' in (job / "conf/ds.json").read_text()
    subprocess.run([*git, "-R", str(here / "change.diff")], check=True)
    assert {name: (job / name).read_text() for name in texts} == texts


def test_a_command_is_printed_changed(capfd: pytest.CaptureFixture[str]) -> None:
    assert fix("--command", "python run.py --dataloader_num_workers 0", "--unsafe") == 0
    out, err = capfd.readouterr()
    assert out == "python run.py --dataloader_num_workers 3\n"
    assert "--dataloader_num_workers: 0 -> 3 (loader_workers)" in err
    for wrong in (["--command", "x", "a.py"], ["--command", "x", "--apply"]):
        with pytest.raises(UsageError):
            fix(*wrong)
