"""Bundles of ``whyidle run``: what is read of a folder, and what is said of broken ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tests.cli.tiny_trace import write
from whyidle.diagnose import diagnose
from whyidle.errors import NothingRecorded, UnknownEvidence, UnreadableEvidence
from whyidle.executor import diagnose_files
from whyidle.model import BATCHES, MOMENTS, SCHEMAS, SITES, Evidence
from whyidle.readers import bundle_events, bundle_samples, read
from whyidle.readers.finding import files_of

T = 1_700_000_000_000_000_000
MS = 1_000_000
MANIFEST = {
    "schema": "whyidle.bundle/1", "whyidle": "0.1.0", "command": ["python", "train.py"],
    "cwd": "/srv/job", "host": "node7", "started_ns": T - 5 * MS, "options": {},
}  # fmt: skip


def process(pid: int = 77, **more: Any) -> dict[str, Any]:
    return {"event": "process", "pid": pid, "ppid": 1, "started_ns": T, "python": "3.11.2"} | more


def steps(*rows: list[int]) -> dict[str, Any]:
    return {"event": "steps", "rows": list(rows)}


def end(at_ms: int) -> dict[str, Any]:
    return {"event": "end", "t_ns": T + at_ms * MS, "reason": "exit", "steps": 2}


TWO_STEPS = steps([0, T, T + 100 * MS, 60 * MS, 9], [1, T + 100 * MS, T + 200 * MS, 0, 9])


def text_of(*events: dict[str, Any]) -> str:
    return "".join(json.dumps(event, separators=(",", ":")) + "\n" for event in events)


def bundle(folder: Path, *processes: str, manifest: dict[str, Any] | None = None) -> Path:
    (folder / "processes").mkdir(parents=True)
    (folder / "bundle.json").write_text(json.dumps(manifest or MANIFEST, indent=2))
    for number, text in enumerate(processes):
        (folder / "processes" / f"{77 + number}-{T}.jsonl").write_text(text)
    return folder


def moments(evidence: Evidence, kind: str) -> list[tuple[Any, ...]]:
    rows = evidence.table("moments").filter(pl.col("kind") == kind)
    return rows.select("rank", "process", "number", "start_ns", "end_ns", "length_ns").rows()


def test_steps_waits_and_the_life_of_a_process_become_moments(tmp_path: Path) -> None:
    found = read([bundle(tmp_path / "b", text_of(process(), TWO_STEPS, end(250)))])
    assert dict(found.table("moments").schema) == MOMENTS
    assert moments(found, "process") == [(None, 77, None, T, T + 250 * MS, 250 * MS)]
    assert moments(found, "step") == [
        (None, 77, 0, T, T + 100 * MS, 100 * MS),
        (None, 77, 1, T + 100 * MS, T + 200 * MS, 100 * MS),
    ]
    assert moments(found, "loader_wait") == [(None, 77, 0, T, T + 100 * MS, 60 * MS)]
    (source,) = found.sources
    assert (source.reader, source.notes) == ("bundle", ())


def test_pauses_keep_kind_and_place_below_the_folder_of_the_job(tmp_path: Path) -> None:
    rows = [
        ["checkpoint", T + 10 * MS, T + 20 * MS, "/srv/job/src/train.py", 31, None],
        ["collector", T + 30 * MS, T + 40 * MS, None, None, "generation 2"],
        ["evaluation", T + 50 * MS, T + 60 * MS, "/elsewhere/eval.py", 4, "Net"],
        ["some_new_kind", T + 70 * MS, T + 80 * MS, None, None, None],
    ]
    text = text_of(process(), TWO_STEPS, {"event": "pauses", "rows": rows}, end(250))
    found = read([bundle(tmp_path / "b", text)]).table("moments")
    told = found.filter(~pl.col("kind").is_in(["process", "step", "loader_wait"]))
    assert told.select("kind", "file", "line", "what").rows() == [
        ("checkpoint", "src/train.py", 31, None),
        ("collector", None, None, "generation 2"),
        ("evaluation", "/elsewhere/eval.py", 4, "Net"),
    ]


def test_batches_of_a_worker_are_of_the_rank_that_it_serves(tmp_path: Path) -> None:
    trainer = text_of(process(77, rank=3), TWO_STEPS, end(250))
    rows = [[0, 1, 5, T + MS, 7 * MS, 3 * MS, MS, None, 16]]
    worker = text_of(process(78, ppid=77), {"event": "batches", "rows": rows})
    found = read([bundle(tmp_path / "b", trainer, worker)]).table("batches")
    assert dict(found.schema) == BATCHES
    assert found.drop("source").rows() == [
        (3, 78, 1, 0, T + MS, 7 * MS, 3 * MS, MS, None, 16),
    ]


def test_lines_of_the_source_become_sites(tmp_path: Path) -> None:
    site = {
        "event": "site", "what": "loader", "file": "/srv/job/train.py", "line": 9,
        "detail": {"num_workers": 0},
    }  # fmt: skip
    used = {
        "event": "loader", "loader": 0, "num_workers": 0, "file": "/srv/job/train.py",
        "line": 12, "made_file": "/srv/job/train.py", "made_line": 9,
    }  # fmt: skip
    found = read([bundle(tmp_path / "b", text_of(process(), site, used, TWO_STEPS))])
    sites = found.table("sites")
    assert dict(sites.schema) == SITES
    told = sites.select("what", "file", "line", "detail").rows()
    assert told == [
        ("loader", "train.py", 9, '{"num_workers":0}'),
        ("loader_iterated", "train.py", 12, '{"loader":0,"num_workers":0}'),
        ("loader_made", "train.py", 9, '{"loader":0,"num_workers":0}'),
    ]


def test_settings_tell_of_torch_its_flags_and_the_job(tmp_path: Path) -> None:
    torch = {
        "event": "torch", "version": "2.13.0", "cuda": None, "threads": 2,
        "flags": {"cudnn.benchmark": False},
    }  # fmt: skip
    at_end = {"event": "end_flags", "flags": {"anomaly": True}}
    found = read([bundle(tmp_path / "b", text_of(process(cpus=8), torch, TWO_STEPS, at_end))])
    told = found.table("settings").with_columns(pl.col("host", "key").cast(pl.String))
    assert told["host"].unique().to_list() == ["node7"]
    assert dict(told.select("key", "value").rows()) == {
        "job": "train.py",
        "command": "python train.py",
        "python": "3.11.2",
        "cpus": "8",
        "torch": "2.13.0",
        "threads": "2",
        "flag.cudnn.benchmark": "false",
        "flag_at_end.anomaly": "true",
    }
    assert found.facts.versions == {"torch_version": "2.13.0", "python_version": "3.11.2"}


def test_readings_of_the_host_are_samples_and_broken_lines_are_counted(tmp_path: Path) -> None:
    folder = bundle(tmp_path / "b", text_of(process(), TWO_STEPS))
    (folder / "samples").mkdir()
    lines = [
        {"t_ns": T + MS, "period_ns": MS, "metric": "host/cpu_utilization", "value": 0.5},
        {"t_ns": T, "period_ns": MS, "metric": "job/cpu_time", "value": 12, "unit": "s"},
        {"t_ns": T, "metric": "power", "value": None, "reason": "no driver", "device": 0},
        {"setting": "driver", "value": "570.1", "device": 0},
    ]
    cut = '{"t_ns": 17000'
    (folder / "samples" / "host.jsonl").write_text(text_of(*lines[:2]) + "no json\n" + cut)
    (folder / "samples" / "gpu.jsonl").write_text(text_of(*lines[2:]))
    found = read([folder])
    names = pl.col("host", "job", "metric", "unit", "reason").cast(pl.String)
    rows = found.table("samples").with_columns(names).sort("metric")
    assert rows.select("metric", "t_ns", "value", "unit", "reason", "device", "job").rows() == [
        ("host/cpu_utilization", T + MS, 0.5, "ratio", None, None, None),
        ("job/cpu_time", T, 12.0, "s", None, None, "train.py"),
        ("power", T, None, "W", "no driver", 0, None),
    ]
    keys = found.table("settings")["key"].cast(pl.String).to_list()
    assert "driver" in keys
    assert found.sources[0].notes[-1] == "host.jsonl: 2 broken lines are left out"


def test_a_job_that_was_killed_is_told_up_to_its_last_line(tmp_path: Path) -> None:
    text = text_of(process(), TWO_STEPS) + '{"event":"steps","rows":[[2,17000'
    found = read([bundle(tmp_path / "b", text)])
    assert moments(found, "process") == [(None, 77, None, T, T + 200 * MS, 200 * MS)]
    assert len(moments(found, "step")) == 2
    assert found.sources[0].notes == (
        "process 77 never said that it ended: it was killed, or still runs",
        "1 lines of events that were cut or damaged are left out",
    )


def test_rows_that_make_no_sense_are_left_out_and_the_others_stay(tmp_path: Path) -> None:
    rows = [
        [0, T, T + 100 * MS, 60 * MS, 9],
        [1, T + 100 * MS, T + 50 * MS, 0, 9],  # ends before it begins
        [2, T + 20 * MS, T + 90 * MS, 0, 9],  # inside another
        [3, 5, 10, 0, 9],  # in the year 1970
        ["x", T, T, None, {}],
        [4, T + 100 * MS, T + 200 * MS, 900 * MS, 9],  # waited longer than it took
    ]
    text = text_of(process(), {"event": "steps", "rows": rows}, {"event": "steps", "rows": 3})
    found = read([bundle(tmp_path / "b", text + "[1,2]\n\xff\n")])
    assert [row[2] for row in moments(found, "step")] == [0, 4]
    assert moments(found, "loader_wait")[-1][-1] == 100 * MS


def test_spaces_and_another_order_of_keys_change_nothing(tmp_path: Path) -> None:
    plain = read([bundle(tmp_path / "a", text_of(process(), TWO_STEPS, end(250)))])
    spaced = json.dumps({"rows": TWO_STEPS["rows"], "event": "steps"}) + "\n"
    text = text_of(process()) + spaced + text_of(end(250))
    other = read([bundle(tmp_path / "b", text)])
    assert other.table("moments").equals(plain.table("moments"))


def test_a_program_that_replaced_itself_is_two_processes(tmp_path: Path) -> None:
    folder = bundle(tmp_path / "b", text_of(process(), TWO_STEPS, end(250)))
    later = T + 1000 * MS
    again = steps([0, later, later + 50 * MS, 0, 9], [1, later + 50 * MS, later + 99 * MS, 0, 9])
    text = text_of(process(started_ns=later), again)
    (folder / "processes" / f"77-{later}.jsonl").write_text(text)
    found = diagnose(read([folder]))
    assert found.job is not None
    assert [round(d.wall_s, 3) for d in found.job.devices] == [0.25, 0.099]


def test_the_rank_may_be_known_from_the_profile_alone(tmp_path: Path) -> None:
    window = {"event": "window", "number": 0, "file": "rank5-77-0.pt.trace.json.gz"}
    found = read([bundle(tmp_path / "b", text_of(process(), TWO_STEPS, window))])
    assert moments(found, "step")[0][0] == 5


def test_a_bundle_is_one_job_with_its_windows_and_is_also_meant_by_its_manifest(
    tmp_path: Path,
) -> None:
    folder = bundle(tmp_path / "b", text_of(process(), TWO_STEPS, end(250)))
    (folder / "windows").mkdir()
    write(folder / "windows" / "77-0.pt.trace.json")
    (folder / "windows" / ".part").write_text("{")
    (folder / "samples").mkdir()
    (folder / "samples" / "notes.txt").write_text("nothing that anybody reads")
    names = ["bundle.json", "77-0.pt.trace.json"]
    for named in (folder, folder / "bundle.json", tmp_path):
        found = files_of([named])
        assert [path.name for path in found.files] == names
        assert found.notes == []
        assert found.from_folders == set(found.files)
    diagnosis = diagnose_files([folder])
    assert len(diagnosis.devices) == 1
    assert diagnosis.job is not None
    assert diagnosis.job.devices[0].meter == "training_steps"


def test_bundles_of_two_machines_are_one_job(tmp_path: Path) -> None:
    for number in (0, 1):
        manifest = MANIFEST | {"host": f"node{number}"}
        text = text_of(process(77, rank=number), TWO_STEPS, end(250))
        bundle(tmp_path / f"b{number}", text, manifest=manifest)
    for paths in ([tmp_path / "b0", tmp_path / "b1"], [tmp_path]):
        found = diagnose_files(paths).job
        assert found is not None
        assert [(d.host, d.rank) for d in found.devices] == [("node0", 0), ("node1", 1)]


def test_a_bundle_of_a_later_version_says_what_to_do(tmp_path: Path) -> None:
    folder = bundle(tmp_path / "b", manifest=MANIFEST | {"schema": "whyidle.bundle/7"})
    said = r"(?s)another version \(whyidle.bundle/7.*pip install"
    with pytest.raises(UnknownEvidence, match=said):
        read([folder])


def test_a_manifest_that_was_cut_says_so(tmp_path: Path) -> None:
    folder = bundle(tmp_path / "b", text_of(process(), TWO_STEPS))
    path = folder / "bundle.json"
    path.write_text(path.read_text()[:60])
    with pytest.raises(UnreadableEvidence, match="cut or edited"):
        read([folder])


def test_a_job_without_torch_says_so(tmp_path: Path) -> None:
    folder = bundle(tmp_path / "b")
    with pytest.raises(NothingRecorded, match="never imported torch"):
        read([folder])


def test_a_job_without_a_step_says_how_to_mark_one(tmp_path: Path) -> None:
    found = diagnose(read([bundle(tmp_path / "b", text_of(process(), end(250)))]))
    assert found.job is None
    assert any("call whyidle.step()" in note for s in found.sources for note in s.notes)


@pytest.mark.parametrize(
    ("module", "file"),
    [(bundle_events, f"processes/77-{T}.jsonl"), (bundle_samples, "samples/host.jsonl")],
)
def test_a_file_that_is_far_too_large_is_refused_with_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: Any, file: str
) -> None:
    folder = bundle(tmp_path / "b", text_of(process(), TWO_STEPS))
    (folder / "samples").mkdir()
    (folder / "samples" / "host.jsonl").write_text("{}\n" * 400)
    monkeypatch.setattr(module, "MOST_BYTES", 200)
    with pytest.raises(UnreadableEvidence, match="more than the 0 GiB"):
        read([folder])


@pytest.mark.parametrize("cut", range(0, 700, 23))
def test_any_cut_of_the_events_is_read_or_refused_in_words(tmp_path: Path, cut: int) -> None:
    rows = [["checkpoint", T + 10 * MS, T + 20 * MS, "a.py", 31, None]]
    text = text_of(process(), TWO_STEPS, {"event": "pauses", "rows": rows}, end(250))
    folder = bundle(tmp_path / "b", text[:cut] + "\n" + text[cut + 5 :])
    try:
        found = read([folder])
    except NothingRecorded:
        return
    assert all(dict(table.schema) == SCHEMAS[name] for name, table in found.tables.items())


def test_a_loader_tells_how_long_steps_waited_for_it(tmp_path: Path) -> None:
    loaders = [
        {"event": "loader", "loader": n, "file": "/srv/job/train.py", "line": 12} for n in (0, 1)
    ]
    rows: list[list[Any]] = [[[1, 40, 0], [0, 2, 0], ["x", 1, 0], [1, 1]], [[1, 2, 1]]]
    waits = [{"event": "waits", "rows": some} for some in rows]
    found = read([bundle(tmp_path / "b", text_of(process(), *loaders, *waits, TWO_STEPS))])
    assert found.table("sites")["detail"].to_list() == [
        '{"loader":0,"waited_ns":2,"profiled_ns":0}', '{"loader":1,"waited_ns":42,"profiled_ns":2}'
    ]  # fmt: skip


def test_what_a_workers_copy_of_the_source_chose_is_no_choice_of_the_user(tmp_path: Path) -> None:
    site = {"event": "site", "what": "threads", "file": "train.py", "line": 3, "detail": {}}
    worker = process(78, role="worker", worker=0, trainer=77)
    found = read(
        [bundle(tmp_path / "b", text_of(process(), site, TWO_STEPS), text_of(worker, site))]
    )
    assert found.table("sites")["process"].to_list() == [77]


def test_a_step_that_was_overdue_is_a_moment(tmp_path: Path) -> None:
    rows = {"event": "pauses", "rows": [["stalled", T + MS, T + 9 * MS, "/srv/job/a.py", 4, "x"]]}
    found = read([bundle(tmp_path / "b", text_of(process(), TWO_STEPS, rows))])
    (stalled,) = found.table("moments").filter(pl.col("kind") == "stalled").rows(named=True)
    assert (stalled["file"], stalled["line"], stalled["length_ns"]) == ("a.py", 4, 8 * MS)


@pytest.mark.parametrize(
    "damage",
    [
        {"event": "batches", "rows": [[0, 1 << 62, 0, T, 9, 9, 9, None, 4]]},
        {"event": "batches", "rows": [[1 << 62, 0, 0, T, 9, 9, 9, None, 4]]},
        {"event": "batches", "rows": [[7]]},
        {"event": "steps", "rows": [[3], [4]]},
        {"event": "waits", "rows": [[0, 1 << 70, 0], [None, 3, 0], 5]},
    ],
)
def test_rows_of_other_lengths_and_sizes_cost_themselves_alone(
    tmp_path: Path, damage: dict[str, Any]
) -> None:
    found = read([bundle(tmp_path / "b", text_of(process(), damage, TWO_STEPS))])
    assert len(moments(found, "step")) == 2
    assert not diagnose(found).crashed


def test_a_reading_of_a_number_that_nothing_holds_is_left_out(tmp_path: Path) -> None:
    folder = bundle(tmp_path / "b", text_of(process(), TWO_STEPS))
    (folder / "samples").mkdir()
    lines = [f'{{"t_ns":{t},"metric":"host/cpus","value":2}}' for t in (10**22, T)]
    (folder / "samples" / "host.jsonl").write_text("\n".join([*lines, "{broken"]) + "\n")
    assert read([folder]).table("samples")["t_ns"].to_list() == [T]


def test_what_attach_kept_says_where_its_report_is(tmp_path: Path) -> None:
    manifest = {**MANIFEST, "options": {"attach": {"pid": 77, "seconds": 30}}}
    folder = bundle(tmp_path / "b", text_of(process(), end(250)), manifest=manifest)
    (folder / "diagnosis.json").write_text("{}")
    notes = read([folder]).sources[0].notes
    assert f"whyidle render {folder / 'diagnosis.json'}" in notes[0]
    assert not any("whyidle.step()" in note for note in notes)
