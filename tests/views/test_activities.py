"""What host spans are about, by kind and name alone."""

from __future__ import annotations

import pytest

from whyidle.views.activities import own_activity, within
from whyidle.views.host import is_user_frame

TOLD = [
    ("annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "loader"),
    (
        "annotation",
        "enumerate(DataLoader)#_StatefulMultiProcessingDataLoaderIter.__next__",
        "loader",
    ),
    ("annotation", "[pl][profile][_TrainingEpochLoop].train_dataloader_next", "loader"),
    ("python", "torch/utils/data/dataloader.py(733): __next__", "loader"),
    ("python", "nvidia/dali/plugin/pytorch/__init__.py(240): __next__", "loader"),
    ("python", "webdataset/pipeline.py(64): __iter__", "python"),
    ("python", "torch/utils/data/dataloader.py(433): _get_iterator", "loader_restart"),
    ("annotation", "Optimizer.step#AdamW.step", "optimizer"),
    ("annotation", "Optimizer.zero_grad#SGD.zero_grad", "optimizer"),
    ("runtime", "cudaStreamSynchronize", "sync"),
    ("runtime", "hipDeviceSynchronize", "sync"),
    ("runtime", "cudaStreamSynchronize_v3020", "sync"),
    ("runtime", "cudaStreamWaitEvent", "launch"),
    ("runtime", "cudaMalloc", "allocator"),
    ("runtime", "hipFree", "allocator"),
    ("runtime", "cudaMallocAsync", "launch"),
    ("runtime", "cuMemMap", "allocator"),
    ("runtime", "cuModuleLoadData", "warm_up"),
    ("overhead", "Activity Buffer Request", "profiler"),
    ("overhead", "Lazy Function Loading", "warm_up"),
    ("overhead", "Driver Compiler", "warm_up"),
    ("runtime", "urEventWait", "sync"),
    ("runtime", "zeCommandQueueSynchronize", "sync"),
    ("runtime", "aclrtSynchronizeStream", "sync"),
    ("runtime", "urEnqueueEventsWait", "launch"),
    ("op", "aten::mm", "op"),
    ("op", "c10d::allreduce_", "collective"),
    ("op", "torch.distributed.ddp.reducer::copy_bucket_to_grad", "wrapper"),
    ("op", "backend_compile (dynamo_timed)", "compile"),
    ("op", "Torch-Compiled Region: 0/0", "op"),
    ("annotation", "save_checkpoint", "checkpoint"),
    ("python", "torch/serialization.py(810): save", "checkpoint"),
    ("python", "torch/utils/checkpoint.py(489): checkpoint", "python"),
    ("annotation", "validation", "evaluation"),
    ("python", "train.py(80): evaluate", "evaluation"),
    ("python", "torch/nn/modules/module.py(2900): eval", "python"),
    ("op", "autograd::engine::evaluate_function: AddBackward0", "op"),
    ("python", "<built-in method log of type object at 0x7f00>", "python"),
    ("python", "logging/__init__.py(1477): info", "logging"),
    ("python", "threading.py(320): wait", "nothing"),
    ("python", "<built-in method run_backward of torch._C._EngineBase object at 0x7f>", "nothing"),
]


@pytest.mark.parametrize(("kind", "name", "activity"), TOLD)
def test_a_name_tells_what_a_span_is_about(kind: str, name: str, activity: str) -> None:
    assert own_activity(kind, name) == activity


def test_the_innermost_meaningful_thing_counts() -> None:
    assert within("loader", "op") == "loader", "a transform's operator is still loading"
    assert within("optimizer", "launch") == "optimizer"
    assert within("optimizer", "scalar_read") == "scalar_read"
    assert within("evaluation", "loader") == "loader"
    assert within("python", "op") == "op"
    assert within("op", "nothing") == "op", "a bare annotation inside an operator"
    assert within("scalar_read", "allocator") == "allocator"


@pytest.mark.parametrize(
    ("frame", "own"),
    [
        ("train.py(12): step", True),
        ("project/model.py(3): forward", True),
        ("scipy/ndimage/_interpolation.py(739): zoom", False),
        ("PIL/Image.py(2300): resize", False),
    ],
)
def test_frames_of_well_known_packages_are_not_the_users_source(frame: str, own: bool) -> None:
    assert is_user_frame(frame) is own
