"""All changes, in the order in which they are made to a file."""

from __future__ import annotations

from whyidle.fix.anomaly_mode import AnomalyMode
from whyidle.fix.checkpoint_every import CheckpointEvery
from whyidle.fix.compile_model import CompileModel
from whyidle.fix.cudnn_benchmark import CudnnBenchmark
from whyidle.fix.deterministic import Deterministic
from whyidle.fix.edits import Change
from whyidle.fix.empty_cache import EmptyCache
from whyidle.fix.loader_workers import LoaderWorkers
from whyidle.fix.log_every import LogEvery
from whyidle.fix.loss_item import LossItem
from whyidle.fix.matmul_precision import MatmulPrecision
from whyidle.fix.no_sync import NoSync
from whyidle.fix.optimizer_foreach import OptimizerForeach
from whyidle.fix.optimizer_fused import OptimizerFused
from whyidle.fix.persistent_workers import PersistentWorkers
from whyidle.fix.pinned_copies import PinnedCopies
from whyidle.fix.threads import Threads
from whyidle.fix.unused_parameters import UnusedParameters
from whyidle.fix.zero_grad import ZeroGrad

CHANGES: tuple[Change, ...] = (
    LoaderWorkers(),
    PersistentWorkers(),
    PinnedCopies(),
    AnomalyMode(),
    EmptyCache(),
    OptimizerForeach(),
    ZeroGrad(),
    LossItem(),
    MatmulPrecision(),
    UnusedParameters(),
    NoSync(),
    CheckpointEvery(),
    LogEvery(),
    Threads(),
    CompileModel(),
    OptimizerFused(),
    CudnnBenchmark(),
    Deterministic(),
)
