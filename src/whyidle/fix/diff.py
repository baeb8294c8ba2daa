"""A unified diff that ``git apply`` and ``git apply -R`` take."""

from __future__ import annotations

from difflib import unified_diff

NO_NEWLINE = "\n\\ No newline at end of file\n"


def unified(path: str, before: bytes, after: bytes) -> bytes:
    """The diff of one file, empty when it did not change; ``path`` is relative, with slashes.

    Bytes are compared, so that line ends and encodings come out as they are in the file.
    """
    if before == after:
        return b""
    one, other = _lines(before), _lines(after)
    name = path.encode("utf-8", "surrogateescape").decode("latin-1")
    lines = unified_diff(one, other, _name(f"a/{name}"), _name(f"b/{name}"))
    return "".join(t if t.endswith("\n") else t + NO_NEWLINE for t in lines).encode("latin-1")


def _lines(text: bytes) -> list[str]:
    """Lines as git sees them: only a line feed ends one."""
    found = [line + "\n" for line in text.decode("latin-1").split("\n")]
    found[-1] = found[-1][:-1]
    return found if found[-1] else found[:-1]


def _name(path: str) -> str:
    """The name as git reads it: quoted where it holds odd characters, a tab after spaces."""
    if any(c in '"\\' or ord(c) < 32 or ord(c) > 126 for c in path):
        quoted = "".join(
            f"\\{c}" if c in '"\\' else f"\\{ord(c):03o}" if not 32 <= ord(c) <= 126 else c
            for c in path
        )
        return f'"{quoted}"'
    return f"{path}\t" if " " in path else path
