"""A packed set of ours as the source of another, in any format."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from whyidle.data import manifest
from whyidle.data.formats import module_of
from whyidle.data.records import BadSample
from whyidle.errors import DamagedSample


class Packed:
    """The samples of a packed set, each checked as it is read."""

    def __init__(self, folder: Path) -> None:
        """Open the set's manifest and index."""
        self.name = str(folder)
        found = manifest.load(folder)
        self.digest = manifest.digest_of(found.text())
        self.classes = found.classes
        self._reader = module_of(found.format).Reader(folder, found)

    def __len__(self) -> int:
        return len(self._reader)

    def key(self, i: int) -> str:
        """The key that the sample has in the set."""
        try:
            return str(self._reader.key(i))
        except DamagedSample as damage:
            raise BadSample(f"sample {i}", damage.found) from damage

    def read(self, i: int) -> dict[str, bytes]:
        """The fields of the sample; a damaged one is a bad one."""
        try:
            fields: dict[str, bytes] = self._reader.fields(i)
        except DamagedSample as damage:
            raise BadSample(damage.key or f"sample {i}", damage.found) from damage
        return fields


def knows(spec: str) -> bool:
    """Whether the folder holds a manifest of ours."""
    return os.path.isfile(os.path.join(spec, manifest.NAME))


def opened(spec: str, wishes: dict[str, Any]) -> Packed:
    """The packed set."""
    return Packed(Path(spec))
