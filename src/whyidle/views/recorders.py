"""Which profiler recorded the evidence, and how to record with it what is missing.

Whoever gives a report of Nsight Systems is told flags of ``nsys``, not of ``torch.profiler``.
"""

from __future__ import annotations

from whyidle.model import Evidence

NSYS = "nsys"

_CUDA = "nsys profile --trace=cuda,nvtx,osrt"
_OPERATORS = f"{_CUDA} --pytorch=autograd-shapes-nvtx"
_EXPORT = "a whole export of the report: nsys export --type sqlite REPORT.nsys-rep"
_RECORD_WITH = {
    "device": _CUDA,
    "launches": _CUDA,
    "calls": _CUDA,
    "host": _OPERATORS,
    "blame": _OPERATORS,
    "ops": _OPERATORS,
    "shapes": _OPERATORS,
    "alignment": _OPERATORS,
    "work": _CUDA,
    "steps": f"{_CUDA} and torch.cuda.nvtx.range(f'step {{number}}') around each training step",
    "blocks": _EXPORT,
    "sms": _EXPORT,
    "tensor_cores": _EXPORT,
    "sampled_sms": f"{_CUDA} --gpu-metrics-devices=all",
}
"""Name of a need -> what records it with Nsight Systems; others read the same for everyone."""


def only_nsys(evidence: Evidence) -> bool:
    """Whether all recorded spans come from Nsight Systems."""
    if not evidence.has("spans") or all(s.reader != NSYS for s in evidence.sources):
        return False
    sources = evidence.table("spans")["source"].unique().to_list()
    known = [evidence.sources[at].reader for at in sources if at < len(evidence.sources)]
    return bool(known) and set(known) == {NSYS}


def record_with(evidence: Evidence, need: str, otherwise: str) -> str:
    """What records a need with the profiler that was used."""
    return _RECORD_WITH.get(need, otherwise) if only_nsys(evidence) else otherwise


def said_of(evidence: Evidence, *, launched: bool, stepped: bool) -> list[str] | None:
    """Notes for a report of Nsight Systems with device work; None for other evidence."""
    if not only_nsys(evidence):
        return None
    found = []
    kinds = evidence.table("spans")["kind"]
    if not launched:
        found.append(
            "No call that launched device work was recorded, so empty time has no cause here. "
            f"Record with: {_CUDA}."
        )
    elif not kinds.is_in(["op", "annotation"]).any():
        found.append(
            "Neither operators nor ranges were recorded, so only time inside CUDA calls has a "
            f"cause here; the rest is left unexplained. Record with: {_OPERATORS}."
        )
    if not stepped:
        found.append(
            "No steps were marked; everything recorded is judged as one stretch. Put "
            "torch.cuda.nvtx.range(f'step {number}') around each training step to get figures "
            "per step."
        )
    return found
