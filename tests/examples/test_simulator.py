"""The simulator keeps its own laws, so that its planted seconds can be trusted as a truth."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from examples.simulate.hardware import QUEUE_DEPTH, Gpu, GpuModel, Kernel
from examples.simulate.models import resnet
from examples.simulate.recorder import DEVICE_WORK, Span
from examples.simulate.scenarios import Scenario, all_scenarios, wall_s
from examples.simulate.training import Plan, Run, run

SCENARIOS = all_scenarios()


def scenario_names() -> list[str]:
    return list(SCENARIOS)


@pytest.fixture(scope="module")
def simulated() -> dict[str, list[Run]]:
    return {}


def runs_of(simulated: dict[str, list[Run]], name: str) -> list[Run]:
    if name not in simulated:
        simulated[name] = SCENARIOS[name].simulate()
    return simulated[name]


@pytest.mark.parametrize("name", scenario_names())
def test_work_on_one_stream_never_overlaps(simulated: dict[str, list[Run]], name: str) -> None:
    for one in runs_of(simulated, name):
        lanes: dict[int, list[Span]] = defaultdict(list)
        for span in one.recorder.spans:
            if span.cat in DEVICE_WORK:
                lanes[span.thread].append(span)
        for spans in lanes.values():
            spans.sort(key=lambda s: s.start_ns)
            for before, after in zip(spans, spans[1:], strict=False):
                assert before.end_ns <= after.start_ns, (before, after)


@pytest.mark.parametrize("name", scenario_names())
def test_every_launch_precedes_its_device_work(simulated: dict[str, list[Run]], name: str) -> None:
    for one in runs_of(simulated, name):
        calls = {s.args["correlation"]: s for s in one.recorder.spans if s.cat == "cuda_runtime"}
        work = [s for s in one.recorder.spans if s.cat in DEVICE_WORK]
        assert work or SCENARIOS[name].unrecorded
        for span in work:
            assert calls[span.args["correlation"]].start_ns < span.start_ns


@pytest.mark.parametrize("name", scenario_names())
def test_spans_of_one_host_thread_nest(simulated: dict[str, list[Run]], name: str) -> None:
    for one in runs_of(simulated, name):
        threads: dict[int, list[Span]] = defaultdict(list)
        for span in one.recorder.spans:
            if span.device is None:
                threads[span.thread].append(span)
        for spans in threads.values():
            spans.sort(key=lambda s: (s.start_ns, -s.end_ns))
            open_ends: list[int] = []
            for span in spans:
                while open_ends and open_ends[-1] <= span.start_ns:
                    open_ends.pop()
                assert not open_ends or span.end_ns <= open_ends[-1], span
                open_ends.append(span.end_ns)


def test_a_collective_ends_at_the_same_instant_on_every_rank_and_after_the_last_start() -> None:
    ranks = SCENARIOS["straggler"].simulate()
    meetings = [
        [s for s in one.recorder.spans if s.cat == "kernel" and s.name.startswith("nccl")]
        for one in ranks
    ]
    assert len({len(spans) for spans in meetings}) == 1
    assert meetings[0]
    for together in zip(*meetings, strict=True):
        assert len({s.end_ns for s in together}) == 1
        assert max(s.start_ns for s in together) < together[0].end_ns


def test_the_same_seed_gives_the_same_bytes_and_another_seed_does_not(tmp_path: Path) -> None:
    paths = [tmp_path / f"{n}.json.gz" for n in range(3)]
    for path, seed in zip(paths, (1, 1, 2), strict=True):
        run(Plan(steps=1, seed=seed))[0].recorder.write(path)
    first, second, other = (path.read_bytes() for path in paths)
    assert first == second
    assert first != other


def test_a_written_trace_says_that_it_is_simulated_and_keeps_the_marks(tmp_path: Path) -> None:
    path = tmp_path / "one.pt.trace.json.gz"
    one = run(Plan(steps=3, first_step=5), "simulated/one")[0]
    one.recorder.write(path)
    document = json.loads(gzip.decompress(path.read_bytes()))
    assert document["whyidle_simulated"] is True
    assert document["traceName"] == "simulated/one"
    marks = sorted(
        (e["ts"], e["name"], round(e["dur"] * 1000))
        for e in document["traceEvents"]
        if e["name"].startswith("ProfilerStep#") and e["cat"] == "user_annotation"
    )
    assert [name for _, name, _ in marks] == [f"ProfilerStep#{n}" for n in (5, 6, 7)]
    assert [dur for _, _, dur in marks] == [end - begin for begin, end in one.marks]


HOST_BOUND = resnet(batch=8)
"""The host needs 4 ms for a step and the GPU less, so what delays the host delays the step."""


@pytest.mark.parametrize(
    ("changes", "by_hand_s", "tolerance"),
    [
        ({"python_s": 0.012}, 6 * 0.012, 0.05),
        ({"compile_at": ((2, 0.5), (4, 0.4))}, 0.9, 0.02),
        # what the GPU works meanwhile is hidden, at most a step of 2 ms
        ({"profiler_outlier_s": 0.18}, 0.18, 0.02),
        # a write of 250 ms and 46 MB of weights at 5.5 GB/s
        ({"checkpoint_at": ((3, 0.25),)}, 0.25 + 11_506_152 * 4 / 5.5e9, 0.02),
        # four ranks wait for the one that is late, in each of six steps
        ({"ranks": 4, "slow_rank": 1, "slow_s": 0.009}, 4 * 6 * 0.009, 0.04),
        # four ranks lose what one of them collects
        ({"ranks": 4, "collect_at": ((2, 0, 0.03),)}, 4 * 0.03, 0.04),
        # rank 3 ran 30 ms ahead of rank 0, which hides as much of its own collection
        ({"ranks": 4, "collect_at": ((2, 0, 0.03), (4, 3, 0.04))}, 4 * 0.04, 0.04),
    ],
)
def test_seconds_put_in_are_seconds_lost_when_the_host_is_the_bottleneck(
    changes: dict[str, Any], by_hand_s: float, tolerance: float
) -> None:
    plan = Plan(model=HOST_BOUND, **changes)
    without = Plan(model=HOST_BOUND, ranks=plan.ranks)
    found = wall_s(run(plan)) - wall_s(run(without))
    assert found == pytest.approx(by_hand_s, rel=tolerance)


def test_host_work_that_fits_behind_queued_kernels_costs_nothing() -> None:
    plan = Plan()
    found = wall_s(run(replace(plan, python_s=0.002))) - wall_s(run(plan))
    assert found < 0.1 * 6 * 0.002


def test_planted_seconds_add_up_to_the_difference_between_the_run_and_its_fixed_twin() -> None:
    scenario = SCENARIOS["slow_loader"]
    difference = wall_s(scenario.simulate()) - wall_s(run(scenario.fixed()))
    assert sum(scenario.true_seconds().values()) == pytest.approx(difference, abs=1e-9)


@pytest.mark.parametrize("name", [n for n in SCENARIOS if SCENARIOS[n].planted])
def test_every_planted_cause_costs_at_least_a_tenth_of_the_wall(
    simulated: dict[str, list[Run]], name: str
) -> None:
    wall = wall_s(runs_of(simulated, name))
    scenario: Scenario = SCENARIOS[name]
    planted = scenario.planted[0]
    without = replace(scenario.plan, **planted.without)
    assert wall_s(run(without)) / planted.work < 0.9 * wall


def test_noise_of_what_stays_is_not_changed_by_what_is_taken_out() -> None:
    def kernels(plan: Plan) -> list[int]:
        spans = run(plan)[0].recorder.spans
        return [s.end_ns - s.start_ns for s in spans if s.cat == "kernel" and "xmma" in s.name]

    plan = Plan(steps=2)
    assert kernels(plan) == kernels(replace(plan, python_s=0.01, workers=0))


def test_a_full_launch_queue_holds_the_next_launch_until_there_is_room() -> None:
    gpu = Gpu(GpuModel())
    for _ in range(QUEUE_DEPTH):
        gpu.enqueue(7, 1_000, 10_000)
    assert gpu.room_at(0) == 1_000
    assert gpu.room_at(1_000) == 1_000


def test_a_kernel_of_fewer_blocks_than_sms_wastes_the_rest() -> None:
    gpu = GpuModel()
    full = Kernel("k", gpu.sms, 256, bytes=1e9).duration_ns(gpu)
    half = Kernel("k", gpu.sms // 2, 256, bytes=1e9).duration_ns(gpu)
    assert half == pytest.approx(2 * full, rel=1e-6)


def test_fp32_convolutions_are_slower_than_tensor_cores() -> None:
    def busy(precision: str) -> int:
        gpu = GpuModel()
        layers = resnet(precision=precision).layers
        return sum(k.duration_ns(gpu) for layer in layers for k in layer.forward)

    assert busy("fp32") > 3 * busy("tf32") > 3 * busy("bf16")
