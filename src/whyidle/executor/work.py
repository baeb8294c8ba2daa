"""What a worker does with a batch: read its files where they lie, judge them, let the spans go."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from whyidle import __version__, errors
from whyidle.errors import EvidenceError, NothingRecorded, StepsNotRecorded, WhyidleError
from whyidle.executor import remote
from whyidle.executor.batches import Batch, File
from whyidle.model import Evidence
from whyidle.partial import Partial, partial_of
from whyidle.readers import torch_trace
from whyidle.readers.collector import collector_paused
from whyidle.readers.combine import combined
from whyidle.readers.finding import reader_for
from whyidle.views.windows import Steps

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Refusal:
    """An error as it travels: the name of its type in whyidle.errors, and its sentence."""

    kind: str
    text: str

    @staticmethod
    def of(error: Exception) -> Refusal:
        """The error as it travels; one that is not ours is our bug."""
        if isinstance(error, WhyidleError):
            return Refusal(type(error).__name__, str(error))
        return Refusal("Bug", " ".join(f"{type(error).__name__}: {error}".split()))

    def as_error(self) -> Exception:
        """The error again, without its traceback."""
        kind: type[Exception] = getattr(errors, self.kind)
        error = kind.__new__(kind)
        Exception.__init__(error, self.text)
        return error


@dataclass(frozen=True)
class Outcome:
    """What became of a batch. Neither partial nor refusal: nothing in it could be judged."""

    number: int
    partial: Partial | None = None
    refusal: Refusal | None = None
    empty: tuple[Refusal, ...] = ()
    notes: tuple[str, ...] = ()
    whyidle: str = __version__

    @property
    def lacks_steps(self) -> bool:
        """Whether none of the steps asked for is in this batch; another may have them."""
        return self.refusal is not None and self.refusal.kind == StepsNotRecorded.__name__

    def raised(self) -> Outcome:
        """The outcome itself; raises what the worker raised, and a difference of versions."""
        if self.whyidle != __version__:
            raise errors.ClusterError(
                f"The workers have whyidle {self.whyidle}, this is {__version__}.\n"
                "Install the same version on all of them."
            )
        if self.refusal is not None:
            raise self.refusal.as_error()
        return self


def sent(batch: Batch, steps: Steps | None) -> Outcome:
    """Read and judge one batch for another process; whatever is raised becomes an outcome."""
    try:
        return judged(batch, steps)
    except Exception as error:  # noqa: BLE001  it is raised again where it can be told
        return Outcome(batch.number, refusal=Refusal.of(error))


def here(batch: Batch, steps: Steps | None, progress: Progress | None) -> Outcome:
    """Read and judge one batch in this process."""
    try:
        return judged(batch, steps, progress)
    except StepsNotRecorded as error:
        return Outcome(batch.number, refusal=Refusal.of(error))


def judged(batch: Batch, steps: Steps | None, progress: Progress | None = None) -> Outcome:
    """Read and judge one batch."""
    with collector_paused():
        parts, empty = _read(batch, progress)
        told = tuple(Refusal.of(error) for error in empty)
        if not parts:
            return Outcome(batch.number, empty=told)
        passed = [f"{error.path}: {error.found}; passed over" for error in empty]
        evidence = combined(parts, [*batch.notes, *passed])
        del parts
        return Outcome(batch.number, partial_of(evidence, steps=steps), empty=told)


def _read(batch: Batch, progress: Progress | None) -> tuple[list[Evidence], list[NothingRecorded]]:
    """The evidence of each file, in the order of the files, and the files that hold none."""
    parts: list[Evidence | torch_trace.Gathered] = []
    empty: list[NothingRecorded] = []
    for file in batch.files:
        try:
            parts.append(_part(file, progress))
        except NothingRecorded as error:
            if not file.from_folder:
                raise
            empty.append(error)
    traces = [part for part in parts if isinstance(part, torch_trace.Gathered)]
    built = iter(torch_trace.built(traces) if traces else ())
    return [part if isinstance(part, Evidence) else next(built) for part in parts], empty


def _part(file: File, progress: Progress | None) -> Evidence | torch_trace.Gathered:
    """The evidence in one file, or, of a trace, what it will be built from with the others."""
    if remote.is_url(file.path):
        with remote.copied(file.path) as copy:
            try:
                return remote.renamed(reader_for(copy).read(copy, None), file.path)
            except EvidenceError as error:
                raise remote.retold(error, copy, file.path) from None

    def report(done: int, size: int) -> None:
        if progress is not None:
            progress(file.path, done, size)

    path = Path(file.path)
    reader = reader_for(path)
    read = torch_trace.gathered if reader.NAME == torch_trace.NAME else reader.read
    return read(path, report if progress is not None else None)
