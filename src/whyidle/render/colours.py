"""One colour and one pattern per reason, one shade per cause.

The eight hues were searched so that any two stay apart for normal sight and under simulated
protanopia, deuteranopia and tritanopia (smallest distance in OKLab 0.09), and so that each can be
told from a white and from a near-black page. Colour is never the only carrier: every part also
has a pattern, and a mark that its legend repeats.
"""

from __future__ import annotations

import colorsys
import zlib
from collections.abc import Iterable

from whyidle.diagnosis import REASONS, Diagnosis

USEFUL = "#60b5a6"
OTHER = "#8a8f98"
UNEXPLAINED = "#8a8f98"
UNRECORDED = "#b3b7be"

REASON_COLOURS: dict[int, str] = {
    1: "#7383d6",
    2: "#f1914a",
    3: "#9a3fe8",
    4: "#df259f",
    5: "#a34028",
    6: "#9c8133",
    7: "#30766f",
}
"""Number of a reason -> its colour."""

PATTERNS: dict[int, str] = {
    1: "rising",
    2: "falling",
    3: "dots",
    4: "level",
    5: "upright",
    6: "cross",
    7: "checks",
}
"""Number of a reason -> the pattern laid over its colour."""

_SHADES = (0.0, -0.09, 0.09, -0.17, 0.16)


def reasons(diagnosis: Diagnosis) -> dict[str, int | None]:
    """The reason of every cause that the diagnosis names; None for a folder that nobody knows."""
    found: dict[str, int | None] = {}
    claimed = diagnosis.timeline.claims if diagnosis.timeline else []
    named = [row.cause for row in diagnosis.ledger] + [c.cause for c in claimed if c.cause]
    for cause in named:
        found[cause] = REASONS.get(cause.partition(".")[0])
    for finding in diagnosis.findings:
        found[finding.cause] = finding.reason if finding.reason in REASON_COLOURS else None
    return found


def shades(causes: dict[str, int | None]) -> dict[str, str]:
    """A colour per cause: its reason's hue, in a shade that its id picks.

    The same cause gets the same shade in every report, unless another cause of this report
    already has it; then the next free one.
    """
    taken: dict[int | None, set[int]] = {}
    found = {}
    for cause in sorted(causes):
        reason = causes[cause]
        used = taken.setdefault(reason, set())
        first = zlib.crc32(cause.encode("utf-8", "replace")) % len(_SHADES)
        order = [(first + i) % len(_SHADES) for i in range(len(_SHADES))]
        slot = next((s for s in order if s not in used), first)
        used.add(slot)
        base = OTHER if reason is None else REASON_COLOURS[reason]
        found[cause] = lightened(base, _SHADES[slot])
    return found


def lightened(colour: str, by: float) -> str:
    """The colour with its HLS lightness (0..1) moved by ``by``."""
    hue, light, saturation = colorsys.rgb_to_hls(*_rgb(colour))
    rgb = colorsys.hls_to_rgb(hue, min(0.78, max(0.22, light + by)), saturation)
    return "#" + "".join(f"{round(part * 255):02x}" for part in rgb)


def luminance(colour: str) -> float:
    """Relative luminance (0..1) as WCAG defines it."""
    parts = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in _rgb(colour)]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


def contrast(one: str, other: str) -> float:
    """Contrast ratio (1..21) of two colours as WCAG defines it."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def ink(colour: str) -> str:
    """Black or white, whichever reads better on ``colour``; at least 4.5 : 1."""
    return max(("#000000", "#ffffff"), key=lambda text: contrast(text, colour))


def hues(causes: Iterable[str], diagnosis: Diagnosis) -> dict[str, str]:
    """The colour of each of ``causes``, in line with all others of the diagnosis."""
    all_shades = shades(reasons(diagnosis))
    return {cause: all_shades.get(cause, OTHER) for cause in causes}


def _rgb(colour: str) -> tuple[float, float, float]:
    red, green, blue = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return red, green, blue
