"""The spine: evidence -> views -> claims of every cause -> ledger -> Diagnosis.

Knows no cause by name.
"""

from __future__ import annotations

import msgspec
import polars as pl

from whyidle import __version__
from whyidle.causes import Cause, all_causes, broken_causes
from whyidle.diagnosis import Crashed, Diagnosis, Finding, NotJudged
from whyidle.ledger import Ledger, settle
from whyidle.model import CLAIMS, Evidence, frame
from whyidle.summary import devices, finding_of, ledger_rows, sources, window
from whyidle.timeline import timeline
from whyidle.views import Views
from whyidle.views.needs import missing
from whyidle.views.windows import Steps


def diagnose(evidence: Evidence, *, steps: Steps | None = None) -> Diagnosis:
    """Account for every second of every device in the evidence.

    ``steps`` (A, B) narrows the window to recorded steps A up to, not including, B.
    Raises NothingRecorded when there is nothing to judge, UsageError for steps that do not exist.
    """
    views = Views(evidence, steps)
    views.check()
    claims, not_judged, crashed = _claims(views)
    ledger = settle(claims, views.states)
    found, failed = _findings(ledger, views)
    judged = devices(views, ledger)
    return Diagnosis(
        whyidle=__version__,
        sources=sources(evidence),
        window=window(views),
        devices=judged,
        ledger=ledger_rows(ledger, views),
        findings=found,
        timeline=timeline(ledger, views),
        not_judged=not_judged,
        crashed=crashed + failed,
        notes=views.notes,
    )


def _claims(views: Views) -> tuple[dict[str, pl.DataFrame], list[NotJudged], list[Crashed]]:
    """Ask every cause; one that lacks evidence or raises costs its own line only."""
    claims: dict[str, pl.DataFrame] = {}
    not_judged: list[NotJudged] = []
    crashed = [Crashed(cause=name, error=error) for name, error in broken_causes().items()]
    for cause in all_causes().values():
        try:
            lacking = missing(views, cause.needs)
            if lacking:
                not_judged.append(
                    _unfed(cause, [n.missing for n in lacking], lacking[0].record_with)
                )
            else:
                claims[cause.id] = frame(CLAIMS, cause.claims(views))
        except Exception as error:  # noqa: BLE001  a cause that breaks must not cost the report
            crashed.append(Crashed(cause=cause.id, error=_one_line(error)))
    return claims, not_judged, crashed


def _unfed(cause: Cause, what: list[str], record_with: str) -> NotJudged:
    return NotJudged(cause=cause.id, missing=what, record_with=record_with)


def _findings(ledger: Ledger, views: Views) -> tuple[list[Finding], list[Crashed]]:
    """One finding per cause that won anything, largest first, with its remedies."""
    known = all_causes()
    found: list[Finding] = []
    crashed: list[Crashed] = []
    for name in ledger.won["cause"].unique().sort().to_list():
        finding = finding_of(known[name], ledger, views)
        try:
            remedies = known[name].remedies(finding, views.facts)
            finding = msgspec.structs.replace(finding, remedies=remedies)
        except Exception as error:  # noqa: BLE001  as above
            crashed.append(Crashed(cause=name, error=_one_line(error)))
        found.append(finding)
    return sorted(found, key=lambda f: (-f.lost_s, f.cause)), crashed


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:300]
