"""Reasons keep apart for every kind of sight, and text on them can be read."""

from __future__ import annotations

from itertools import combinations

import pytest

from tests.render.cases import loader_bound
from whyidle.diagnosis import REASONS
from whyidle.render.colours import (
    PATTERNS,
    REASON_COLOURS,
    USEFUL,
    contrast,
    ink,
    reasons,
    shades,
)

# Machado et al. 2009, severity 1.0, on linear RGB.
SIGHTS = {
    "normal": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "tritanopia": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
}


def _seen(colour: str, sight: str) -> tuple[float, ...]:
    """The colour in OKLab, after the simulated sight."""
    raw = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    rgb = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in raw]
    rgb = [max(0.0, sum(m * c for m, c in zip(row, rgb, strict=True))) for row in SIGHTS[sight]]
    cones = (
        (0.4122214708, 0.5363325363, 0.0514459929),
        (0.2119034982, 0.6806995451, 0.1073969566),
        (0.0883024619, 0.2817188376, 0.6299787005),
    )
    lms = [sum(m * c for m, c in zip(row, rgb, strict=True)) ** (1 / 3) for row in cones]
    lab = (
        (0.2104542553, 0.7936177850, -0.0040720468),
        (1.9779984951, -2.4285922050, 0.4505937099),
        (0.0259040371, 0.7827717662, -0.8086757660),
    )
    return tuple(sum(m * c for m, c in zip(row, lms, strict=True)) for row in lab)


@pytest.mark.parametrize("sight", SIGHTS)
def test_any_two_reasons_and_useful_work_stay_apart(sight: str) -> None:
    for one, other in combinations([*REASON_COLOURS.values(), USEFUL], 2):
        pair = zip(_seen(one, sight), _seen(other, sight), strict=True)
        assert sum((a - b) ** 2 for a, b in pair) ** 0.5 > 0.085, (one, other)


def test_every_reason_has_a_colour_and_a_pattern_of_its_own() -> None:
    assert set(REASON_COLOURS) == set(PATTERNS) == set(REASONS.values())
    assert len(set(PATTERNS.values())) == len(PATTERNS)


def test_text_on_every_shade_of_every_reason_can_be_read() -> None:
    causes = {f"{folder}.cause{i}": REASONS[folder] for folder in REASONS for i in range(5)}
    found = shades(causes)
    assert len(set(found.values())) == len(causes)
    for colour in found.values():
        assert contrast(ink(colour), colour) >= 4.5


def test_contrast_follows_the_published_examples() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21.0)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


def test_a_cause_keeps_its_colour_from_report_to_report() -> None:
    cause = "data_loading.loader_workers_too_few"
    alone = shades({cause: 2})[cause]
    assert shades({cause: 2, "memory.fp32_no_tensor_cores": 4})[cause] == alone
    assert shades(reasons(loader_bound()))[cause] == alone


def test_a_strangers_cause_takes_the_reason_of_its_finding_or_none() -> None:
    found = shades({"acme.rule": None, "acme.other": 5})
    assert found["acme.rule"] != found["acme.other"]
