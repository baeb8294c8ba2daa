"""Every verb as a user meets it: exit codes, what goes to which stream, no traceback."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli import tiny_trace
from tests.cli.running import environment, plug_in, whyidle
from whyidle import progress
from whyidle.diagnosis import Diagnosis

LOADER = "data_loading.loader_workers_too_few"

FAILING_READER = """
NAME = "failing"
def sniff(path, head):
    return head.startswith(b"FAIL")
def read(path, progress=None):
    raise KeyError("no such column")
"""

SLEEPING_READER = """
import sys, time
NAME = "sleeping"
def sniff(path, head):
    return head.startswith(b"SLEEP")
def read(path, progress=None):
    print("asleep", file=sys.stderr, flush=True)
    time.sleep(60)
"""

SLOW_READER = """
import time
from whyidle.errors import UnreadableEvidence
NAME = "slow"
def sniff(path, head):
    return head.startswith(b"SLOW")
def read(path, progress=None):
    for done in range(8):
        time.sleep(0.2)
        if progress is not None:
            progress(done, 8)
    raise UnreadableEvidence(str(path), "only slow", "Nothing to do.")
"""


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return tiny_trace.write(tmp_path / "slow.pt.trace.json.gz")


def test_diagnose_says_what_was_lost_and_exits_0(trace: Path) -> None:
    done = whyidle("diagnose", trace)
    assert (done.returncode, done.stderr) == (0, "")
    assert LOADER in done.stdout
    assert "\x1b" not in done.stdout


def test_the_json_report_reads_back_and_its_seconds_are_right(trace: Path) -> None:
    done = whyidle("diagnose", trace, "--format", "json")
    found = Diagnosis.from_json(done.stdout)
    (device,) = found.devices
    # By hand: four steps of 10 ms; a kernel of 3.9 ms in each; the window ends with the last step.
    assert device.wall_s == pytest.approx(0.040, rel=1e-3)
    assert device.compute_s == pytest.approx(4 * 0.0039, rel=1e-6)
    lost = sum(row.lost_s for row in found.ledger if row.cause == LOADER)
    # The device falls idle at most 0.1 ms before the loader's wait of 6 ms begins.
    assert lost == pytest.approx(4 * 0.006, rel=0.03)


@pytest.mark.parametrize("format", ["terminal", "json", "markdown", "html"])
def test_a_saved_diagnosis_renders_as_diagnose_would_have(trace: Path, format: str) -> None:
    saved = trace.with_name("diagnosis.json")
    straight = whyidle("diagnose", trace, "--format", format, "-o", trace.with_name("a"), "--quiet")
    assert (straight.returncode, straight.stdout, straight.stderr) == (0, "", "")
    assert whyidle("diagnose", trace, "-o", saved, "--quiet").returncode == 0
    again = whyidle("render", saved, "--format", format, "-o", trace.with_name("b"), "--quiet")
    assert (again.returncode, again.stderr) == (0, "")
    assert trace.with_name("a").read_text() == trace.with_name("b").read_text()


def test_each_output_file_gets_the_format_of_its_suffix(trace: Path) -> None:
    names = ("report.html", "report.md", "diagnosis.json", "report.txt")
    outputs = [trace.with_name(name) for name in names]
    done = whyidle("diagnose", trace, *(word for o in outputs for word in ("-o", o)))
    assert done.returncode == 0
    assert done.stdout == ""
    assert [line.split()[-1] for line in done.stderr.splitlines()] == [str(o) for o in outputs]
    html, markdown, saved, text = (output.read_text(encoding="utf-8") for output in outputs)
    assert html.lstrip().lower().startswith("<!doctype html")
    assert markdown.lstrip().startswith("#")
    assert json.loads(saved)["schema"] == "whyidle.diagnosis/1"
    assert "\x1b" not in text
    assert "<" not in text.splitlines()[0]


def test_perfetto_adds_a_track_and_keeps_every_event(trace: Path) -> None:
    saved, out = trace.with_name("d.json"), trace.with_name("with_losses.json")
    assert whyidle("diagnose", trace, "-o", saved).returncode == 0
    done = whyidle("render", saved, "--format", "perfetto", "--with", trace, "-o", out)
    assert done.returncode == 0, done.stderr
    written = json.loads(out.read_text())["traceEvents"]
    missing = [event for event in tiny_trace.events() if event not in written]
    assert missing == []
    assert len(written) > len(tiny_trace.events())


@pytest.mark.parametrize(
    ("limit", "code"),
    [
        ("lost>90%", 0),
        ("lost>30%", 1),
        ("data_loading>10%", 1),
        (f"{LOADER}>5%", 1),
        (f"{LOADER}>95%", 0),
    ],
)
def test_a_limit_decides_between_exit_0_and_1(trace: Path, limit: str, code: int) -> None:
    done = whyidle("diagnose", trace, "--fail-on", limit)
    assert done.returncode == code
    assert LOADER in done.stdout
    name = limit.partition(">")[0]
    assert done.stderr.startswith(f"whyidle: {name} is ") is (code == 1)


def test_one_of_several_limits_is_enough_to_fail(trace: Path) -> None:
    limits = ("--fail-on", "lost>99%", "--fail-on", "data_loading>1%")
    assert whyidle("diagnose", trace, *limits).returncode == 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["diagnose", "{trace}", "--fail-on", "data_loadin>5%"], "data_loading"),
        (["diagnose", "{trace}", "--fail-on", "lost>lots"], "lost>30%"),
        (["diagnose", "{trace}", "--steps", "7"], "A:B"),
        (["diagnose", "{trace}", "--steps", "9:3"], "holds no step"),
        (["diagnose", "{trace}", "--steps", "70:80"], "leaves no step"),
        (["diagnose", "{folder}/absent.json"], "no such file"),
        (["diagnose", "{folder}/notes.txt"], "notes.txt"),
        (["diagnose", "{folder}/empty.json"], "empty.json"),
        (["diagnose"], "PATH"),
        (["diagnose", "{trace}", "-o", "{folder}/absent/report.html"], "does not exist"),
        (["diagnose", "{trace}", "-o", "{folder}"], "is a folder"),
        (["diagnose", "{trace}", "-o", "{trace}"], "overwrite the evidence"),
        (["diagnose", "{trace}", "--format", "json", "-o", "a", "-o", "b"], "several -o"),
        (["render", "{trace}"], "not a saved diagnosis"),
        (["render", "{folder}/absent.json"], "no such file"),
        (["render", "{folder}/empty.json"], "not a saved diagnosis"),
        (["render", "{trace}", "--format", "perfetto"], "--with TRACE"),
        (["env", "-o", "{folder}/env.html"], "does not write html"),
        (["explain", "data_loading.loader_workers"], LOADER),
        (["explain", "--demo"], "needs one cause"),
        (["new-cause", "nothing"], "folder.name"),
        (["dance"], "dance"),
        ([], "VERB"),
        (["diagnose", "--no-such-option", "x"], "--no-such-option"),
    ],
)
def test_a_users_error_is_a_short_sentence_and_exit_2(
    trace: Path, arguments: list[str], told: str
) -> None:
    folder = trace.parent
    (folder / "notes.txt").write_text("remember the milk\n")
    (folder / "empty.json").write_text("")
    words = [word.format(trace=trace, folder=folder) for word in arguments]
    done = whyidle(*words, cwd=folder)
    assert done.returncode == 2
    assert done.stdout == ""
    assert told in done.stderr
    assert 1 <= len(done.stderr.splitlines()) <= 3
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("place", ["before", "after"])
def test_debug_shows_the_traceback_before_or_after_the_verb(tmp_path: Path, place: str) -> None:
    words = ["diagnose", tmp_path / "absent.json"]
    words = ["--debug", *words] if place == "before" else [*words, "--debug"]
    done = whyidle(*words)
    assert done.returncode == 2
    assert "Traceback" in done.stderr
    assert "no such file" in done.stderr


@pytest.mark.parametrize("place", ["before", "after"])
def test_quiet_keeps_notes_off_stderr(trace: Path, place: str) -> None:
    words = ["diagnose", trace, "-o", trace.with_name("r.html")]
    done = whyidle(*(["--quiet", *words] if place == "before" else [*words, "--quiet"]))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_our_own_bug_exits_3_with_one_way_to_report_it(tmp_path: Path) -> None:
    (tmp_path / "x.fail").write_text("FAIL")
    path = plug_in(tmp_path, "whyidle.readers", "failing", FAILING_READER)
    done = whyidle("diagnose", tmp_path / "x.fail", path=path)
    assert done.returncode == 3
    assert "KeyError" in done.stderr
    assert "please report this" in done.stderr
    assert "whyidle --version" in done.stderr
    assert "Traceback" not in done.stderr
    shown = whyidle("diagnose", tmp_path / "x.fail", "--debug", path=path)
    assert shown.returncode == 3
    assert "Traceback" in shown.stderr


def test_ctrl_c_exits_130_without_a_word(tmp_path: Path) -> None:
    (tmp_path / "x.sleep").write_text("SLEEP")
    path = plug_in(tmp_path, "whyidle.readers", "sleeping", SLEEPING_READER)
    command = [sys.executable, "-m", "whyidle", "diagnose", str(tmp_path / "x.sleep")]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment(path)
    ) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "asleep\n"
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (130, "", "")


@pytest.mark.parametrize(("quiet", "drawn"), [([], True), (["--quiet"], False)])
def test_long_reading_shows_a_bar_on_a_terminal_only(
    tmp_path: Path, quiet: list[str], drawn: bool
) -> None:
    (tmp_path / "x.slow").write_text("SLOW")
    path = plug_in(tmp_path, "whyidle.readers", "slow", SLOW_READER)
    code, shown = on_terminal(["diagnose", str(tmp_path / "x.slow"), *quiet], path=path)
    assert code == 2
    assert ("reading x.slow" in shown) is drawn
    assert "only slow" in shown
    piped = whyidle("diagnose", tmp_path / "x.slow", path=path)
    assert "reading x.slow" not in piped.stderr
    assert len(piped.stderr.splitlines()) == 2


def on_terminal(
    words: list[str], *, path: Path | None = None, no_color: str = ""
) -> tuple[int, str]:
    """Exit code and all that a terminal was sent when it is both stdout and stderr."""
    ours, theirs = pty.openpty()
    env = {**environment(path), "TERM": "xterm-256color", "NO_COLOR": no_color}
    process = subprocess.Popen(
        [sys.executable, "-m", "whyidle", *words], stdout=theirs, stderr=theirs, env=env
    )
    os.close(theirs)
    shown = b""
    try:
        while part := os.read(ours, 65536):
            shown += part
    except OSError:  # the other end was closed
        pass
    os.close(ours)
    return process.wait(timeout=60), shown.decode()


def test_a_saved_diagnosis_renders_without_loading_what_reads_evidence(trace: Path) -> None:
    saved, page = trace.with_name("d.json"), trace.with_name("page.html")
    assert whyidle("diagnose", trace, "-o", saved).returncode == 0
    code = (
        "import sys; from whyidle.cli import main; "
        f"assert main(['render', {str(saved)!r}, '-o', {str(page)!r}]) == 0; "
        "print('polars' in sys.modules, 'numpy' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment()
    )
    assert done.stdout.split() == ["False", "False"], done.stderr
    assert page.stat().st_size > 1000


def test_a_closed_pipe_is_quiet_and_keeps_the_exit_code(trace: Path) -> None:
    command = [sys.executable, "-m", "whyidle", "diagnose", str(trace), "--fail-on", "lost>1%"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        told = process.stderr.read()
        assert process.wait(timeout=60) == 1
    assert told.startswith("whyidle: lost is ")
    assert len(told.splitlines()) == 1


@pytest.mark.parametrize(("no_color", "colored"), [("", True), ("1", False)])
def test_a_terminal_gets_colour_unless_no_color_is_set(
    trace: Path, no_color: str, colored: bool
) -> None:
    code, shown = on_terminal(["diagnose", str(trace), "-q"], no_color=no_color)
    assert code == 0
    assert ("\x1b[" in shown) is colored
    assert "loader" in shown


def test_steps_narrow_the_window(trace: Path) -> None:
    done = whyidle("diagnose", trace, "--format", "json", "--steps", "1:3")
    found = Diagnosis.from_json(done.stdout)
    assert found.window.steps == 2
    assert [step.number for step in found.devices[0].steps] == [1, 2]


def test_the_version_is_the_packages_own() -> None:
    import whyidle as package

    done = whyidle("--version")
    assert (done.returncode, done.stdout) == (0, f"whyidle {package.__version__}\n")


def test_explain_lists_shows_and_demonstrates_causes() -> None:
    listed = whyidle("explain")
    assert listed.returncode == 0
    assert LOADER in listed.stdout
    page = whyidle("explain", LOADER)
    assert page.returncode == 0
    for head in ("Looks like", "How we tell", "Change", "May be wrong", "Sources"):
        assert head in page.stdout
    demo = whyidle("explain", LOADER, "--demo", "--format", "json")
    found = Diagnosis.from_json(demo.stdout)
    assert LOADER in {row.cause for row in found.ledger}
    folder = json.loads(whyidle("explain", "data_loading", "--format", "json").stdout)
    assert {page["cause"].partition(".")[0] for page in folder} == {"data_loading"}


def test_env_names_this_python_and_what_is_missing() -> None:
    done = whyidle("env", "--format", "json")
    assert done.returncode == 0
    found = json.loads(done.stdout)
    assert found["python"] == ".".join(map(str, sys.version_info[:3]))
    assert found["cpus"]["allowed"] == len(os.sched_getaffinity(0))
    text = whyidle("env").stdout
    assert found["python"] in text
    assert all(row["what"] in text for row in found["missing"])


def test_a_folder_of_one_trace_is_the_run_in_it(trace: Path) -> None:
    alone = whyidle("diagnose", trace, "--format", "json")
    folder = whyidle("diagnose", trace.parent, "--format", "json")
    assert folder.returncode == 0, folder.stderr
    one, other = Diagnosis.from_json(alone.stdout), Diagnosis.from_json(folder.stdout)
    assert one.devices == other.devices
    assert one.ledger == other.ledger


def test_no_output_may_overwrite_evidence_in_the_folder_that_was_named(trace: Path) -> None:
    kept = trace.read_bytes()
    done = whyidle("diagnose", trace.parent, "-o", trace)
    assert done.returncode == 2 and "overwrite the evidence" in done.stderr
    assert trace.read_bytes() == kept


@pytest.mark.parametrize("name", ["report.json", "report.md", "report.html", "report.txt"])
def test_an_earlier_report_in_that_folder_may_be_replaced(trace: Path, name: str) -> None:
    for _ in range(2):
        done = whyidle("diagnose", trace.parent, "-o", trace.parent / name)
        assert done.returncode == 0, done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk_behind_stdout_is_a_sentence() -> None:
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run(
            [sys.executable, "-m", "whyidle", "explain"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
            check=False,
        )
    assert done.returncode == 2
    assert done.stderr.startswith("whyidle: The report cannot be written")
    assert done.stderr.count("\n") == 2


def test_a_name_that_looks_like_markup_passes_the_progress_bar(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "PATIENCE_S", 0.0)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    with progress.ReadingBar(quiet=False) as bar:
        bar("traces/[red]\x1b]0;title\x07.json", 1, 2)
    shown = capsys.readouterr().err
    assert "[red]" in shown and "\x1b]0" not in shown and "\x07" not in shown


def test_an_error_about_a_file_cannot_steer_the_terminal() -> None:
    done = whyidle("diagnose", "\x1b[31mred\x07\u202e.json")
    assert done.returncode == 2
    assert not any(letter in done.stderr for letter in "\x1b\x07\u202e")
