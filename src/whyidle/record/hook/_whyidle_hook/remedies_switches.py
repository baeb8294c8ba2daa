"""Remedies that set a switch of torch, and keep the job from setting it back."""

import os
import sys

from _whyidle_hook.remedies_model import at_first_training_call, device_of


def _seed(torch, remedy):
    """The same random numbers in every run, unless the job seeds by itself."""
    import random

    value = int(remedy.value)
    random.seed(value)
    torch.manual_seed(value)
    numpy = sys.modules.get("numpy")
    if numpy is not None and hasattr(numpy, "random"):
        numpy.random.seed(value)
    remedy.take()


def _reseed(torch, remedy):
    """Other random numbers than in other runs, also where the job seeds by itself."""
    import random

    def moved(seed):
        def seeded(value=None, *args):
            if isinstance(value, int):
                value = (value + int(remedy.value) * 1_000_003) % 2**32
            return seed(value, *args)

        return seeded

    numpy = sys.modules.get("numpy")
    torch.manual_seed, random.seed = moved(torch.manual_seed), moved(random.seed)
    if numpy is not None and hasattr(numpy, "random"):
        numpy.random.seed = moved(numpy.random.seed)
    torch.manual_seed(0)
    random.seed(0)
    remedy.take()


def _threads(torch, remedy):
    value, own = int(remedy.value), os.getpid()
    put, current = torch.set_num_threads, torch.get_num_threads()
    if current == value and not remedy.dry:
        remedy.refuse("the job uses %d threads already" % value)
    elif remedy.take("threads=%d instead of %d" % (value, current)):
        put(value)

    def set_num_threads(number):
        loader_worker = sys._getframe(1).f_code.co_filename.endswith("worker.py")
        if remedy.dry or os.getpid() != own or loader_worker:
            return put(number)
        if number != value:
            remedy.take("threads=%d instead of %d" % (value, number))
        return put(value)

    torch.set_num_threads = set_num_threads


def _interop_threads(torch, remedy):
    value, current = int(remedy.value), torch.get_num_interop_threads()
    if current == value:
        remedy.refuse("the job uses %d threads between operators already" % value)
    elif remedy.take("threads between operators=%d instead of %d" % (value, current)):
        torch.set_num_interop_threads(value)
        torch.set_num_interop_threads = lambda number: None


def _no_anomaly(torch, remedy):
    put = torch.set_anomaly_enabled

    def set_anomaly_enabled(mode, check_nan=True):
        if mode and remedy.take():
            mode = False
        return put(mode, check_nan)

    torch.set_anomaly_enabled = set_anomaly_enabled


def _needs_gpu(act):
    """A remedy that acts when a model on a GPU is first trained; elsewhere it says why not."""

    def put(torch, remedy):
        if torch.version.cuda is None and getattr(torch.version, "hip", None) is None:
            remedy.refuse("no GPU")
            return

        def called(module):
            if device_of(module) != "cuda":
                remedy.refuse("no GPU is trained on")
            else:
                act(torch, remedy)

        at_first_training_call(torch, remedy, called)

    return put


def _tf32(torch, remedy):
    if torch.get_float32_matmul_precision() != "highest" and torch.backends.cudnn.allow_tf32:
        remedy.refuse("TF32 is on already")
    elif remedy.take():
        torch.set_float32_matmul_precision("high")
        torch.backends.cudnn.allow_tf32 = True


def _matmul_precision(torch, remedy):
    current = torch.get_float32_matmul_precision()
    if current == remedy.value:
        remedy.refuse("the precision is %s already" % current)
    elif remedy.take("%s instead of %s" % (remedy.value, current)):
        torch.set_float32_matmul_precision(remedy.value)


def _cudnn_benchmark(torch, remedy):
    if torch.backends.cudnn.benchmark:
        remedy.refuse("cudnn.benchmark is on already")
    elif torch.backends.cudnn.deterministic:
        remedy.refuse("the job asks for deterministic algorithms")
    elif remedy.take():
        torch.backends.cudnn.benchmark = True


KNOWN = {
    "seed": _seed,
    "reseed": _reseed,
    "threads": _threads,
    "interop_threads": _interop_threads,
    "no_anomaly": _no_anomaly,
    "tf32": _needs_gpu(_tf32),
    "matmul_precision": _needs_gpu(_matmul_precision),
    "cudnn_benchmark": _needs_gpu(_cudnn_benchmark),
}
