"""Reads a page as a browser's parser would, and notes what a test may ask about it."""

from __future__ import annotations

from html.parser import HTMLParser

VOID = {"meta", "br", "img", "hr", "input", "link", "rect"}


class Page(HTMLParser):
    """The elements of a page: tags with their attributes, ids, text, and unbalanced tags."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.open: list[str] = []
        self.wrong: list[str] = []
        self.text = ""
        self.scripts: list[tuple[dict[str, str], str]] = []
        self.styles: list[str] = []
        self.headings: list[int] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {key: value or "" for key, value in attrs}
        self.tags.append((tag, found))
        if tag in ("h1", "h2", "h3", "h4"):
            self.headings.append(int(tag[1]))
        if tag == "script":
            self.scripts.append((found, ""))
        if tag == "style":
            self.styles.append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {key: value or "" for key, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)

    def handle_data(self, data: str) -> None:
        inside = self.open[-1] if self.open else ""
        if inside == "script":
            self.scripts[-1] = (self.scripts[-1][0], self.scripts[-1][1] + data)
        elif inside == "style":
            self.styles[-1] += data
        else:
            self.text += data

    @property
    def ids(self) -> list[str]:
        return [attrs["id"] for _, attrs in self.tags if "id" in attrs]

    def having(self, tag: str) -> list[dict[str, str]]:
        return [attrs for name, attrs in self.tags if name == tag]
