"""Every sentence a user can meet when something fails.

::

    WhyidleError            exit 2: the user's input or usage
    ├── EvidenceError       a file or folder that cannot be read as evidence
    │   ├── NotFound
    │   ├── UnreadableEvidence   broken: truncated, wrong encoding, bad JSON
    │   ├── UnknownEvidence      sound, but no reader knows it
    │   └── NothingRecorded      a trace that holds nothing to judge
    ├── EvidenceConflict    files that cannot be one run
    ├── UsageError          an argument that makes no sense
    │   └── StepsNotRecorded     --steps that leaves no step
    ├── OutputError         a report that cannot be written
    ├── ClusterError        workers or an engine that failed
    └── DataError           a data set that cannot be read, packed or loaded as asked
        ├── DamagedSample        one sample whose bytes are not those that were packed
        └── MissingPackage       a package that this needs and that is not installed
    Bug                     exit 3: our fault

Each message says what was tried, what was found, and what to do next.
"""

from __future__ import annotations


class WhyidleError(Exception):
    """Something the user can put right; its text is one to three lines."""

    exit_code = 2


class EvidenceError(WhyidleError):
    """A file or folder that cannot be read as evidence."""

    def __init__(self, path: str, found: str, next_step: str) -> None:
        """Build the sentence from where, what was found there, and what to do."""
        super().__init__(f"{path}: {found}.\n{next_step}")
        self.path = path
        self.found = found


class NotFound(EvidenceError):
    """There is nothing at the path."""

    def __init__(self, path: str) -> None:
        """Name the path that is missing."""
        super().__init__(path, "no such file or folder", "Check the path and its spelling.")


class UnreadableEvidence(EvidenceError):
    """The file is broken: truncated, in a wrong encoding, or not valid JSON."""


class UnknownEvidence(EvidenceError):
    """The file is sound, but no reader knows what it is."""


class NothingRecorded(EvidenceError):
    """The trace is valid and holds nothing that could be judged."""


class EvidenceConflict(WhyidleError):
    """Files that were given together and cannot be one run."""


class UsageError(WhyidleError):
    """An argument that makes no sense; the message says which would."""


class StepsNotRecorded(UsageError):
    """The steps that were asked for are in none of the evidence."""


class OutputError(WhyidleError):
    """A report that cannot be written where the user asked."""


class ClusterError(WhyidleError):
    """Worker processes, or the engine they run on, that failed."""


class DataError(WhyidleError):
    """A data set that cannot be read, packed or loaded as asked."""


class DamagedSample(DataError):
    """One sample of a packed set whose bytes are not those that were packed.

    ``shard`` is the damaged file's name inside the set, ``index`` the sample's number in the set,
    ``key`` its name, or None where the name itself is what was damaged.
    """

    def __init__(self, shard: str, index: int, key: str | None, found: str) -> None:
        """Build the sentence from where, which sample, and what was found there."""
        name = "" if key is None else f" ({clear(key)})"
        super().__init__(
            f"{shard}: sample {index}{name} is damaged: {found}.\n"
            "`whyidle data verify` lists all that is damaged; on_damage='skip' reads the rest."
        )
        self.shard, self.index, self.key, self.found = shard, index, key, found

    def __reduce__(self) -> tuple[type[DamagedSample], tuple[str, int, str | None, str]]:
        """Survive the way from a loader's worker to its main process."""
        return DamagedSample, (self.shard, self.index, self.key, self.found)


class MissingPackage(DataError):
    """A package that this needs and that is not installed."""

    def __init__(self, package: str, purpose: str) -> None:
        """Name the package and what it is needed for."""
        super().__init__(f"{purpose} needs {package}.\nInstall it: pip install {package}")
        self.package, self.purpose = package, purpose

    def __reduce__(self) -> tuple[type[MissingPackage], tuple[str, str]]:
        """Survive the way from a worker process."""
        return MissingPackage, (self.package, self.purpose)


def clear(name: str) -> str:
    """A file's name as it can be printed: bytes that are no UTF-8 are written as escapes."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


class Bug(Exception):
    """A broken promise inside whyidle, such as a ledger that does not add up."""

    exit_code = 3
