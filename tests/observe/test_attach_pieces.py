"""The parts of ``whyidle attach`` that need no job: /proc text, stacks, shares and seconds."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whyidle.errors import UsageError
from whyidle.observe.attach_doing import Doing, doing, role_of, worker_doing
from whyidle.observe.attach_gpus import Gpu, gpu_of_each
from whyidle.observe.attach_job import Trainer
from whyidle.observe.attach_late import with_late_ranks
from whyidle.observe.attach_ledger import accounts_of, ledger_of
from whyidle.observe.attach_limits import limits
from whyidle.observe.attach_shares import Piece, share_of
from whyidle.observe.attach_stacks import Frame, is_main, not_permitted, stretches_of
from whyidle.observe.attach_tree import Member, checked, program, roles, stat_fields, tree
from whyidle.observe.attach_usage import Usage, numbers

S = 1_000_000_000
LOADER = "/env/lib/python3.11/site-packages/torch/utils/data/dataloader.py"
FETCH = "/env/lib/python3.11/site-packages/torch/utils/data/_utils/fetch.py"
WORKER = "/env/lib/python3.11/site-packages/torch/utils/data/_utils/worker.py"
TORCH = "/env/lib/python3.11/site-packages/torch"


def stack(*frames: tuple[str, str, int]) -> tuple[Frame, ...]:
    return (Frame("<module>", "/job/train.py", 90), *(Frame(*frame) for frame in frames))


def member(pid: int, parent: int, *command: str, name: str = "python") -> Member:
    return Member(pid, parent, name, command, 100, name.startswith("py"), None)


def test_a_process_name_may_hold_brackets_and_spaces() -> None:
    assert stat_fields("12 (a) b (c)) S 7 1") == ("a) b (c)", ["S", "7", "1"])


def write_process(proc: Path, pid: int, parent: int, *command: str) -> None:
    at = proc / str(pid)
    at.mkdir(parents=True)
    fields = ["S", str(parent), *["0"] * 17, "555", "0", "10", "0"]
    (at / "stat").write_text(f"{pid} ({Path(command[0]).name}) {' '.join(fields)}\n")
    (at / "cmdline").write_text("\0".join(command) + "\0")
    (at / "environ").write_text(f"HOME=/\0RANK={pid - 10}\0" if pid > 10 else "HOME=/\0")


def test_the_tree_holds_a_process_and_all_below_it_with_their_ranks(tmp_path: Path) -> None:
    write_process(tmp_path, 10, 1, "/usr/bin/bash", "run.sh")
    for pid, parent in ((11, 10), (12, 10), (13, 11)):
        write_process(tmp_path, pid, parent, "/usr/bin/python3", "train.py")
    write_process(tmp_path, 99, 1, "/usr/bin/python3", "other.py")
    found = tree(10, tmp_path)
    assert [m.pid for m in found] == [10, 11, 12, 13]
    assert [m.rank for m in found] == [None, 1, 2, 3]
    assert [m.python for m in found] == [False, True, True, True]
    assert program(found[1]) == "train.py"
    assert found == checked(10, tmp_path)


def test_no_process_and_no_python_are_usage_errors(tmp_path: Path) -> None:
    write_process(tmp_path, 10, 1, "/usr/bin/sleep", "60")
    with pytest.raises(UsageError, match="not Python"):
        checked(10, tmp_path)
    with pytest.raises(UsageError, match="No process"):
        checked(11, tmp_path)


def test_roles_follow_from_command_lines() -> None:
    found = roles(
        [
            member(1, 0, "/bin/sh", "run.sh", name="sh"),
            member(2, 1, "python", "/usr/bin/torchrun", "train.py"),
            member(3, 2, "python", "train.py"),
            member(4, 3, "python", "train.py"),
            member(
                5, 3, "python", "-c", "from multiprocessing.spawn ...", "--multiprocessing-fork"
            ),
            member(6, 3, "python", "-c", "from multiprocessing.resource_tracker import main"),
            member(7, 1, "python", "-m", "torch.distributed.run", "train.py"),
        ]
    )
    assert found == {
        1: "other", 2: "launcher", 3: "training", 4: "loader worker", 5: "loader worker",
        6: "other", 7: "launcher",
    }  # fmt: skip


def test_limits_come_from_the_group_or_the_folders_above_it(tmp_path: Path) -> None:
    (tmp_path / "proc/1").mkdir(parents=True)
    (tmp_path / "proc/1/cgroup").write_text("0::/jobs/one\n")
    group = tmp_path / "groups/jobs/one"
    group.mkdir(parents=True)
    (group.parent / "cpu.max").write_text("150000 100000\n")
    (group / "cpu.stat").write_text("usage_usec 1\nnr_periods 40\nnr_throttled 30\n")
    found = limits(1, tmp_path / "proc", tmp_path / "groups")
    assert (found.quota, found.periods, found.held) == (1.5, 40, 30)
    (tmp_path / "proc/1/cgroup").write_text("4:cpu,cpuacct:/x\n")
    (tmp_path / "groups/cpu").mkdir()
    (tmp_path / "groups/cpu/cpu.cfs_quota_us").write_text("50000")
    (tmp_path / "groups/cpu/cpu.cfs_period_us").write_text("100000")
    assert limits(1, tmp_path / "proc", tmp_path / "groups").quota == 0.5


def test_numbers_leave_out_what_is_none(tmp_path: Path) -> None:
    (tmp_path / "io").write_text("rchar: 12\nname: x\n\nodd\n")
    assert numbers(tmp_path / "io") == {"rchar": 12}
    assert numbers(tmp_path / "gone") == {}


def test_a_trace_of_py_spy_becomes_stretches_of_equal_stacks() -> None:
    def event(ph: str, name: str, ts: int, file: str = "", line: int = 0) -> dict[str, object]:
        return {"ph": ph, "name": name, "pid": 7, "tid": 99, "ts": ts,
                "args": {"filename": file, "line": line}}  # fmt: skip

    trace = [
        event("B", 'process 6:"python train.py"', 100),
        event("B", 'process 7:"python train.py"', 100),
        event("B", "thread (7): MainThread", 100),
        event("B", "main", 100, "/job/train.py", 5),
        event("B", "read", 100, "/job/data.py", 9),
        event("E", "read", 300, "/job/data.py", 9),
        event("E", "main", 300, "/job/train.py", 5),
        event("B", "main", 300, "/job/train.py", 6),
        event("E", "main", 500, "/job/train.py", 6),
        event("E", "thread (7): MainThread", 500),
    ]
    found = stretches_of(json.dumps(trace).encode(), begun_ns=1_000_000)
    assert [(s.start_ns, s.end_ns) for s in found] == [
        (1_100_000, 1_300_000),
        (1_300_000, 1_500_000),
    ]
    assert [frame.line for frame in found[0].frames] == [5, 9]
    assert found[1].frames == (Frame("main", "/job/train.py", 6),)
    assert all(is_main(s) and s.name == "MainThread" for s in found)
    assert stretches_of(b"[{", 0) == []


@pytest.mark.parametrize(
    ("frames", "activity", "line"),
    [
        ((("__next__", LOADER, 700), ("get", "/env/lib/python3.11/queue.py", 171)), "loader", 90),
        (
            (("__next__", LOADER, 700), ("fetch", FETCH, 50), ("Data.__getitem__", "/job/d.py", 4)),
            "loader",
            4,
        ),
        ((("save", f"{TORCH}/serialization.py", 9), ("f", "/job/model.py", 3)), "checkpoint", 90),
        ((("evaluate", "/job/train.py", 12), ("__call__", "/job/model.py", 3)), "evaluation", 90),
        (
            (("evaluate", "/job/train.py", 12), ("_call_impl", f"{TORCH}/nn/modules/module.py", 3)),
            "evaluation",
            90,
        ),
        ((("backward", f"{TORCH}/_tensor.py", 5),), "backward", 90),
        ((("SGD.step", f"{TORCH}/optim/sgd.py", 5),), "optimizer", 90),
        ((("Module._call_impl", f"{TORCH}/nn/modules/module.py", 5),), "forward", 90),
        ((("barrier", f"{TORCH}/distributed/distributed_c10d.py", 5),), "collective", 90),
        ((("<module>", f"{TORCH}/_dynamo/convert_frame.py", 5),), "start_up", 90),
        ((("DataLoader._get_iterator", LOADER, 430),), "loader_restart", 90),
        ((("work", "/job/train.py", 30),), "python", 30),
    ],
)
def test_a_stack_tells_what_its_thread_does(
    frames: tuple[tuple[str, str, int], ...], activity: str, line: int
) -> None:
    found = doing(stack(*frames))
    assert (found.activity, found.line) == (activity, line)


def test_the_text_of_the_line_tells_of_calls_into_c(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text("x = loss.item()\ngc.collect()\ny = 1\n")
    later = file.stat().st_mtime_ns + 1
    told = [doing((Frame("main", str(file), n),), later).activity for n in (1, 2, 3)]
    assert told == ["scalar_read", "empty_cache", "python"]
    assert doing((Frame("main", str(file), 1),), later - 10).activity == "python"


def test_a_worker_works_only_while_it_fetches() -> None:
    inherited = ("__init__", LOADER, 1176)
    loop = ("_worker_loop", WORKER, 330)
    waiting = stack(inherited, loop, ("get", "/env/lib/python3.11/multiprocessing/queues.py", 113))
    working = stack(inherited, loop, ("fetch", FETCH, 54), ("D.__getitem__", "/job/d.py", 6))
    assert role_of(waiting) == role_of(working) == "loader worker"
    assert worker_doing(waiting) is None
    found = worker_doing(working)
    assert found is not None
    assert (found.file, found.line, found.stage) == ("/job/d.py", 6, "sample")


def test_the_refusal_says_what_would_allow_it(tmp_path: Path) -> None:
    scope = tmp_path / "ptrace_scope"
    scope.write_text("1\n")
    assert "sysctl kernel.yama.ptrace_scope=0" in not_permitted(1 << 30, scope)
    scope.write_text("3\n")
    assert "until a restart" in not_permitted(1 << 30, scope)
    assert "SYS_PTRACE" in not_permitted(1 << 30, tmp_path / "none")


def pieces(*told: tuple[float, str], start_s: float = 0.0) -> list[Piece]:
    """Stretches end to end: (seconds, activity)."""
    found, at = [], start_s
    for lasted, activity in told:
        what = Doing(activity, "/job/train.py", 7, activity)
        found.append(Piece(round(at * S), round((at + lasted) * S), what))
        at += lasted
    return found


def trainer(pid: int, told: list[Piece]) -> Trainer:
    return Trainer(Usage(member(pid, 1, "python", "train.py"), 0, 0), pid, told)


def test_the_interval_holds_the_share_and_widens_for_long_stays() -> None:
    short = share_of(pieces(*[(0.05, "loader"), (0.05, "forward")] * 300), "loader", 47)
    long = share_of(pieces(*[(7.5, "loader"), (7.5, "forward")] * 2), "loader", 47)
    assert short.mid == pytest.approx(0.5)
    assert short.low < 0.5 < short.high
    assert long.high - long.low > 3 * (short.high - short.low)
    assert share_of([], "loader", 47).high == 1.0


@given(
    st.lists(
        st.tuples(
            st.floats(0.01, 5), st.sampled_from(["loader", "forward", "checkpoint", "start_up"])
        ),
        min_size=1,
        max_size=40,
    ),
    st.lists(st.one_of(st.floats(0, 1), st.just(float("nan"))), min_size=1, max_size=30),
)
def test_seconds_add_up_with_and_without_a_gpu(
    told: list[tuple[float, str]], busy: list[float]
) -> None:
    one = trainer(5, pieces(*told))
    at = np.arange(len(busy) + 1, dtype=np.int64) * S
    gpu = Gpu(0, "GPU-1", "H100", at[:-1], at[1:], np.array(busy), len(busy), S)
    for gpus in ({}, {5: gpu}):
        ledger = ledger_of(accounts_of([one], gpus), 47)
        assert ledger is not None
        device = ledger.devices[0]
        for parts in (
            (device.busy_s, device.idle_s, device.unknown_s),
            (device.useful_s, device.lost_s, device.unexplained_s, device.unknown_s),
        ):
            assert min(parts) >= 0
            assert sum(parts) == pytest.approx(device.wall_s)
        assert sum(row.lost_s for row in ledger.ledger) == pytest.approx(device.lost_s, abs=1e-6)


def test_idle_time_of_a_gpu_goes_to_the_stall_beside_it() -> None:
    """Planted: idle for 0.6 of each second; the thread waits 0.5 s of it, then saves for 2 s."""
    one = trainer(5, pieces(*[(0.5, "loader"), (0.5, "forward")] * 4, (2, "checkpoint")))
    at = np.arange(7, dtype=np.int64) * S
    gpu = Gpu(0, "GPU-1", None, at[:-1], at[1:], np.full(6, 0.4), 6, S)
    account = accounts_of([one], {5: gpu})[0]
    assert account.lost_to("loader") / S == pytest.approx(4 * 0.5)
    assert account.lost_to("checkpoint") / S == pytest.approx(2 * 0.6)


def test_a_gpu_belongs_to_the_process_that_nvidia_smi_names() -> None:
    at = np.array([0, 1], np.int64)
    gpus = [Gpu(n, f"GPU-{n}", None, at[:1], at[1:], np.array([0.5]), 1, S) for n in range(2)]
    found = gpu_of_each([5, 6], gpus, {5: {"GPU-1"}, 6: {"GPU-0", "GPU-1"}})
    assert found == {5: gpus[1]}


def test_waits_for_a_late_rank_are_put_where_that_rank_is() -> None:
    early = trainer(1, pieces((0.1, "forward"), (0.9, "collective"), (0.1, "forward")))
    late = trainer(2, pieces((0.8, "loader"), (0.2, "collective"), (0.1, "forward")))
    first, second = with_late_ranks([early, late])
    waits = [p for p in first.pieces if p.doing.activity == "late"]
    assert sum(p.end_ns - p.start_ns for p in waits) == round(0.7 * S)
    assert waits[0].doing.line == 7
    assert "rank 2" in waits[0].doing.op
    assert first.seen_ns == early.seen_ns
    assert second == late


def test_whether_torch_is_loaded_is_known_from_the_map_of_a_process(tmp_path: Path) -> None:
    known = {}
    for pid, maps in ((1, "7f00 r-xp /lib/libtorch_cpu.so\n"), (2, "7f00 /lib/libc.so\n"), (3, "")):
        (tmp_path / f"proc/{pid}").mkdir(parents=True)
        (tmp_path / f"proc/{pid}/maps").write_text(maps)
        known[pid] = limits(pid, tmp_path / "proc", tmp_path / "groups").torch
    assert known == {1: True, 2: False, 3: None}
