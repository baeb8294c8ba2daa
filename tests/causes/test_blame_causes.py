"""A second run for every cause that lives on blame, built apart from the cause's own example.

The microseconds are computed by hand in each test, from the story alone.
"""

from __future__ import annotations

from tests.causes.told_stories import DISPATCH_US, copy, finding, judged, lost_us, work
from whyidle.stories import Story

LAUNCH = "small_work.launch_bound_small_kernels"
OPTIMIZER = "small_work.optimizer_launch_bound"
PYTHON = "small_work.python_between_ops"
LOOP = "small_work.python_loop_unvectorised"
READ = "small_work.host_sync_scalar_read"
SYNC = "small_work.host_sync_implicit"
ON_CPU = "small_work.cpu_op_inside_step"
COMPILE = "small_work.recompile_dynamic_shapes"
LATENCY = "small_work.kernel_launch_latency"
COPY = "data_loading.h2d_copy_blocking"
LOADER = "data_loading.loader_workers_too_few"
RESTART = "data_loading.worker_restart_per_epoch"
ALLOCATOR = "memory.allocator_pressure"
DEBUG = "blind_spots.debug_left_on"
EVALUATION = "blind_spots.eval_pause"
CHECKPOINT = "blind_spots.checkpoint_pause"
LOGGING = "blind_spots.logging_overhead"
PROFILER = "blind_spots.profiler_overhead"
WARM_UP = "blind_spots.warm_up_recorded"


def test_operators_of_the_autograd_thread_that_launch_late_are_launch_bound() -> None:
    story = Story(name="AMD Instinct MI300X", sms=304, capability=None)
    work(story, 0, 200)
    story.op("autograd::engine::evaluate_function: MmBackward0", 150, 400, thread="autograd")
    story.op("aten::mm", 170, 390, thread="autograd")
    call = (300, 310)
    story.launch("Cijk_Ailk_Bljk", call, (310, 500), by="hipLaunchKernel", thread="autograd")
    # the window opens with the first kernel at 8; empty from 200 to 310: operators, then the call
    assert lost_us(story, "empty") == {LAUNCH: 110}
    assert finding(story, LAUNCH).where[0].thread == "autograd"


def test_python_and_operators_inside_zero_grad_belong_to_the_optimizer() -> None:
    story = Story().step(0, 0, 1200)
    work(story, 0, 1000)
    story.annotate("Optimizer.zero_grad#SGD.zero_grad", 1000, 1150)
    work(story, 1010, 1025, op="aten::zero_")
    work(story, 1100, 1200, op="aten::zero_")
    # empty 1000-1018 and 1025-1108, all inside the optimizer's range
    assert lost_us(story, "empty") == {LAUNCH: DISPATCH_US, OPTIMIZER: 18 + 83}
    what = [remedy.what for remedy in finding(story, OPTIMIZER).remedies]
    assert what == ["Drop gradients instead of zeroing them", "Use the fused optimizer"]


def test_an_optimizer_without_a_fused_form_is_told_to_compile() -> None:
    story = Story().step(0, 0, 1000)
    story.annotate("Optimizer.step#Muon.step", 0, 500)
    work(story, 400, 1000)
    assert lost_us(story, "empty") == {OPTIMIZER: 408}
    assert "torch.compile" in finding(story, OPTIMIZER).remedies[0].how


def test_the_garbage_collector_between_operators_is_python_and_gets_its_remedy() -> None:
    story = Story()
    work(story, 0, 100)
    story.frame("train.py(9): loop", 100, 400)
    story.frame("<built-in function collect>", 150, 350)
    work(story, 400, 1000)
    assert lost_us(story, "empty") == {PYTHON: 300, LAUNCH: DISPATCH_US}
    found = finding(story, PYTHON)
    assert found.level == "seen"
    assert {(place.file, place.line) for place in found.where} == {("train.py", 9)}
    assert found.remedies[-1].what == "Collect garbage when the device is busy"


def test_bare_python_is_deduced_inside_a_step_and_suspected_outside() -> None:
    for step, level in ((True, "deduced"), (False, "suspected")):
        story = Story()
        if step:
            story.step(0, 0, 1000)
        work(story, 0, 100)
        work(story, 400, 1000)
        assert lost_us(story)[PYTHON] == 300
        found = finding(story, PYTHON)
        assert found.level == level
        assert found.where[0].op == "Python between aten::mm and aten::mm"


def test_on_a_run_without_a_gpu_python_inside_the_optimizer_is_the_optimizers() -> None:
    story = Story().step(0, 0, 1000)
    story.op("aten::linear", 0, 300)
    story.op("aten::mse_loss", 400, 600)
    story.annotate("Optimizer.step#SGD.step", 600, 900)
    story.op("aten::add_", 700, 850)
    story.op("aten::mm", 900, 1000)
    # 300-400 in the step; 600-700 and 850-900 in the optimizer
    assert lost_us(story) == {PYTHON: 100, OPTIMIZER: 150}
    told = {row.cause for row in judged(story).not_judged}
    assert {LAUNCH, READ, SYNC, COPY, LATENCY} <= told


def turns(story: Story, count: int) -> int:
    """Turns of a Python loop: three indexing operators each, the device empty for 18 of 30 us."""
    for at in range(0, count * 30, 30):
        story.op("aten::select", at, at + 4)
        story.op("aten::slice", at + 6, at + 10)
        story.op("aten::copy_", at + 12, at + 20)
        story.launch("copy_kernel", (at + 14, at + 18), (at + 18, at + 30))
    return count * 30


def test_a_loop_over_elements_takes_its_operators_and_the_python_between_them() -> None:
    story = Story()
    end = turns(story.step(0, 0, 150 * 30 + 100 * 20), 150)
    for at in range(end, end + 100 * 20, 20):
        work(story, at, at + 20, op="aten::mul")
    # 450 indexing operators of 550; the window opens with the first mark
    assert lost_us(story, "empty") == {LOOP: 150 * 18, LAUNCH: 100 * DISPATCH_US}


def test_other_operators_of_the_loops_body_are_the_loops() -> None:
    story = Story().step(0, 0, 200 * 30)
    for at in range(0, 200 * 30, 30):
        story.op("aten::select", at, at + 4)
        story.op("aten::sub", at + 6, at + 10)
        story.op("aten::copy_", at + 12, at + 20)
        story.launch("copy_kernel", (at + 14, at + 18), (at + 18, at + 30))
    assert lost_us(story, "empty") == {LOOP: 200 * 18}


def test_fewer_than_300_indexing_operators_a_step_are_no_loop() -> None:
    story = Story()
    turns(story.step(0, 0, 99 * 30), 99)
    # per turn 4 + 4 + 6 us in operators and the call, 2 + 2 us of Python between them
    assert lost_us(story, "empty") == {LAUNCH: 99 * 14, PYTHON: 99 * 4}


def test_a_blocking_copy_of_a_result_to_the_host_counts_with_the_lead_it_destroyed() -> None:
    story = Story()
    work(story, 0, 500)
    story.op("aten::to", 20, 530)
    call, run = (30, 520), (505, 510)
    name, by = "Memcpy DtoH (Device -> Pageable)", "hipMemcpyWithStream"
    story.launch(name, call, run, kind="copy", by=by, bytes=4096)
    work(story, 530, 700)
    # 5 before the copy and 10 after it in the call, 5 copying alone: seen;
    # 10 to the end of aten::to and 8 of dispatch within the lead of 475: deduced
    assert lost_us(story) == {READ: 5 + 5 + 10 + 10 + DISPATCH_US}
    assert finding(story, READ).level == "seen"


def test_a_boolean_mask_is_a_hidden_wait() -> None:
    story = Story()
    work(story, 0, 600)
    story.op("aten::index", 20, 660)
    story.op("aten::nonzero", 25, 640)
    copy(story, "DtoH (Device -> Pageable)", (30, 40), (600, 602), 8)
    story.call("cudaStreamSynchronize", 40, 620)
    story.launch("index_kernel", (642, 648), (648, 900))
    # empty 602-620 in the wait, 620-640 in nonzero, 640-648 dispatch within the lead
    assert lost_us(story, "empty") == {SYNC: 18 + 20 + 8}
    assert finding(story, SYNC).where[0].op == "aten::index"


def test_an_operator_on_cpu_tensors_is_cpu_work_and_a_short_one_is_dispatch() -> None:
    story = Story()
    work(story, 0, 500)
    story.op("aten::max", 510, 900)
    work(story, 900, 950)
    story.op("aten::cat", 950, 1100)
    work(story, 1100, 1200)
    assert lost_us(story, "empty") == {ON_CPU: 390, PYTHON: 10, LAUNCH: 150 + 2 * DISPATCH_US}


def test_compiling_on_a_run_without_a_gpu_is_lost_with_the_operators_inside_it() -> None:
    story = Story().step(7, 0, 5000)
    story.op("aten::linear", 0, 1000)
    story.op("_compile.compile_inner (dynamo_timed)", 1000, 3000)
    story.op("aten::empty_strided", 1200, 1300)
    story.op("Torch-Compiled Region: 0/3", 3000, 5000)
    assert lost_us(story) == {COMPILE: 2000}


def test_a_start_delay_of_50_us_is_latency_and_one_of_51_us_is_not() -> None:
    story = Story().step(0, 0, 600)
    story.op("aten::add", 0, 40)
    story.launch("first", (5, 8), (8, 100))
    story.launch("second", (10, 13), (150, 200))
    story.launch("third", (15, 18), (251, 600))
    assert lost_us(story) == {LAUNCH: 8, LATENCY: 50}
    assert round(judged(story).unexplained_s * 1e6, 3) == 51


def test_a_pinned_copy_counts_where_no_kernel_hides_it_and_needs_overlap() -> None:
    story = Story().step(0, 0, 300)
    story.op("aten::to", 0, 20)
    copy(story, "HtoD (Pinned -> Device)", (5, 8), (8, 215), 1 << 22, lane=9)
    work(story, 100, 300)
    # alone from 8 until the kernel starts at 108
    assert lost_us(story) == {LAUNCH: 8, COPY: 100}
    found = finding(story, COPY)
    assert found.where[0].op == "aten::to: Memcpy HtoD (Pinned -> Device)"
    assert [remedy.effect["kind"] for remedy in found.remedies] == ["copies_overlapped"]


def batches(story: Story, pause: int) -> Story:
    """Five batches; the third, 40 ms late, comes ``pause`` us after the step before it."""
    at = 0
    for number in range(5):
        late = number == 2
        begin = at + (pause if late else 0)
        ready = begin + (40_000 if late else 500)
        story.annotate(
            "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", begin, ready
        )
        work(story, ready, ready + 3000)
        at = ready + 3000
    return story


def test_a_late_batch_after_a_pause_is_a_restart_and_without_one_a_slow_loader() -> None:
    # the window opens with the first kernel, so that the first batch is not in it
    assert lost_us(batches(Story(), 6000), "empty") == {
        RESTART: 40_000, LOADER: 3 * 500, PYTHON: 6000, LAUNCH: 4 * DISPATCH_US,
    }  # fmt: skip
    assert lost_us(batches(Story(), 0), "empty") == {
        LOADER: 40_000 + 3 * 500, LAUNCH: 4 * DISPATCH_US,
    }  # fmt: skip


def epochs(story: Story) -> Story:
    """Two epochs of three batches; each begins with 6 ms of starting workers and a late batch."""
    at = 0
    for epoch in range(2):
        ready = at + 6000
        story.frame("torch/utils/data/dataloader.py(433): _get_iterator", at, ready)
        for process in range(3):
            start = at + process * 2000
            story.frame("multiprocessing/process.py(110): start", start, start + 2000)
        for batch in range(3):
            name = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
            begin, ready = ready, ready + (4000 if batch == 0 else 500)
            story.annotate(name, begin, ready)
            work(story, ready, ready + 3000)
            ready += 3000
            story.step(epoch * 3 + batch, at, ready)
            at = ready
    return story


def test_with_stacks_the_start_of_workers_is_seen_and_the_first_one_is_start_up() -> None:
    story = epochs(Story())
    # the first epoch's 6 ms are start-up and its batches the loader's; 4 ms are 8 times the median
    expected = {WARM_UP: 6000, RESTART: 6000 + 4000, LOADER: 4000 + 4 * 500}
    assert lost_us(story, "empty") == expected | {LAUNCH: 6 * DISPATCH_US}
    assert finding(story, RESTART).level == "seen"
    assert (
        finding(story, RESTART).where[0].op == "torch/utils/data/dataloader.py(433): _get_iterator"
    )


def test_memory_asked_for_again_and_again_is_allocator_pressure_on_amd_too() -> None:
    story = Story(name="AMD Instinct MI300X", sms=304, capability=None)
    for number in range(3):
        begin = number * 1000
        story.step(number, begin, begin + 1000)
        story.op("aten::empty", begin, begin + 300)
        story.call("hipFree", begin + 20, begin + 120)
        story.call("hipMalloc", begin + 120, begin + 290)
        work(story, begin + 300, begin + 1000)
    assert lost_us(story, "empty") == {ALLOCATOR: 3 * 270, LAUNCH: 3 * (30 + DISPATCH_US)}


def test_launches_that_wait_for_their_kernel_are_a_debugging_aid_left_on() -> None:
    story = Story().step(0, 0, 24 * 150 + 130)
    for at in range(0, 25 * 150, 150):
        story.op("aten::mm", at, at + 130)
        story.launch("gemm", (at + 10, at + 118), (at + 14, at + 114))
    # after each kernel 4 in its own call, 12 + 10 in operators and 4 in the next call, within the
    # lead of 100; the last step ends with 4 + 12; 20 of Python between operators stay Python
    assert lost_us(story, "empty") == {DEBUG: 24 * 30 + 16, PYTHON: 24 * 20, LAUNCH: 14}
    assert finding(story, DEBUG).level == "deduced"
    assert "CUDA_LAUNCH_BLOCKING" in finding(story, DEBUG).remedies[0].how


def test_a_check_for_nan_that_waits_pays_for_the_launch_lead_it_destroyed() -> None:
    story = Story()
    node = "autograd::engine::evaluate_function: MmBackward0"
    story.op(node, 0, 640, thread="autograd")
    work(story, 2, 600, thread="autograd")
    story.op("aten::isnan", 20, 30, thread="autograd")
    story.op("aten::item", 30, 620, thread="autograd")
    story.call("cudaStreamSynchronize", 35, 615, thread="autograd")
    work(story, 640, 1000, op="autograd::engine::evaluate_function: Add", thread="autograd")
    # 15 in the wait and 5 in item(): seen; 20 of the node and 8 of dispatch: within the lead of 565
    assert lost_us(story, "empty") == {DEBUG: 15 + 5 + 20 + DISPATCH_US}
    assert finding(story, DEBUG).level == "deduced"
    assert [r.what for r in finding(story, DEBUG).remedies] == ["Turn anomaly detection off"]


def test_a_wait_for_the_loader_inside_an_evaluation_stays_the_loaders() -> None:
    story = Story().step(0, 0, 1000)
    story.frame("train.py(30): evaluate", 0, 600)
    story.annotate("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 100, 300)
    work(story, 600, 1000)
    assert lost_us(story, "empty") == {EVALUATION: 400, LOADER: 200, LAUNCH: DISPATCH_US}


def test_weights_copied_out_while_saving_belong_to_the_checkpoint() -> None:
    story = Story().step(0, 0, 1000)
    work(story, 0, 500)
    story.annotate("save_checkpoint", 400, 900)
    story.op("aten::to", 450, 620)
    copy(story, "DtoH (Device -> Pageable)", (460, 610), (510, 600), 1 << 20)
    work(story, 900, 1000)
    assert lost_us(story, "empty") == {CHECKPOINT: 10 + 300, LAUNCH: 2 * DISPATCH_US}
    assert lost_us(story, "copy") == {CHECKPOINT: 90}


def test_a_read_that_logging_asked_for_is_logging() -> None:
    story = Story().step(0, 0, 1000)
    work(story, 0, 400)
    story.frame("wandb/sdk/wandb_run.py(1800): log", 20, 520)
    story.op("aten::item", 30, 415)
    copy(story, "DtoH (Device -> Pageable)", (32, 36), (400, 402), 4)
    story.call("cudaStreamSynchronize", 36, 410)
    work(story, 520, 1000)
    assert lost_us(story) == {LOGGING: 120, LAUNCH: 2 * DISPATCH_US}


def test_the_first_call_after_the_profiler_starts_is_the_profilers() -> None:
    story = Story().step(0, 0, 5000)
    story.op("aten::add", 0, 3100)
    story.launch("add_kernel", (10, 3010), (3010, 4000))
    for at in range(3500, 3900, 100):
        work(story, at, at + 600)
    story.unlaunched("add_kernel", 4400, 5000)
    assert lost_us(story) == {PROFILER: 3000, LAUNCH: 10}
    assert finding(story, PROFILER).level == "suspected"


def test_modules_that_load_are_seen_and_a_slow_first_operator_is_deduced() -> None:
    story = Story().step(0, 0, 10_000)
    work(story, 0, 100)
    story.op("aten::mm", 100, 560)
    story.overhead("Lazy Function Loading", 110, 510)
    story.launch("other_gemm", (100, 520), (520, 1000))
    at = 1000
    for took in (2000, 50, 50):
        story.op("aten::cudnn_convolution", at, at + took)
        story.launch("conv", (at + took - 10, at + took - 5), (at + took - 5, at + took + 200))
        at += took + 200
    # the loading record 400, the first convolution's own 1,990; its call and the rest are dispatch
    assert lost_us(story)[WARM_UP] == 400 + 1990
    assert finding(story, WARM_UP).level == "deduced"
