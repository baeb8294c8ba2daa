"""News fragments keep to their small convention."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
KINDS = ("added", "changed", "fixed", "removed")
FRAGMENTS = sorted(p for p in (ROOT / "changes").iterdir() if p.name != "README.md")


def test_every_fragment_is_named_after_its_change_and_its_kind() -> None:
    name = re.compile(rf"[a-z0-9]+(?:[-_.][a-z0-9]+)*\.(?:{'|'.join(KINDS)})\.md")
    assert [p.name for p in FRAGMENTS if not name.fullmatch(p.name)] == []


def test_every_fragment_is_a_sentence_for_a_user() -> None:
    for path in FRAGMENTS:
        text = path.read_text(encoding="utf-8").strip()
        assert text.endswith("."), path.name
        assert not text.startswith(("#", "-", "*")), path.name
        assert len(text) < 600, path.name


def test_the_changelog_points_to_what_is_not_released() -> None:
    assert "`changes/`" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
