"""XML as a plain tree, bounded, without entities and without fetching anything.

A document that declares an entity is refused: no tool that prints evidence declares one, and
entities are how a small file becomes an endless one or reads other files. A DOCTYPE that only
names a DTD is common (nvidia-smi) and is never followed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from xml.parsers import expat

from whyidle.errors import UnreadableEvidence

DEPTH_LIMIT = 64
NODE_LIMIT = 500_000
"""Elements of one document; nvidia-smi prints about 700 for each GPU."""


@dataclass
class Node:
    """One element: its tag, attributes, text, and the elements inside."""

    tag: str
    attributes: dict[str, str] = field(default_factory=dict)
    text: str = ""
    children: list[Node] = field(default_factory=list)

    def all(self, tag: str) -> Iterator[Node]:
        """The elements of this tag directly inside."""
        return (child for child in self.children if child.tag == tag)

    def at(self, *tags: str) -> Node | None:
        """The element at a path below this one; None when there is none."""
        node: Node | None = self
        for tag in tags:
            node = next(node.all(tag), None) if node is not None else None
        return node

    def words(self, *tags: str) -> str | None:
        """The text of the element at a path, stripped; None when there is no such element."""
        found = self.at(*tags)
        return None if found is None else found.text.strip()

    def below(self) -> Iterator[Node]:
        """Every element below this one, parents first."""
        for child in self.children:
            yield child
            yield from child.below()


class _Builder:
    def __init__(self) -> None:
        self.root: Node | None = None
        self.open: list[Node] = []
        self.count = 0
        self.refused: str | None = None

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        node = Node(tag, attributes)
        self.count += 1
        if len(self.open) >= DEPTH_LIMIT or self.count > NODE_LIMIT:
            self.refuse("nested deeper or larger than any tool writes")
        if self.open:
            self.open[-1].children.append(node)
        else:
            self.root = node
        self.open.append(node)

    def end(self, _: str) -> None:
        self.open.pop()

    def data(self, text: str) -> None:
        if self.open:
            self.open[-1].text += text

    def entity(self, *_: object) -> None:
        self.refuse("it declares an entity, which no tool that prints evidence does")

    def refuse(self, why: str) -> None:
        self.refused = why
        raise ValueError(why)


def parsed(path: Path, text: str) -> Node:
    """The root element of one document; raises UnreadableEvidence for a broken or unsafe one."""
    builder = _Builder()
    parser = expat.ParserCreate("utf-8")
    parser.buffer_text = True
    parser.StartElementHandler = builder.start
    parser.EndElementHandler = builder.end
    parser.CharacterDataHandler = builder.data
    parser.EntityDeclHandler = builder.entity
    try:
        parser.Parse(text.encode("utf-8", errors="replace"), True)
    except (expat.ExpatError, ValueError) as error:
        raise UnreadableEvidence(
            str(path),
            f"XML that cannot be read: {builder.refused or error}",
            "Save the output again, whole and without changes.",
        ) from error
    assert builder.root is not None
    return builder.root
