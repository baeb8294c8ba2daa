"""What a process is and what it may use."""

import os
import sys


def rank():
    """The rank in the job, or None: by torch.distributed once it is set up, else the launcher's."""
    distributed = sys.modules.get("torch.distributed")
    try:
        if distributed and distributed.is_available() and distributed.is_initialized():
            return distributed.get_rank()
    except (RuntimeError, ValueError, AttributeError):
        pass
    for name in ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"):
        if os.environ.get(name, "").isdigit():
            return int(os.environ[name])
    return None


def about_process(started_ns):
    """The ``process`` event."""
    world = os.environ.get("WORLD_SIZE", "")
    local = os.environ.get("LOCAL_RANK", "")
    return {
        "pid": os.getpid(),
        "ppid": os.getppid(),
        "argv": [str(part)[:300] for part in getattr(sys, "argv", [])[:30]],
        "executable": sys.executable,
        "python": "%d.%d.%d" % sys.version_info[:3],
        "started_ns": started_ns,
        "rank": rank(),
        "local_rank": int(local) if local.isdigit() else None,
        "world_size": int(world) if world.isdigit() else None,
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "cpu_quota": _quota(),
    }


def _quota():
    """CPUs' worth of time that the container may use; None without a limit."""
    try:
        with open("/sys/fs/cgroup/cpu.max", encoding="ascii") as file:
            allowed, period = file.read().split()[:2]
        return None if allowed == "max" else int(allowed) / int(period)
    except (OSError, ValueError):
        return None


def about_torch(torch):
    """The ``torch`` event: the version, and the switches that decide about speed."""
    backends = torch.backends
    return {
        "version": str(torch.__version__),
        "cuda": torch.version.cuda,
        "hip": getattr(torch.version, "hip", None),
        "threads": torch.get_num_threads(),
        "interop_threads": torch.get_num_interop_threads(),
        "flags": {
            "cudnn.benchmark": backends.cudnn.benchmark,
            "cudnn.deterministic": backends.cudnn.deterministic,
            "anomaly": torch.is_anomaly_enabled(),
        },
    }
