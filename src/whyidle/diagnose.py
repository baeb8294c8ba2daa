"""The spine: evidence -> what each batch of ranks leaves -> Diagnosis.

Knows no cause by name.
"""

from __future__ import annotations

from whyidle.diagnosis import Diagnosis
from whyidle.model import Evidence
from whyidle.partial import merged, partial_of
from whyidle.views.windows import Steps


def diagnose(evidence: Evidence, *, steps: Steps | None = None) -> Diagnosis:
    """Account for every second of every device in the evidence.

    ``steps`` (A, B) narrows the window to recorded steps A up to, not including, B.
    Raises NothingRecorded when there is nothing to judge, UsageError for steps that do not exist.
    """
    return merged([partial_of(evidence, steps=steps)])
