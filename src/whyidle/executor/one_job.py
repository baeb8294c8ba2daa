"""What must hold between batches for them to be one job."""

from __future__ import annotations

from collections.abc import Sequence

from whyidle.errors import EvidenceConflict
from whyidle.partial import Partial


def refuse_nameless(partials: Sequence[Partial]) -> None:
    """Raise EvidenceConflict for a judged trace without a rank among others that have one."""
    nameless: list[str] = []
    ranked = False
    for partial in partials:
        for rank, source in partial.windows.select("rank", "source").unique().iter_rows():
            if rank is None:
                nameless.append(partial.sources[source].path)
            ranked |= rank is not None
    if ranked and nameless:
        raise EvidenceConflict(
            f"{sorted(nameless)[0]} does not say its rank, and others given with it do.\n"
            "Put the rank into its file name (rank0.json), or leave it out."
        )
