"""Where two causes meet on blame: each keeps its own, to the microsecond, by hand."""

from __future__ import annotations

from tests.causes.told_stories import DISPATCH_US, copy, finding, judged, lost_us, work
from whyidle.stories import Story

LAUNCH = "small_work.launch_bound_small_kernels"
OPTIMIZER = "small_work.optimizer_launch_bound"
PYTHON = "small_work.python_between_ops"
READ = "small_work.host_sync_scalar_read"
SYNC = "small_work.host_sync_implicit"
ON_CPU = "small_work.cpu_op_inside_step"
COPY = "data_loading.h2d_copy_blocking"
LOADER = "data_loading.loader_workers_too_few"
ALLOCATOR = "memory.allocator_pressure"
EMPTY_CACHE = "memory.empty_cache_in_loop"
PROFILER = "blind_spots.profiler_overhead"
WARM_UP = "blind_spots.warm_up_recorded"


def test_an_item_on_a_cpu_tensor_inside_the_optimizer_reads_nothing_from_the_device() -> None:
    story = Story().step(0, 0, 1000)
    story.annotate("Optimizer.step#AdamW.step", 0, 400)
    story.op("aten::item", 50, 150)
    story.op("aten::_local_scalar_dense", 60, 140)
    work(story, 300, 1000)
    assert lost_us(story, "empty") == {OPTIMIZER: 308}


def test_after_a_synchronisation_the_loader_keeps_its_own_wait() -> None:
    story = Story().step(0, 0, 2000)
    work(story, 0, 600)
    story.call("cudaDeviceSynchronize", 20, 620)
    story.annotate("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 620, 900)
    work(story, 900, 2000)
    # 20 in the call; then the loader's 280; the dispatch after it lies within the lead of 580
    expected = {LAUNCH: DISPATCH_US, SYNC: 20 + DISPATCH_US, LOADER: 280}
    assert lost_us(story, "empty") == expected


def test_a_synchronisation_pays_for_dispatch_only_up_to_the_lead_it_destroyed() -> None:
    story = Story().step(0, 0, 1000)
    work(story, 0, 100)
    story.call("cudaStreamSynchronize", 90, 120)
    story.op("aten::mm", 120, 170)
    story.launch("gemm", (160, 170), (170, 1000))
    # the device was busy for 10 of the 30 us of waiting: 10 of the 50 us of dispatch are its loss
    assert lost_us(story, "empty") == {LAUNCH: DISPATCH_US + 40, SYNC: 20 + 10}


def test_a_wait_that_ends_when_the_device_does_costs_nothing_but_the_lead() -> None:
    story = Story().step(0, 0, 1000)
    work(story, 0, 600)
    story.call("cudaEventSynchronize", 20, 600)
    work(story, 600, 1000)
    assert lost_us(story, "empty") == {LAUNCH: DISPATCH_US, SYNC: DISPATCH_US}
    assert finding(story, SYNC).level == "deduced"


def test_before_backward_begins_the_thread_that_feeds_it_is_blamed() -> None:
    story = Story().step(0, 0, 1000)
    work(story, 0, 100)
    story.frame("loss.py(7): weigh", 100, 400)
    story.frame("<built-in method run_backward of torch._C._EngineBase object>", 400, 900)
    work(story, 420, 1000, op="autograd::engine::evaluate_function: Mm", thread="autograd")
    # 300 in the main thread's function; 20 in which main waits for autograd, which shows nothing
    assert lost_us(story, "empty") == {PYTHON: 300 + 20, LAUNCH: 2 * DISPATCH_US}
    place = finding(story, PYTHON).where[0]
    assert (place.file, place.line, place.thread) == ("loss.py", 7, "main")


def test_a_pageable_copy_blocks_its_caller_and_a_pinned_one_does_not() -> None:
    pageable = Story().step(0, 0, 1000)
    pageable.op("aten::to", 0, 300)
    copy(pageable, "HtoD (Pageable -> Device)", (10, 290), (50, 280), 1 << 22)
    work(pageable, 300, 1000)
    assert lost_us(pageable, "copy") == {COPY: 230}
    assert lost_us(pageable, "empty") == {COPY: 40 + 10, LAUNCH: 10 + 10 + DISPATCH_US}
    pinned = Story().step(0, 0, 1000)
    pinned.op("aten::to", 0, 20)
    copy(pinned, "HtoD (Pinned -> Device)", (10, 15), (15, 245), 1 << 22)
    work(pinned, 300, 1000)
    assert lost_us(pinned, "copy") == {COPY: 230}
    assert lost_us(pinned, "empty") == {LAUNCH: 15 + DISPATCH_US, PYTHON: 55}


def test_a_tiny_blocking_copy_to_the_device_is_a_hidden_wait() -> None:
    story = Story().step(0, 0, 1000)
    story.op("aten::to", 0, 50)
    copy(story, "HtoD (Pageable -> Device)", (10, 40), (20, 22), 8)
    story.call("cudaStreamSynchronize", 40, 45)
    work(story, 50, 1000)
    # 10-20 and 22-40 in the call, 40-45 in the wait beside it; lead: 0 of the wait's 5 us
    assert lost_us(story, "empty") == {SYNC: 10 + 18 + 5, LAUNCH: 10 + 5 + DISPATCH_US}
    assert lost_us(story, "copy") == {COPY: 2}


def steps_that_free(*which: int) -> Story:
    """Four steps; in these, cudaFree for 200 us outside operators, cudaMalloc for 100 us inside."""
    story = Story()
    for number in range(4):
        begin = number * 1000
        story.step(number, begin, begin + 1000)
        work(story, begin, begin + 200)
        if number in which:
            story.call("cudaFree", begin + 200, begin + 300)
            story.call("cudaFree", begin + 300, begin + 400)
            story.op("aten::empty", begin + 400, begin + 500)
            story.call("cudaMalloc", begin + 400, begin + 500)
        work(story, begin + (500 if number in which else 200), begin + 1000)
    return story


def test_memory_freed_outside_operators_in_every_step_is_an_emptied_cache() -> None:
    lost = lost_us(steps_that_free(0, 1, 2, 3), "empty")
    assert lost == {EMPTY_CACHE: 4 * 300, LAUNCH: 4 * 2 * DISPATCH_US}


def test_memory_freed_in_the_first_step_only_is_start_up() -> None:
    assert lost_us(steps_that_free(0), "empty") == {WARM_UP: 300, LAUNCH: 4 * 2 * DISPATCH_US}


def test_memory_freed_in_one_later_step_is_pressure() -> None:
    assert lost_us(steps_that_free(2), "empty") == {ALLOCATOR: 300, LAUNCH: 4 * 2 * DISPATCH_US}


def fetched(size: int, read: bool) -> Story:
    """A result fetched to the host, 200 us of Python, and 400 bytes sent back."""
    story = Story().step(0, 0, 1000)
    work(story, 0, 300)
    if read:
        story.op("aten::item", 20, 320)
        story.op("aten::_local_scalar_dense", 20, 320)
    else:
        story.op("aten::to", 20, 320)
    copy(story, "DtoH (Device -> Pageable)", (30, 310), (300, 304), size)
    story.frame("matcher.py(60): assign", 320, 520)
    story.op("aten::to", 520, 540)
    copy(story, "HtoD (Pageable -> Device)", (525, 532), (530, 532), 400)
    work(story, 540, 1000)
    return story


def test_results_fetched_worked_on_and_sent_back_are_cpu_work() -> None:
    # everything between the copies, 304 to 530; after the copy back 8 us of aten::to and dispatch
    expected = {LAUNCH: DISPATCH_US + 8 + DISPATCH_US, ON_CPU: 226}
    assert lost_us(fetched(40_000, read=False), "empty") == expected
    assert lost_us(fetched(40_000, read=False), "copy") == {READ: 4, COPY: 2}


def test_one_number_read_and_something_sent_later_is_a_read_not_cpu_work() -> None:
    lost = lost_us(fetched(4, read=True), "empty")
    # 304-320 in item(); 320-520 Python; 5 of aten::to; 5 in the tiny blocking copy
    assert lost == {READ: 16, PYTHON: 200, SYNC: 5, LAUNCH: DISPATCH_US + 5 + 8 + DISPATCH_US}


def test_a_silent_end_longer_than_the_record_was_cut_off_and_is_not_explained() -> None:
    for last, expected in ((1500, {PROFILER: 500}), (9000, {})):
        story = Story().step(0, 0, last)
        work(story, 0, 1000)
        lost = lost_us(story)
        assert lost.pop(LAUNCH) == DISPATCH_US
        assert lost == expected


def test_a_buffer_request_on_a_lane_of_its_own_is_the_profilers() -> None:
    story = Story().step(0, 0, 1000)
    work(story, 0, 100)
    story.overhead("Activity Buffer Request", 200, 500, thread="-1")
    work(story, 600, 1000)
    # 100-200 and 500-600 stay Python's
    expected = {LAUNCH: 2 * DISPATCH_US, PYTHON: 200, PROFILER: 300}
    assert lost_us(story, "empty") == expected


def test_a_first_call_as_long_as_its_later_twins_is_not_the_profilers_start() -> None:
    story = Story()
    for at in (0, 10_000):
        story.step(at // 10_000, at, at + 10_000)
        copy(story, "HtoD (Pageable -> Device)", (at, at + 4000), (at + 3000, at + 3900), 1 << 24)
        for begin in range(at + 4000, at + 10_000, 100):
            work(story, begin, begin + 100)
    assert PROFILER not in lost_us(story)


def test_a_copy_to_another_device_is_not_memory_bound_work() -> None:
    story = Story().step(0, 0, 1000)
    story.op("aten::copy_", 0, 20)
    copy(story, "PtoP (Device -> Device)", (5, 10), (10, 900), 1 << 24)
    work(story, 890, 1000)
    assert "copy" not in {row.state for row in judged(story).ledger}


def test_a_copy_in_the_words_of_other_vendors_is_still_a_copy_to_the_device() -> None:
    for name in ("HtoD (Host -> Device)", "M2D (Memory -> Device)"):
        story = Story().step(0, 0, 1000)
        story.op("aten::copy_", 0, 610)
        copy(story, name, (5, 600), (10, 590), 1 << 24)
        work(story, 620, 1000)
        assert lost_us(story, "copy") == {COPY: 580}
