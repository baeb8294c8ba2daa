"""``whyidle env``: what this machine and this installation can observe, and what is missing.

Everything is read without importing torch and without changing a setting: package metadata, files
under /proc and /sys, and one read-only query per vendor tool with a short time limit.
"""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Callable
from importlib import metadata, util
from pathlib import Path
from typing import Any

import msgspec

from whyidle import __version__
from whyidle.gpus import Gpu, Tool, query, tools_here

SCHEMA = "whyidle.env/1"


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """Base of every record here: immutable, written to JSON field by field."""


class Cpus(Record, frozen=True, kw_only=True):
    """Logical CPUs: in the machine, allowed to this process, and the container's quota (CPUs)."""

    count: int | None
    allowed: int | None
    quota: float | None


class Memory(Record, frozen=True, kw_only=True):
    """Bytes of main memory; ``limit_bytes`` is the container's, None when it sets none."""

    total_bytes: int | None
    available_bytes: int | None
    limit_bytes: int | None


class Torch(Record, frozen=True, kw_only=True):
    """The installed PyTorch, from its metadata: the CUDA or ROCm version it was built for."""

    version: str
    cuda: str | None
    rocm: str | None


class Missing(Record, frozen=True, kw_only=True):
    """Something that cannot be observed here, why it matters, and how to get it."""

    what: str
    why: str
    how: str


class Environment(Record, frozen=True, kw_only=True):
    """What this machine and this installation can observe; None = could not be found out."""

    schema: str = SCHEMA
    whyidle: str
    python: str
    executable: str
    system: str
    cpus: Cpus
    memory: Memory
    torch: Torch | None
    gpus: list[Gpu]
    tools: list[Tool]
    packages: dict[str, str]
    extras: dict[str, bool]
    missing: list[Missing]


def observe() -> Environment:
    """Look at this machine; takes well under a second without GPU tools, at most 10 s with."""
    torch, tools = installed_torch(), tools_here()
    found = query(tools)
    return Environment(
        whyidle=__version__,
        python=platform.python_version(),
        executable=sys.executable,
        system=platform.platform(),
        cpus=Cpus(count=os.cpu_count(), allowed=_allowed_cpus(), quota=cpu_quota()),
        memory=_memory(),
        torch=torch,
        gpus=found,
        tools=tools,
        packages=_versions(("polars", "numpy", "msgspec", "rich")),
        extras=extras(),
        missing=missing(torch, found),
    )


def missing(torch: Torch | None, found: list[Gpu]) -> list[Missing]:
    """What cannot be observed here, in the order in which it matters."""
    rows = []
    if torch is None:
        rows.append(
            Missing(
                what="PyTorch",
                why="a trace is recorded inside the training job; reading one needs no PyTorch",
                how="record where the job runs, with torch.profiler, and bring the file here",
            )
        )
    elif found and torch.cuda is None and torch.rocm is None:
        rows.append(
            Missing(
                what="a PyTorch that can use the GPU",
                why=f"torch {torch.version} was built for CPUs, so a trace shows no device work",
                how="install the CUDA or ROCm build of PyTorch in this environment",
            )
        )
    if not found:
        rows.append(
            Missing(
                what="a GPU",
                why="nothing recorded here shows device time; traces from elsewhere are read fully",
                how="record on the machine that trains",
            )
        )
    return rows


def installed_torch() -> Torch | None:
    """The installed PyTorch without importing it; None when there is none."""
    version = _version("torch")
    if version is None:
        return None
    text = ""
    spec = util.find_spec("torch")
    if spec is not None and spec.origin:
        text = _read(Path(spec.origin).with_name("version.py")) or ""
    return Torch(version=version, cuda=_assigned(text, "cuda"), rocm=_assigned(text, "hip"))


def extras() -> dict[str, bool]:
    """Extras of this package, as its metadata lists them -> whether all they need is installed."""
    try:
        about = metadata.metadata("whyidle")
    except metadata.PackageNotFoundError:
        return {}
    needs = about.get_all("Requires-Dist") or []
    return {
        extra: all(
            _version(re.split(r"[^\w.-]", need, maxsplit=1)[0])
            for need in needs
            if re.search(rf"extra\s*==\s*['\"]{re.escape(extra)}['\"]", need)
        )
        for extra in about.get_all("Provides-Extra") or []
    }


def cpu_quota(root: Path = Path("/sys/fs/cgroup")) -> float | None:
    """CPUs that the container may use at once, of cgroup v2 or v1; None when unlimited."""
    words = (_read(root / "cpu.max") or "").split()
    if len(words) == 2 and words[0].isdigit():
        return int(words[0]) / int(words[1])
    quota = _integer(root / "cpu/cpu.cfs_quota_us")
    period = _integer(root / "cpu/cpu.cfs_period_us")
    return quota / period if quota and period and quota > 0 else None


def as_json(environment: Environment) -> str:
    """The environment as one JSON object."""
    return msgspec.json.format(msgspec.json.encode(environment), indent=1).decode()


def as_text(environment: Environment) -> str:
    """The environment for a person: what is here, then what is missing and how to get it."""
    lines = [f"{name:<10} {text}" for name, text in _facts(environment)]
    lines += ["", "Can observe", *(f"  {line}" for line in _observable(environment))]
    if environment.missing:
        lines += ["", "Missing"]
        for row in environment.missing:
            lines += [f"  {row.what}: {row.why}", f"      {row.how}"]
    lines += ["", "Tools beside whyidle"]
    return "\n".join([*lines, *(f"  {_tool(tool)}" for tool in environment.tools)])


def _tool(tool: Tool) -> str:
    state = tool.path if tool.path else f"not found; {tool.get}"
    return f"{tool.name:<10} {tool.shows} ({state})"


def _facts(environment: Environment) -> list[tuple[str, str]]:
    cpus, memory, torch = environment.cpus, environment.memory, environment.torch
    quota = "no quota" if cpus.quota is None else f"quota {cpus.quota:g}"
    limit = "no limit" if memory.limit_bytes is None else f"limit {_gib(memory.limit_bytes)}"
    built = "" if torch is None else torch.cuda or torch.rocm or "CPU only"
    packages = ", ".join(f"{name} {version}" for name, version in environment.packages.items())
    rows = [
        ("whyidle", f"{environment.whyidle} ({packages})"),
        ("python", f"{environment.python} at {environment.executable}"),
        ("system", environment.system),
        ("cpus", f"{_known(cpus.count)} in the machine, {_known(cpus.allowed)} allowed, {quota}"),
        ("memory", f"{_gib(memory.total_bytes)}, {_gib(memory.available_bytes)} free, {limit}"),
        ("torch", f"{torch.version} (built for {built})" if torch else "not installed"),
    ]
    names = [f"{gpu.index}: {gpu.name or 'unknown'}" for gpu in environment.gpus]
    if environment.extras:
        states = (
            f"{n} {'installed' if got else 'missing'}" for n, got in environment.extras.items()
        )
        rows.append(("extras", ", ".join(states)))
    return [*rows, ("gpus", "; ".join(names) or "none seen")]


def _observable(environment: Environment) -> list[str]:
    rows = ["PyTorch profiler traces (Kineto and Chrome JSON, plain or gzip), read and diagnosed"]
    if environment.torch is not None:
        device = "device and host" if environment.gpus else "host"
        rows.append(f"{device} time of a job here, recorded with torch.profiler")
    return rows


def _memory() -> Memory:
    text = _read(Path("/proc/meminfo")) or ""
    values = {name: int(kib) * 1024 for name, kib in re.findall(r"(\w+):\s+(\d+) kB", text)}
    total = values.get("MemTotal")
    root = Path("/sys/fs/cgroup")
    limit = _integer(root / "memory.max") or _integer(root / "memory/memory.limit_in_bytes")
    real = limit if limit is not None and (total is None or limit < total) else None
    return Memory(total_bytes=total, available_bytes=values.get("MemAvailable"), limit_bytes=real)


def _allowed_cpus() -> int | None:
    affinity: Callable[[int], set[int]] | None = getattr(os, "sched_getaffinity", None)
    return None if affinity is None else len(affinity(0))


def _versions(names: tuple[str, ...]) -> dict[str, str]:
    found = ((name, _version(name)) for name in names)
    return {name: version for name, version in found if version is not None}


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _assigned(text: str, name: str) -> str | None:
    found = re.search(rf"^{name}\s*(?::[^=]+)?=\s*['\"]([^'\"]+)['\"]", text, re.MULTILINE)
    return found[1] if found else None


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def _integer(path: Path) -> int | None:
    text = (_read(path) or "").strip()
    return int(text) if re.fullmatch(r"-?\d+", text) else None


def _known(value: Any) -> str:
    return "unknown" if value is None else str(value)


def _gib(value: int | None) -> str:
    return "unknown" if value is None else f"{value / 2**30:.1f} GiB"
