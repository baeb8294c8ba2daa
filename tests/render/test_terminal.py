"""The screen says the truth in plain words, fits, and needs no colour."""

from __future__ import annotations

import re

import msgspec
import pytest
from rich.cells import cell_len

from tests.render.building import diagnosis, job_of, one_source
from tests.render.cases import (
    CASES,
    cpu_run,
    crashed,
    healthy,
    hostile,
    loader_bound,
    many_ranks,
    mostly_unrecorded,
    nothing_recorded,
    sampled_only,
)
from whyidle.diagnosis import Diagnosis
from whyidle.render import phrases, terminal
from whyidle.render.plain import elide, reads_as_code, shortened

ANSI = re.compile(r"\x1b\[[0-9;]*m")


def plain(diagnosis: Diagnosis, width: int = 100) -> str:
    return terminal.render(diagnosis, width=width, color=False)


def flat(diagnosis: Diagnosis) -> str:
    """The whole screen as one line, so that a test need not know where lines break."""
    return " ".join(plain(diagnosis, 110).split())


def test_the_headline_tells_how_much_was_useful_and_the_biggest_loss() -> None:
    said = flat(loader_bound())
    assert "did useful work for 47% of 1.17 s; 51% was lost." in said
    assert (
        "The biggest loss is “Too few loader workers”: 33% of the time, 65.1 ms per step." in said
    )


def test_unrecorded_time_is_said_to_be_no_loss() -> None:
    said = flat(mostly_unrecorded())
    assert (
        "6% may be lost. Another 57% looks empty but is likely work that the recorder dropped"
        in said
    )
    assert "56.9% 580 ms unrecorded: likely work the recorder dropped" in said


def test_a_suspected_cause_is_not_called_a_fact() -> None:
    assert "The biggest loss may be “The host waits for the GPU”" in flat(mostly_unrecorded())


def test_the_headline_tells_how_much_of_the_loss_is_only_suspected() -> None:
    base = loader_bound()
    doubtful = [
        msgspec.structs.replace(finding, level="suspected") if finding.reason == 4 else finding
        for finding in base.findings
    ]
    said = flat(msgspec.structs.replace(base, findings=doubtful))
    assert "51% was lost (8% only suspected)." in said


def test_a_busy_run_is_not_talked_down() -> None:
    assert "No single cause is large" in flat(healthy())


def test_a_run_without_a_gpu_is_called_one() -> None:
    said = flat(cpu_run())
    assert said.count("No GPU was recorded. The CPU did useful work for 44% of 3.2 s") == 1
    assert "The GPU did" not in said


def test_several_devices_are_summed_and_the_late_rank_is_named() -> None:
    said = flat(many_ranks())
    assert "The 8 GPUs did useful work for 67% of 37.7 s together" in said
    assert "train.py:12 in DataLoader.__next__, rank 5" in said
    assert "costs the job 970 ms once; 8 devices lose 6.76 s by it together" in said


def test_what_was_not_judged_is_grouped_by_the_recording_that_is_missing() -> None:
    said = flat(loader_bound())
    assert "Not judged: 4 causes." in said
    assert "Python frames (2 causes): profile(..., with_stack=True)" in said
    assert said.count("with_stack=True") == 1


def test_a_failed_cause_costs_one_line_and_is_owned_up_to() -> None:
    said = flat(crashed())
    assert "memory.allocator_pressure failed and was left out: ColumnNotFoundError: value" in said


def test_a_pause_of_the_whole_run_is_told_apart_from_the_window() -> None:
    said = flat(crashed())
    assert "Of the whole run, 14% went to “Training stops while a checkpoint is written”." in said
    assert "14.0% of the whole run · 42 s of 300 s" in said


def test_nothing_recorded_is_said_and_no_bar_is_drawn() -> None:
    said = flat(nothing_recorded())
    assert "Nothing could be judged" in said
    assert "Where the time went" not in said


def test_a_remedy_that_may_change_results_carries_its_warning() -> None:
    assert "careful not safe for every job: results change in the last digits" in flat(
        loader_bound()
    )


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("width", [20, 40, 80, 100, 120])
def test_no_line_is_wider_than_the_terminal(name: str, width: int) -> None:
    for color in (False, True):
        text = ANSI.sub("", terminal.render(CASES[name](), width=width, color=color))
        assert max(cell_len(line) for line in text.split("\n")) <= width


@pytest.mark.parametrize("name", CASES)
def test_colour_adds_nothing_but_colour(name: str) -> None:
    colored = terminal.render(CASES[name](), width=90, color=True)
    assert ANSI.search(colored)
    bare = [line.rstrip() for line in ANSI.sub("", colored).strip("\n").split("\n")]
    assert bare == plain(CASES[name](), 90).rstrip("\n").split("\n")


def test_names_cannot_send_codes_to_the_terminal() -> None:
    text = plain(hostile())
    assert not [letter for letter in text if ord(letter) < 32 and letter != "\n"]
    assert "\u202e" not in text


@pytest.mark.parametrize("name", [name for name in CASES if name != "hostile"])
def test_a_real_report_fits_one_screen(name: str) -> None:
    assert plain(CASES[name]()).count("\n") <= 47


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("DataLoader(..., num_workers=4)", True),
        ("torch.set_float32_matmul_precision('high')", True),
        ("whyidle compare before.json after.json", True),
        ("python train.py --workers 4", True),
        ("Build the optimizer with fused=True (Adam, SGD), else foreach=True.", False),
        ("Sort samples by length and deal them out.", False),
        ("", False),
    ],
)
def test_code_is_told_from_sentences(text: str, code: bool) -> None:
    assert reads_as_code(text) is code


def test_a_long_text_is_cut_between_sentences_or_words() -> None:
    text = "Use more workers for the loader. Then measure again and see what is left."
    assert shortened(text, 200) == text
    assert shortened(text, 45) == "Use more workers for the loader."
    assert shortened(text, 20) == "Use more workers …"
    assert shortened("x" * 50, 20) == "x" * 18 + " …"


def test_a_long_name_keeps_its_beginning_and_its_end() -> None:
    assert elide("abcdefghijklmnopqrstuvwxyz", 10) == "abcdef…xyz"
    assert elide("short", 10) == "short"


def test_idle_time_of_sampled_gpus_that_no_rule_explains_is_said() -> None:
    job = job_of([(1000.0, 0.5, 30.0)], "scheduling.gpu_left_idle", shares=[0.5])
    assert "For 42% no rule knows why it was idle." in flat(diagnosis([], [], job=job))
    assert "no rule knows why" not in flat(sampled_only())


def test_readings_without_seconds_and_without_a_sign_are_not_called_nothing() -> None:
    snapshot = diagnosis([], [], sources=[one_source("one.xml", events=40)])
    assert "No sign of trouble was seen; the evidence holds no device time" in flat(snapshot)
    assert "Nothing could be judged" in flat(nothing_recorded())


def test_a_recording_that_would_show_much_names_some_of_it_and_counts_the_rest() -> None:
    missing = tuple(f"table number {i}" for i in range(12))
    said = phrases.lacking(phrases.Recording(missing, "how", ("a.b",)), 60)
    assert said == "table number 0; table number 1; table number 2 and 9 more"
    assert phrases.lacking(phrases.Recording((), "how", ("a.b",)), 60) == "a recording"
