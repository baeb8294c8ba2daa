"""A folder of pictures: the folders directly below it are classes, in the order of their names."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from whyidle.data.pictures import ENDINGS
from whyidle.data.sources.listing import Names, digest_of_files, walked
from whyidle.errors import DataError


class ImageFolder:
    """Pictures as their files' bytes; ``cls`` is the number of the class, where there are any.

    Keys are paths relative to the folder. A class without pictures keeps its number. ``ignored``
    counts files that are no pictures by their ending.
    """

    def __init__(self, folder: Path) -> None:
        """List the pictures below ``folder``."""
        self.name = str(folder)
        self._folder = folder
        self.ignored = 0
        self._names = Names(self._pictures())
        if not len(self._names):
            raise DataError(
                f"{folder}: no pictures ({', '.join(sorted(ENDINGS))}).\n"
                "Give the folder that holds them, or say with --from what this is."
            )
        classes = sorted(
            entry.name
            for entry in os.scandir(os.fsencode(folder))
            if entry.is_dir() and not entry.name.startswith(b".")
        )
        self.classes = [os.fsdecode(name) for name in classes] or None
        self._numbers = {name: number for number, name in enumerate(classes)}
        self.digest = digest_of_files(folder, (self._names[i] for i in range(len(self._names))))

    def _pictures(self) -> Any:
        for name in walked(self._folder):
            if _ending(name) in ENDINGS:
                yield name
            else:
                self.ignored += 1

    def __len__(self) -> int:
        return len(self._names)

    def key(self, i: int) -> str:
        """The path of the picture, relative to the folder."""
        return os.fsdecode(self._names[i])

    def read(self, i: int) -> dict[str, bytes]:
        """The bytes of the file, and the number of its class."""
        name = self._names[i]
        with open(os.path.join(os.fsencode(self._folder), name), "rb") as file:
            fields = {ENDINGS[_ending(name)]: file.read()}
        above, slash, _ = name.partition(b"/")
        if slash:
            fields["cls"] = str(self._numbers[above]).encode()
        return fields


def _ending(name: bytes) -> str:
    return os.path.splitext(os.fsdecode(name))[1].lower()


def knows(spec: str) -> bool:
    """Whether it is a folder (asked last of all, since other kinds are folders too)."""
    return os.path.isdir(spec)


def opened(spec: str, wishes: dict[str, Any]) -> ImageFolder:
    """The pictures below the folder."""
    return ImageFolder(Path(spec))
