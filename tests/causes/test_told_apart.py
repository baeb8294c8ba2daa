"""Faults that are easily taken for one another: each planted, and each with its look-alike."""

from __future__ import annotations

import random
from dataclasses import replace

import polars as pl
import pytest

from whyidle.causes import all_causes
from whyidle.causes.communication.sharding_too_aggressive import sharded_run
from whyidle.causes.scheduling.noisy_host import disturbed_run
from whyidle.cpu_stories import Clerk
from whyidle.diagnose import diagnose
from whyidle.model import SAMPLES, SPANS, Evidence, Facts, frame
from whyidle.stories import Story, loader_run

GEMM = "ampere_bf16_s16816gemm_bf16_128x128_tn"
REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"
NODE = "autograd::engine::evaluate_function: "


def lost(evidence: Evidence) -> dict[str, float]:
    """Seconds lost by cause."""
    found = diagnose(evidence)
    assert found.crashed == []
    return {finding.cause: finding.lost_s for finding in found.findings}


def told(evidence: Evidence) -> dict[str, str]:
    """What is told without seconds, by cause."""
    found = diagnose(evidence)
    assert found.crashed == []
    return {o.cause: f"{o.level}: {o.what}" for o in found.observations}


def accumulating(*, reduce_in: tuple[int, ...]) -> Evidence:
    """Three optimizer steps of two micro-batches; some of them reduce for 3 ms alone."""
    story = Story()
    for number in range(3):
        at = number * 20_000
        story.step(number, at, at + 20_000)
        for micro in range(2):
            begin = at + micro * 10_000
            story.op("aten::linear", begin, begin + 10)
            long = 7005 if micro in reduce_in else 10_005
            story.launch(GEMM, (begin, begin + 5), (begin + 5, begin + long))
            story.op(f"{NODE}MulBackward0", begin + 50, begin + 90, thread="autograd")
            if micro in reduce_in:
                node = f"{NODE}torch::autograd::AccumulateGrad"
                story.op(node, begin + 100, begin + 140, thread="autograd")
                story.op("c10d::allreduce_", begin + 105, begin + 135, thread="autograd")
                call, run = (begin + 110, begin + 120), (begin + 7005, begin + 10_005)
                story.launch(REDUCE, call, run, thread="autograd", lane=20)
        story.annotate("Optimizer.step#SGD.step", at + 19_000, at + 19_010)
    return story.evidence()


def test_only_reductions_that_a_later_micro_batch_repeats_are_needless() -> None:
    found = lost(accumulating(reduce_in=(0, 1)))
    assert found["communication.sync_every_microstep"] == pytest.approx(3 * 3e-3)
    assert found["communication.exposed_communication"] == pytest.approx(3 * 3e-3)


def test_one_reduction_a_step_is_communication_and_none_of_it_needless() -> None:
    found = lost(accumulating(reduce_in=(1,)))
    assert "communication.sync_every_microstep" not in found
    assert found["communication.exposed_communication"] == pytest.approx(3 * 3e-3)


def encoder_run(*, trained: bool) -> Evidence:
    """Four steps; an encoder takes 4 of 10 ms, with gradients or without."""
    story = Story()
    for number in range(4):
        at = number * 10_000
        story.step(number, at, at + 10_000)
        story.op("aten::conv2d", at, at + 12, **({"sequence": number + 100} if trained else {}))
        story.launch("implicit_convolve_sgemm", (at + 2, at + 8), (at + 8, at + 4008))
        story.op("aten::linear", at + 20, at + 40, sequence=number)
        story.launch("ampere_sgemm_128x64_tn", (at + 22, at + 28), (at + 4008, at + 7008))
        story.op(f"{NODE}AddmmBackward0", at + 50, at + 80, "backward", sequence=number)
        story.op("aten::mm", at + 52, at + 75, thread="backward")
        run = (at + 7008, at + 10_008)
        story.launch("ampere_sgemm_128x64_nt", (at + 55, at + 60), run, thread="backward")
    return story.evidence()


def test_a_frozen_encoder_is_told_and_a_trained_one_is_not() -> None:
    name = "model_design.redundant_frozen_compute"
    assert "40%" in told(encoder_run(trained=False))[name]
    assert name not in told(encoder_run(trained=True))


CPUS, DISK = "scheduling.cpu_allocation", "data_loading.slow_storage"


def test_threads_that_want_to_run_are_short_of_cpus_and_not_of_storage() -> None:
    found = told(Clerk(machine_cpus=64).job(cpus=2, running=9, on_disk=1, gpu=0.1).evidence())
    assert found[CPUS].startswith("deduced: Job train-0/trainer on node1 had 9 threads")
    assert "2 CPUs (the machine has 64)" in found[CPUS]
    assert DISK not in found


def test_threads_that_wait_for_a_disk_are_short_of_storage_and_not_of_cpus() -> None:
    found = told(Clerk(machine_cpus=64).job(cpus=2, running=3, on_disk=6, gpu=0.1).evidence())
    assert found[DISK].startswith("deduced: Job train-0/trainer on node1 had 6 threads")
    assert CPUS not in found


def test_reads_in_the_loader_are_storage_and_say_nothing_of_cpus() -> None:
    read = "<built-in method read of _io.BufferedReader object at 0x1>"
    found = told(loader_run(read, 2000))
    assert DISK in found
    assert CPUS not in found


@pytest.mark.parametrize(
    "job",
    [
        {"cpus": 4, "used": 4, "held": 0.24, "gpu": 0.2},  # Kubernetes' alert begins at 25 %
        {"cpus": 4, "running": 5, "gpu": 0.2},  # the portal's notice begins above 1.25 a core
        {"cpus": 4, "running": 40, "gpu": 0.9},  # the GPU does not starve
        {"running": 40, "gpu": 0.2},  # nobody says how many CPUs there are
        {"cpus": 4, "used": 4, "gpu": 0.2},  # busy CPUs alone are not too few
    ],
)
def test_a_job_whose_cpus_suffice_or_are_not_known_is_not_short_of_them(
    job: dict[str, float],
) -> None:
    assert CPUS not in told(Clerk(machine_cpus=64).job(**job).evidence())


def test_one_look_at_the_threads_makes_it_suspected() -> None:
    story = Clerk(readings=1).job(cpus=1, running=13)
    assert told(story.evidence())[CPUS].startswith("suspected: ")


NOISE = "scheduling.noisy_host"


def test_a_crowded_machine_is_noisy_only_where_others_crowd_it() -> None:
    others = Clerk(machine_cpus=32, machine_used=30, load=50).job(used=6, gpu=0.3)
    own = Clerk(machine_cpus=32, machine_used=30, load=50).job(used=28, gpu=0.3)
    roomy = Clerk(machine_cpus=32, machine_used=30, load=31).job(used=6, gpu=0.3)
    busy = Clerk(machine_cpus=32, machine_used=30, load=50).job(used=6, gpu=0.8)
    assert "24 were not used by job train-0/trainer" in told(others.evidence())[NOISE]
    assert all(NOISE not in told(clerk.evidence()) for clerk in (own, roomy, busy))


@pytest.mark.parametrize(("gpu", "words"), [(0.0, "ran something for 0% of"), (None, None)])
def test_gpus_that_never_ran_are_told_of_and_those_not_read_are_not(
    gpu: float | None, words: str | None
) -> None:
    run = Clerk(machine_cpus=32, machine_used=30, load=50).job(used=6, gpu=gpu).evidence()
    said = told(run)[NOISE]
    assert words in said if words else "GPU" not in said


def test_loading_and_launching_that_slow_down_together_are_a_noisy_host() -> None:
    found = told(disturbed_run())[NOISE]
    # by hand: loads of 3 and 1 ms, launches of 15 and 5 us, each longer by up to 40 and 1
    assert found.startswith("suspected: In steps 8 to 13 of rank 0 loading took 3.02 ms instead ")
    assert "a launch call 15.5 us instead of 6" in found


@pytest.mark.parametrize(
    ("loader", "launches", "first"), [(True, False, 8), (False, True, 8), (True, True, 1)]
)
def test_one_of_them_alone_or_a_slow_start_is_no_noisy_host(
    loader: bool, launches: bool, first: int
) -> None:
    assert NOISE not in told(disturbed_run(loader=loader, launches=launches, first=first))


def test_hooks_of_the_wrapper_are_not_taken_for_slow_communication() -> None:
    evidence, planted = all_causes()["communication.wrapper_host_overhead"].example()
    found = lost(evidence)
    assert found["communication.wrapper_host_overhead"] == pytest.approx(planted)
    assert "communication.exposed_communication" not in found


def test_slow_communication_is_not_taken_for_hooks_of_the_wrapper() -> None:
    evidence, planted = all_causes()["communication.exposed_communication"].example()
    found = lost(evidence)
    assert found["communication.exposed_communication"] == pytest.approx(planted)
    assert "communication.wrapper_host_overhead" not in found


def checked(*, by_engine: bool) -> Evidence:
    """Three steps; checks for NaN of 300 us, below a backward node or in the user's own loop."""
    story = Story()
    thread = "autograd" if by_engine else "main"
    for number in range(3):
        begin = number * 1000
        story.step(number, begin, begin + 1000)
        if by_engine:
            story.op(f"{NODE}MulBackward0", begin, begin + 700, thread)
        story.op("aten::mul", begin + 2, begin + 12, thread)
        story.launch(
            "mul_kernel", (begin + 5, begin + 10), (begin + 10, begin + 300), thread=thread
        )
        for at, check in ((300, "isnan"), (400, "any"), (500, "item")):
            story.op(f"aten::{check}", begin + at, begin + at + 100, thread)
        story.op("aten::mm", begin + 620, begin + 640, thread)
        story.launch("gemm", (begin + 625, begin + 630), (begin + 630, begin + 1000), thread=thread)
    return story.evidence()


def test_anomaly_mode_is_known_from_the_users_own_check_for_nan() -> None:
    name = "blind_spots.debug_left_on"
    assert lost(checked(by_engine=True))[name] == pytest.approx(3 * 300e-6)
    assert name not in lost(checked(by_engine=False))


def test_a_debugger_is_told_and_a_file_of_the_user_with_such_a_name_is_not() -> None:
    def run_by(frame: str) -> Evidence:
        story = Story().frame(frame, 0, 1200).step(0, 10, 1010)
        return story.launch("gemm", (20, 30), (30, 1010)).evidence()

    name = "blind_spots.debug_left_on"
    for own in (
        "debugpy/server/cli.py(430): main",
        "/opt/pycharm/plugins/python/pydevd.py(2100): main",
        "_pydevd_bundle/pydevd_cython_wrapper.py(10): trace_dispatch",
    ):
        assert told(run_by(own))[name].startswith("seen: A debugger is attached")
    for other in ("tools/my_debugpy.py(3): main", "data/mypdb.py(8): load_pdb"):
        assert name not in told(run_by(other))


SHARDS = "communication.sharding_too_aggressive"


def test_gathering_again_in_backward_is_told_with_its_time() -> None:
    # by hand: two gathers of 1 ms alone in each of three steps of 10 ms
    assert "6 ms (20.0% of the time)" in told(sharded_run())[SHARDS]


@pytest.mark.parametrize(
    ("wrapped", "again", "hidden"),
    [(False, True, False), (True, False, False), (True, True, True)],
    ids=["activations of sequence parallelism", "kept from forward", "hidden behind kernels"],
)
def test_other_gathers_are_not_sharding_that_is_too_aggressive(
    wrapped: bool, again: bool, hidden: bool
) -> None:
    assert SHARDS not in told(sharded_run(wrapped=wrapped, again=again, hidden=hidden))


def test_opening_many_files_is_told_apart_from_reading_one() -> None:
    name = "data_loading.file_layout"
    opened = told(loader_run("<built-in function open>", 2000))
    read = told(loader_run("<built-in method read of _io.BufferedReader object at 0x1>", 2000))
    assert "6 ms of the 15 ms" in opened[name]
    assert name not in read


def test_a_simulation_is_told_and_the_users_own_python_is_not() -> None:
    name = "data_loading.cpu_sampling_or_simulation"
    sampled = told(loader_run("torch_geometric/sampler/neighbor_sampler.py(150): sample", 3000))
    own = told(loader_run("my_gymnasium_tools/core.py(20): step", 3000))
    assert "9 ms of the 15.02 ms" in sampled[name]
    assert name not in own


def with_memory(evidence: Evidence, *, total: float, reserved: float) -> Evidence:
    """The run with sizes of its gathers (64 MiB each) and the readings of its allocator."""
    sizes = pl.when(pl.col("name") == "c10d::_allgather_base_")
    spans = evidence.table("spans").with_columns(
        sizes.then(pl.lit(f"[[{16 * 2**20}], [{2**20}], [], [], []]")).alias("shapes"),
        sizes.then(pl.lit('["float", "float", "", "Scalar", "Scalar"]')).alias("types"),
    )
    row = {"source": 0, "rank": 0, "device": 0, "metric": "allocator.reserved", "value": reserved}
    tables = {**evidence.tables, "spans": frame(SPANS, spans), "samples": frame(SAMPLES, [row])}
    info = replace(evidence.facts.device(0, 0), memory_bytes=int(total))
    return replace(evidence, tables=tables, facts=Facts(devices={(0, 0): info}))


@pytest.mark.parametrize(("free", "level"), [(200, "deduced"), (100, None)])
def test_gathering_twice_is_advised_against_where_memory_would_hold_the_parameters(
    free: int, level: str | None
) -> None:
    # by hand: two layers of 16 Mi numbers of four bytes are 128 MiB
    mib = 2**20
    evidence = with_memory(sharded_run(), total=1000 * mib, reserved=(1000 - free) * mib)
    found = told(evidence)
    assert (SHARDS in found) == (level is not None)
    if level is not None:
        assert found[SHARDS].startswith(f"{level}: ")
        assert "takes 0.125 GiB, and 0.195 GiB were free" in found[SHARDS]


def timed_run(loads_us: list[int], calls_us: list[int]) -> Evidence:
    """One step for each pair: how long it loads, and how long each of its five launches lasts."""
    story, at = Story(), 0
    for number, (load, call) in enumerate(zip(loads_us, calls_us, strict=True)):
        story.step(number, at, at + load + 5000)
        story.annotate("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at, at + load)
        for index in range(5):
            begin = at + load + index * 500
            run = (begin + call, begin + call + 400)
            story.launch("ampere_gemm_tn", (begin, begin + call), run)
        at += load + 5000
    return story.evidence()


def test_steps_that_slow_down_little_by_little_are_no_noisy_host() -> None:
    growing = timed_run([1000 + 200 * i for i in range(16)], [10 + 3 * i for i in range(16)])
    assert NOISE not in told(growing)


def test_steps_that_differ_by_chance_are_no_noisy_host() -> None:
    chance = random.Random(7)
    for _ in range(20):
        both = [chance.lognormvariate(0, 0.5) for _ in range(12)]
        loads = [round(1000 * value) for value in both]
        calls = [max(1, round(20 * value * chance.lognormvariate(0, 0.1))) for value in both]
        assert NOISE not in told(timed_run(loads, calls))
