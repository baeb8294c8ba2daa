"""Finds the causes: one file each, by walking packages named by the entry point ``whyidle.causes``.

Built-in causes come through the same door as a stranger's. A package registered there holds
folders named after reasons (``data_loading``, ``memory``, ...); each module in them is a cause,
and ``folder.module`` is its id.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import entry_points
from types import ModuleType
from typing import TYPE_CHECKING

from msgspec import structs

from whyidle.diagnosis import REASONS, Finding, Observation, Remedy, Sign, Status
from whyidle.errors import Bug

if TYPE_CHECKING:
    import polars as pl

    from whyidle.model import Evidence, Facts
    from whyidle.views import Views

GROUP = "whyidle.causes"
HEADS = ("Looks like", "How we tell", "Change", "May be wrong", "Sources")


@dataclass(frozen=True)
class Cause:
    """One cause: its page and its functions, as its file declares them.

    ``sites`` are kinds of line at which it lies as a whole, the first known one counts: such as the
    line that makes the loader (see views.sites).
    """

    id: str
    module: ModuleType
    title: str
    status: Status
    needs: tuple[str, ...]
    observes: tuple[str, ...]
    waits: tuple[str, ...]
    job_needs: tuple[str, ...]
    sites: tuple[str, ...]
    summary: str
    heads: dict[str, str]

    @property
    def reason(self) -> int:
        """Number 1..7 of the reason for low utilisation it belongs to."""
        return REASONS[self.id.split(".")[0]]

    @property
    def can_claim(self) -> bool:
        """Whether it puts seconds on what it finds."""
        return hasattr(self.module, "claims")

    @property
    def counts_seconds(self) -> bool:
        """Whether seconds can be its own: by claims, or as a reason why ranks wait."""
        return self.can_claim or bool(self.waits)

    @property
    def can_observe(self) -> bool:
        """Whether it tells of signs without seconds."""
        return hasattr(self.module, "observations")

    @property
    def can_claim_job(self) -> bool:
        """Whether it puts seconds of sampled GPUs on what it finds, in the job ledger."""
        return hasattr(self.module, "job_claims")

    def job_claims(self, views: Views) -> pl.DataFrame:
        """The intervals of sampled GPUs it says were lost; schema model.JOB_CLAIMS."""
        found: pl.DataFrame = self.module.job_claims(views)
        return found

    def job_example(self) -> tuple[Evidence, float]:
        """Tiny samples with a planted loss, and its seconds."""
        found: tuple[Evidence, float] = self.module.job_example()
        return found

    def claims(self, views: Views) -> pl.DataFrame:
        """The intervals it says were lost; schema model.CLAIMS."""
        found: pl.DataFrame = self.module.claims(views)
        return found

    def remedies(self, finding: Finding, facts: Facts) -> list[Remedy]:
        """What to change, best first."""
        found: list[Remedy] = self.module.remedies(finding, facts)
        return found

    def observations(self, views: Views) -> list[Observation]:
        """What it sees without seconds, most telling first."""
        signs: list[Sign] = self.module.observations(views)
        return [
            Observation(
                cause=self.id,
                reason=self.reason,
                title=self.title,
                status=self.status,
                **structs.asdict(sign),
            )
            for sign in signs
        ]

    def example(self) -> tuple[Evidence, float]:
        """A tiny run with a planted loss, and its seconds."""
        found: tuple[Evidence, float] = self.module.example()
        return found

    def observed_example(self) -> tuple[Evidence, str]:
        """Tiny evidence with a planted sign, and words that the observation must hold."""
        found: tuple[Evidence, str] = self.module.observed_example()
        return found


def all_causes() -> dict[str, Cause]:
    """Every cause that is installed and sound, by id, in order of id."""
    return _discovered()[0]


def broken_causes() -> dict[str, str]:
    """Causes and packages that could not be imported or lack a part: name -> one line."""
    return _discovered()[1]


@lru_cache(maxsize=1)
def _discovered() -> tuple[dict[str, Cause], dict[str, str]]:
    found: dict[str, Cause] = {}
    broken: dict[str, str] = {}
    for package in _packages(broken):
        for name, path in _modules(package):
            if name in found:
                _tell_clash(broken, name, path, found[name])
                continue
            try:
                found[name] = declared(name, importlib.import_module(path))
            except Exception as error:  # noqa: BLE001  a stranger's cause must not cost the report
                broken[name] = f"{type(error).__name__}: {error}"
    return dict(sorted(found.items())), broken


def declared(name: str, module: ModuleType) -> Cause:
    """A cause from its module. Raises Bug when the module lacks what a cause must have."""
    for needed in _parts(module):
        if not hasattr(module, needed):
            raise Bug(f"cause {name} ({module.__file__}) does not define {needed}")
    text = (module.__doc__ or "").strip()
    return Cause(
        id=name,
        module=module,
        title=module.TITLE,
        status=getattr(module, "STATUS", "preview"),
        needs=tuple(getattr(module, "NEEDS", ())),
        observes=tuple(getattr(module, "OBSERVES", ())),
        waits=tuple(getattr(module, "WAITS", ())),
        job_needs=tuple(getattr(module, "JOB_NEEDS", ())),
        sites=tuple(getattr(module, "SITES", ())),
        summary=text.split("\n\n")[0].replace("\n", " "),
        heads=heads(text),
    )


def _parts(module: ModuleType) -> list[str]:
    """What the module must define: a cause claims seconds, tells of signs, or does both.

    One that stands for reasons why ranks wait for a late one names them in ``WAITS`` (see
    views.walk) and needs no ``claims``. One with ``job_claims`` claims seconds of sampled GPUs.
    """
    observing = ["OBSERVES", "observations", "observed_example"]
    claiming = ["NEEDS", "claims", "remedies", "example"]
    if hasattr(module, "job_claims"):
        observing += ["JOB_NEEDS", "job_claims", "job_example", "remedies"]
        if not hasattr(module, "observations"):
            observing = observing[3:]
        claims = claiming if hasattr(module, "claims") else []
        return list(dict.fromkeys(["TITLE", *observing, *claims]))
    if hasattr(module, "WAITS") and not hasattr(module, "claims"):
        claiming.remove("claims")
        if not hasattr(module, "observations"):
            return ["TITLE", *claiming]
    if not hasattr(module, "observations"):
        return ["TITLE", *claiming]
    return ["TITLE", *observing, *(claiming if hasattr(module, "claims") else [])]


def heads(text: str) -> dict[str, str]:
    """The paragraphs of a cause's docstring by their head; a head that is absent is left out."""
    found: dict[str, str] = {}
    current: str | None = None
    for paragraph in re.split(r"\n\s*\n", text)[1:]:
        start = next((h for h in HEADS if paragraph.strip().startswith(h + ":")), None)
        if start:
            current = start
            found[current] = paragraph.strip()[len(start) + 1 :].strip()
        elif current:
            found[current] += "\n\n" + paragraph.strip()
    return found


def _tell_clash(broken: dict[str, str], name: str, path: str, first: Cause) -> None:
    if first.module.__name__ != path:
        broken[path] = f"the id {name} is taken by {first.module.__name__}; rename the file"


def _modules(package: ModuleType) -> Iterator[tuple[str, str]]:
    """(id, import path) of every cause below a package."""
    for folder in pkgutil.iter_modules(package.__path__):
        if folder.name not in REASONS or not folder.ispkg:
            continue
        inner = importlib.import_module(f"{package.__name__}.{folder.name}")
        for entry in pkgutil.iter_modules(inner.__path__):
            if not entry.name.startswith("_"):
                yield f"{folder.name}.{entry.name}", f"{inner.__name__}.{entry.name}"


def _packages(broken: dict[str, str]) -> Iterator[ModuleType]:
    """The packages that hold causes; ours first, also when run from a source tree."""
    yield importlib.import_module("whyidle.causes")
    for point in sorted(entry_points(group=GROUP), key=lambda p: p.name):
        try:
            yield point.load()
        except Exception as error:  # noqa: BLE001  as above
            broken[f"{point.name} ({point.value})"] = f"{type(error).__name__}: {error}"
