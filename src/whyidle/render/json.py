"""The diagnosis as JSON: exactly what ``Diagnosis.to_json`` gives, for scripts and dashboards."""

from __future__ import annotations

from whyidle.diagnosis import Diagnosis


def render(diagnosis: Diagnosis) -> str:
    """The diagnosis as one JSON object, without a final line break."""
    return diagnosis.to_json()
