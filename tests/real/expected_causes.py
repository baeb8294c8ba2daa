"""What a reader of each real trace should be told, found by hand from the raw events.

Every empty interval of the window was matched to the device activity that ends it, to its launch
call and thread, and the deepest host event of that thread was charged until the call began.
Shares are of the device's wall. A band holds what the rules leave open (who owns the dispatch after
a wait, Python inside an operator), nothing else; what could not be verified is left out.
"""

from __future__ import annotations

from dataclasses import dataclass, field

ANY = ("compute", "communication", "copy", "empty")
EMPTY = ("empty",)
DEVICE_DELAY = ("small_work.kernel_launch_latency",)
"""The device's own delay after a launch call; hand figures of the host do not hold it."""
EXPOSED = ("communication",)


@dataclass(frozen=True)
class Band:
    """Causes below these prefixes, less ``but``, lose this share of wall in these states."""

    causes: tuple[str, ...]
    low: float
    high: float
    why: str
    states: tuple[str, ...] = EMPTY
    but: tuple[str, ...] = ()


@dataclass(frozen=True)
class Expected:
    """What is known of one trace; ``first`` loses most of the empty time and of the copies."""

    bands: tuple[Band, ...] = ()
    first: tuple[str, ...] = ()
    named: tuple[str, ...] = ()
    unrecorded: tuple[float, float] = (0.0, 0.01)


LOADER = ("data_loading",)
HOST = ("small_work", "communication")
LAUNCH = ("small_work.launch_bound_small_kernels",)
PYTHON = ("small_work.python_between_ops",)
SYNC = ("small_work.host_sync_scalar_read", "small_work.host_sync_implicit")
WAITING = ("communication",)
ALLOCATOR = ("memory.allocator_pressure", "memory.empty_cache_in_loop")
FP32 = "memory.fp32_no_tensor_cores"


NO_COMMUNICATION = Band(WAITING, 0, 0.002, "no collective in the file", ANY)
MIXED = Band((FP32,), 0, 0.02, "GEMMs run as bf16 or tf32 on tensor cores", ANY)


def never(causes: tuple[str, ...], most: float, why: str) -> Band:
    """At most this share of wall in any state."""
    return Band(causes, 0, most, why, ANY)


def no_loader(most: float, why: str) -> Band:
    """At most this share of wall waiting for a loader; copies to the device are another matter."""
    return Band(LOADER, 0, most, why, ANY, but=("data_loading.h2d_copy_blocking",))


NO_LOADER = no_loader(0.002, "no DataLoader event")


@dataclass(frozen=True)
class Job:
    """Ranks that were recorded together: waiting for ``late`` in rank seconds, all ranks."""

    files: tuple[str, ...]
    late: int
    low_s: float
    high_s: float
    why: str
    waits: dict[int, float] = field(default_factory=dict)


TABLE: dict[str, Expected] = {
    "kineto__samples__resnet50_num_workers_0__worker0.1623143089861.pt.trace.json.gz": Expected(
        (
            Band(LOADER, 0.315, 0.36, "6 single-process __next__ of 48-62 ms before each copy"),
            Band(HOST, 0.05, 0.105, "operators 4.4 %, zero_grad 2.3, launches 1.4, Python 0.6"),
            never(WAITING, 0.001, "one GPU, no collective"),
            never(ALLOCATOR, 0.005, "no cudaMalloc or cudaFree in the window"),
        ),
        first=LOADER,
        named=(FP32,),
    ),
    "kineto__samples__resnet50_num_workers_4__worker0.1623212756351.pt.trace.json.gz": Expected(
        (
            Band(LOADER, 0.004, 0.03, "__next__ holds 7.1 ms of 232 ms empty"),
            Band(HOST, 0.14, 0.235, "operators 11.3 %, zero_grad 3.3, launches 2.8, Python 2.8"),
            Band(
                ("blind_spots",),
                0.03,
                0.06,
                "first cudaMemcpyAsync after the profiler starts takes 40 ms, later ones 2-4 ms",
            ),
            never(WAITING, 0.001, "one GPU, no collective"),
        ),
        first=("small_work",),
        named=(FP32,),
    ),
    "hta__df_index_resolver__df_index_resolver.json.gz": Expected(
        (
            Band(HOST, 0.33, 0.425, "415 of 604 ms late in backward nodes of the autograd thread"),
            Band(LAUNCH, 0.22, 0.37, "operators 24.4 % and launch calls 5.4 % of wall"),
            Band(WAITING, 0.10, 0.2057, "2,020 all-reduces, alone on the device 20.6 %", EXPOSED),
            NO_LOADER,
            never(ALLOCATOR, 0.005, "no allocator call in the window"),
            never(SYNC, 0.005, "no synchronisation call on the launching threads"),
        ),
        first=("small_work",),
        named=(FP32,),
    ),
    "hta__negative_queue_length_values_check__rank0.json.gz": Expected(
        (
            Band(HOST, 0, 0.03, "host late for 14 of 794 ms empty"),
            Band(WAITING, 0.05, 0.1504, "collectives alone on the device 15.0 %", EXPOSED),
            no_loader(0.01, "no DataLoader event; copy_batch_to_gpu 0.25 %"),
        ),
        unrecorded=(0.44, 0.62),  # 616 ms before nodes of launched graphs, 83 without record
    ),
    "hta__trace_diff__control__control.json.gz": Expected(
        (
            Band(
                HOST,
                0.09,
                0.155,
                "operators 7.3 %, annotations 3.8, launches 2.4",
                but=DEVICE_DELAY,
            ),
            Band(WAITING, 0.10, 0.1891, "collectives alone on the device 18.9 %", EXPOSED),
            no_loader(0.006, "six __next__ of 0.07 ms; the 55 MB copies after them are pinned"),
        ),
        first=("small_work",),
    ),
    "hta__ns_resolution_trace__rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz": Expected(
        (
            Band((*HOST, "blind_spots"), 0.003, 0.0229, "first 6 ms: DDP forward's host part"),
            NO_LOADER,
        ),
        named=(FP32,),
    ),
    "hta__trace_filter__sampled_rank-0.json.gz": Expected(
        (
            Band(HOST, 0, 0.26, "31.9 % of wall: launched long before, start late"),
            no_loader(0.02, "## data_load ## holds 0.3 %"),
        ),
    ),
    "hta__trace_filter__sampled_rank-1.json.gz": Expected(
        (
            Band(HOST, 0, 0.28, "26.6 % of wall: launched long before, start late"),
            no_loader(0.02, "## data_load ## holds 0.9 %"),
        ),
    ),
    "hta__trace_compare__base__base.json.gz": Expected(
        (Band(("",), 0, 0.02, "16 of 18 activities have no launch record, 10 host events left"),),
    ),
    "hta__trace_compare__test__test.json.gz": Expected(
        (Band(("",), 0, 0.02, "16 of 17 activities have no launch record"),),
    ),
    "param__resnet_kineto.json.gz": Expected(
        (
            Band(LOADER, 0.40, 0.48, "30 __next__, 6.66 s of 14.5 s; the first one takes 1.9 s"),
            never(ALLOCATOR, 0.015, "the slow cudaFree open cuDNN in the first convolution"),
            never(LAUNCH, 0.03, "first launches load modules (0.73 s and 0.11 s); others 0.15 %"),
            NO_COMMUNICATION,
        ),
        first=LOADER,
        named=(FP32,),
    ),
    "hta__critical_path__alexnet__benchmark_result_2869224_1695835535_trace.json.gz": Expected(
        (
            never(LAUNCH, 0.05, "one first cudaLaunchKernel takes 3.06 s: module loading"),
            never(ALLOCATOR, 0.17, "cudaMalloc 1.9 s; cudaFree 6.5 s opens cuDNN"),
            NO_LOADER,
            NO_COMMUNICATION,
        ),
    ),
    "hta__critical_path__simple_add__benchmark_result_493459_1694039959_trace.json.gz": Expected(
        (
            never(LAUNCH, 0.05, "one first cudaLaunchKernel takes 4.22 s: module loading"),
            never(ALLOCATOR, 0.04, "cudaMalloc 0.3 s; cudaFree 8.0 s opens cuDNN"),
            NO_LOADER,
            NO_COMMUNICATION,
        ),
    ),
    "lens__perf_model__normalization__normalization_layer_test.json.gz": Expected(
        (
            never(LAUNCH, 0.12, "hipLaunchKernel of 19-332 ms, each a kernel's first: loading"),
            never(ALLOCATOR, 0.01, "hipMalloc and hipFree 0.04 %"),
            NO_LOADER,
            NO_COMMUNICATION,
        ),
    ),
    "hta__amd_trace__mi250_minitoy_train_ROCm6_2_kineto.json.gz": Expected(
        (
            never(LAUNCH, 0.30, "one first hipLaunchKernel of 6.5 ms is 70 %; operators 17 %"),
            NO_LOADER,
            NO_COMMUNICATION,
        ),
    ),
    "hta__critical_path__cuda_event_sync__event_sync_trace.json.gz": Expected(
        (never(SYNC, 0.05, "item and its synchronisation leave 0.2 % empty"), NO_LOADER),
    ),
    "lens__h100__facebook_timesformer-base-finetuned-k400__1016002.json.gz": Expected(
        (
            Band(
                (*PYTHON, "small_work.cpu_op_inside_step", "small_work.python_loop_unvectorised"),
                0.53,
                0.59,
                "218 ms of video decoding and resizing in Python before the one big copy",
            ),
            never(LAUNCH, 0.02, "operators and launches 0.5 %"),
            never(SYNC, 0.02, "the 126 ms read of the result waits for a busy GPU"),
            NO_COMMUNICATION,
            MIXED,
        ),
        first=PYTHON,
    ),
    "lens__mi300__google_owlv2-large-patch14-ensemble__1016001.json.gz": Expected(
        (
            Band(LOADER, 0.60, 0.66, "5 single-process __next__ of 138-142 ms"),
            never(LAUNCH, 0.02, "operators and launches 1.0 %; the tail is aten::max on the CPU"),
            never(SYNC, 0.01, "hipMemcpyWithStream leaves 0.1 % empty"),
            NO_COMMUNICATION,
            MIXED,
        ),
        first=LOADER,
    ),
    "lens__mi300__resnet_act_checkpoint.json.gz": Expected(
        (
            Band(WAITING, 0.45, 0.6424, "two all-reduces a step, alone on the device", EXPOSED),
            Band(("small_work",), 0, 0.01, "no launch comes late in the whole window"),
            NO_LOADER,
        ),
        unrecorded=(0.0, 0.03),
    ),
    "lens__h100__Falconsai_nsfw_image_detection__1016002.json.gz": Expected(
        (
            Band(("small_work",), 0.70, 0.845, "one thread late for 84 % of wall"),
            Band(LAUNCH, 0.38, 0.62, "operators 43.1 % and launch calls 9.3 %"),
            Band(PYTHON, 0.15, 0.36, "module calls between operators 27.5 %"),
            NO_LOADER,
            NO_COMMUNICATION,
            MIXED,
        ),
        first=LAUNCH,
    ),
    "lens__mi300__gaunernst_bert-small-uncased__1016001.json.gz": Expected(
        (
            Band(("small_work",), 0.58, 0.9025, "operators 32.5 %, Python 27.1, launches 6.2"),
            Band(PYTHON, 0.15, 0.36, "module calls and input handling between operators 27.1 %"),
            never(SYNC, 0.02, "hipDeviceSynchronize leaves 0.8 % empty"),
            NO_LOADER,
            NO_COMMUNICATION,
        ),
        first=("small_work",),
    ),
    "lens__h100__Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz": Expected(
        (
            Band(
                ("small_work",),
                0.01,
                0.055,
                "Python 1.5 %, operators 1.2, launches 0.4",
                but=DEVICE_DELAY,
            ),
            NO_LOADER,
            NO_COMMUNICATION,
            MIXED,
        ),
        unrecorded=(0.0, 0.03),
    ),
    "lens__mi300__Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz": Expected(
        (
            Band(("small_work",), 0.03, 0.086, "Python 2.7 %, operators 2.7, launches 0.7"),
            NO_LOADER,
            NO_COMMUNICATION,
        ),
        unrecorded=(0.0, 0.03),
    ),
    "lens__inference__xdit_flux.1_aiter_sage__profile_trace_rank_0.json.gz": Expected(
        (
            Band(PYTHON, 0.08, 0.155, "diffusers hooks walking named_modules: 9.8 % and tail 4.2"),
            Band(LAUNCH, 0.015, 0.055, "operators 3.0 % and launch calls 0.8"),
            NO_LOADER,
            NO_COMMUNICATION,
            MIXED,
        ),
        first=PYTHON,
    ),
    "lens__inference__xdit_flux.1__capture_traces__capture_trace_rank_0.json.gz": Expected(
        (
            never(LAUNCH, 0.30, "57 % of wall lies between BeginCapture and EndCapture"),
            never(ALLOCATOR, 0.02, "hipMalloc and hipFree 0.65 %"),
            NO_LOADER,
            NO_COMMUNICATION,
        ),
        unrecorded=(0.48, 0.58),
    ),
    "lens__inference__vllm_prefilldecode_piecewise__capture_traces__graph_capture_rank_0"
    ".1773709679453551615.pt.trace.json.gz": Expected(
        (
            never(LAUNCH, 0.20, "25 captures hold 82 % of wall"),
            never(SYNC, 0.03, "25 hipDeviceSynchronize of the captures leave 0.9 % empty"),
            NO_LOADER,
            NO_COMMUNICATION,
        ),
        unrecorded=(0.65, 0.84),
    ),
    "lens__inference__sglang_decode__capture_traces__bs_32_rank0.json.gz": Expected(
        (
            never(LAUNCH, 0.10, "one capture holds 91 % of wall; 544 launches run nothing"),
            NO_LOADER,
            NO_COMMUNICATION,
        ),
        unrecorded=(0.85, 0.92),
    ),
    "lens__inference__vllm_prefilldecode_piecewise__graph_execution.json.gz": Expected(
        (Band(("",), 0, 0.0024, "device full; every launch 128 ms or more ahead"), NO_LOADER),
    ),
    "lens__inference__sglang_decode__sglang_Qwen3-8B_decode.json.gz": Expected(
        (
            never(("small_work",), 0.03, "launched at 0.04 ms, starts at 463 ms: host not late"),
            NO_LOADER,
            NO_COMMUNICATION,
        ),
        unrecorded=(0.0, 0.98),
    ),
    "lens__sglang_decode__deepseek_r1__B300.json.gz": Expected(
        (
            Band(("small_work",), 0.22, 0.338, "Python 12.4 %, graph launch 11.2, operators 6.8"),
            NO_LOADER,
            NO_COMMUNICATION,
        ),
        first=("small_work",),
    ),
    "lens__sglang_decode__qwen3_30b_a3b__MI300.json.gz": Expected(
        (
            Band(("small_work",), 0.08, 0.1408, "Python 6.8 %, operators 4.0, graph launch 1.7"),
            NO_LOADER,
            NO_COMMUNICATION,
        ),
        first=("small_work",),
    ),
    "kineto__test__gpu_metrics_input.json": Expected(
        (
            Band(LOADER, 0.03, 0.09, "one single-process __next__ before the first copy"),
            Band(("small_work",), 0.75, 0.965, "30 tiny kernels; autograd thread late for 52 %"),
            NO_COMMUNICATION,
        ),
        first=("small_work",),
    ),
    "hta__mtia_trace_single_rank__mtia_rank_0.json.gz": Expected(
        (no_loader(0.01, "no DataLoader event"), never(ALLOCATOR, 0.01, "none recorded")),
    ),
    "lens__mi210__gpu_only_trace__gpu_only_trace.json.gz": Expected(
        (NO_LOADER, NO_COMMUNICATION, never(ALLOCATOR, 0.01, "no allocator call")),
    ),
    "lens__unit__sdpa_04_large_head_dim.json.gz": Expected(
        (Band(("small_work",), 0, 0.001, "every launch before the device is free"), NO_LOADER),
    ),
    "lens__torch_compile_triton__trace.json.gz": Expected(
        (NO_LOADER, NO_COMMUNICATION, Band(("",), 0, 0.001, "the device is never empty")),
    ),
}
"""File name -> what is known. ``Band(("",), ...)`` speaks of all causes together."""

_RANKS: dict[int, tuple[float, float, float]] = {
    0: (0.065, 0.095, 0.41),
    1: (0.0, 0.01, 0.28),
    2: (0.085, 0.12, 0.52),
    3: (0.04, 0.075, 0.34),
    4: (0.045, 0.08, 0.47),
    5: (0.045, 0.085, 0.48),
    6: (0.085, 0.12, 0.51),
    7: (0.08, 0.115, 0.62),
}
"""Rank -> loader share low and high, and the host's share by hand (operators, Python, launches)."""

TABLE.update(
    {
        f"param__dlrm_8rank__rank{rank}.pt.trace.json": Expected(
            (
                Band(LOADER, low, high, "one single-process __next__ inside copy_batch_to_gpu"),
                Band(
                    HOST,
                    0.75 * host,
                    1.12 * host,
                    "operators, torchrec Python, launch calls",
                    but=DEVICE_DELAY,
                ),
                never(ALLOCATOR, 0.01, "no allocator call"),
            ),
            first=("small_work",),
            unrecorded=(0.0, 0.06),
        )
        for rank, (low, high, host) in _RANKS.items()
    }
)

DLRM = Job(
    files=tuple(f"param__dlrm_8rank__rank{rank}.pt.trace.json" for rank in range(8)),
    late=7,
    low_s=0.022,
    high_s=0.040,
    why="ends agree to 7 us; rank 7 is last into 5 of 8 collectives, the others wait 35.2 ms for "
    "it and 10.1 ms for ranks 4 and 5, of 128.1 rank ms",
    waits={0: 5.34, 1: 10.85, 2: 3.03, 3: 9.25, 4: 6.34, 5: 6.01, 6: 3.11, 7: 1.38},
)
"""Waits: rank -> ms by hand, exposed on the device, before the last rank entered a collective."""
