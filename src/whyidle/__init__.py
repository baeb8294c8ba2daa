"""Why is the GPU idle? Evidence in, one honest diagnosis of lost GPU time out.

``read`` turns files into Evidence, ``diagnose`` turns Evidence into a Diagnosis, and every report
draws from that Diagnosis::

    import whyidle

    diagnosis = whyidle.diagnose(whyidle.read("trace.json.gz"))
    print(diagnosis.findings[0].title, diagnosis.findings[0].lost_s)

Nothing is loaded before it is used: importing this package imports neither Polars nor torch.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from os import PathLike

    from whyidle.diagnosis import Diagnosis, Finding
    from whyidle.model import Evidence

__version__ = "0.1.0"

__all__ = ["Diagnosis", "Finding", "__version__", "diagnose", "read", "step"]


def read(
    *paths: str | PathLike[str], progress: Callable[[str, int, int], None] | None = None
) -> Evidence:
    """Evidence from files and folders; all of them are one run, a folder of ranks is one job.

    ``progress`` is called with (path, bytes done, bytes in all) while files are read. Raises
    ``whyidle.errors.WhyidleError`` with a sentence for the user when a path cannot be read.
    """
    from whyidle.readers import read as read_paths

    return read_paths(paths, progress)


def diagnose(
    evidence: Evidence, *, steps: tuple[int | None, int | None] | None = None
) -> Diagnosis:
    """Where every second of every device in the evidence went, why, and what to do.

    ``steps`` = (A, B) narrows the window to the steps A up to, not including, B, numbered as in
    ``ProfilerStep#N``; None on either side leaves that side open.
    """
    from whyidle.diagnose import diagnose as diagnose_evidence

    return diagnose_evidence(evidence, steps=steps)


def step() -> None:
    """The end of one training step, told to ``whyidle run``; does nothing in any other run.

    Call it once per step, in every rank, where steps are not those of one torch.optim optimizer.
    From the first call on only these calls count as steps.
    """
    hook = sys.modules.get("_whyidle_hook")
    if hook is not None:
        hook.step()


class _Package(ModuleType):
    """The package itself, in which the name ``diagnose`` stays the function.

    Importing the submodule ``whyidle.diagnose`` would otherwise put the module in its place.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if name != "diagnose" or not isinstance(value, ModuleType):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    """Load ``Diagnosis`` and ``Finding`` when first asked for."""
    if name in {"Diagnosis", "Finding"}:
        from whyidle import diagnosis

        return getattr(diagnosis, name)
    raise AttributeError(f"module 'whyidle' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
