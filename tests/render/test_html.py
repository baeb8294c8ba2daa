"""The page stands alone, runs nothing from the evidence, and can be used without sight or mouse."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import subprocess
from pathlib import Path

import msgspec
import pytest

from tests.render.cases import (
    CASES,
    HOSTILE,
    hostile,
    loader_bound,
    many_ranks,
    nothing_found,
    sampled_only,
    signs_only,
    thousand,
)
from tests.render.loader_case import loader_timeline
from tests.render.page_reader import Page
from whyidle.diagnosis import Diagnosis
from whyidle.render import html
from whyidle.render.colours import contrast
from whyidle.render.page.markup import asset
from whyidle.render.plain import clean

SCRIPTS = (
    "page.js",
    "timeline_model.js",
    "timeline_chart.js",
    "timeline_tables.js",
    "timeline_controls.js",
)


def page(diagnosis: Diagnosis) -> Page:
    return Page(html.render(diagnosis))


def timeline_data(found: Page) -> dict[str, list[list[int]]]:
    (text,) = [text for attrs, text in found.scripts if attrs.get("type") == "application/json"]
    return json.loads(text)


@pytest.mark.parametrize("name", CASES)
def test_the_page_is_well_formed_and_asks_nothing_of_the_network(name: str) -> None:
    found = page(CASES[name]())
    assert found.wrong == [] and found.open == []
    for _, attrs in found.tags:
        assert not [key for key in attrs if key.startswith("on") or key in ("src", "style")]
        assert attrs.get("href", "#").startswith("#")
    assert "url(" not in found.styles[0] and "@import" not in found.styles[0]


@pytest.mark.parametrize("name", ["loader_bound", "hostile", "nothing_recorded"])
def test_the_policy_allows_exactly_the_style_and_the_script_of_the_page(name: str) -> None:
    found = page(CASES[name]())
    (policy,) = [m["content"] for m in found.having("meta") if "Policy" in m.get("http-equiv", "")]
    runnable = [text for attrs, text in found.scripts if "type" not in attrs]
    assert len(runnable) == 1
    for kind, text in (("style", found.styles[0]), ("script", runnable[0])):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy


def test_hostile_names_are_shown_as_text_and_run_nowhere() -> None:
    text = html.render(hostile())
    found = Page(text)
    assert len(found.scripts) == 2
    assert not found.having("img")
    for name in (HOSTILE[0], HOSTILE[1], HOSTILE[2]):
        assert name in found.text
    assert "\x1b" not in text and "\u202e" not in text
    assert [name for name in timeline_data(found)["names"] if "</script>" in str(name)]


@pytest.mark.parametrize("name", CASES)
def test_ids_are_unique_and_every_reference_leads_somewhere(name: str) -> None:
    found = page(CASES[name]())
    ids = found.ids
    assert len(ids) == len(set(ids))
    for _, attrs in found.tags:
        for key in ("aria-labelledby", "aria-describedby", "aria-controls"):
            assert attrs.get(key, ids[0]) in ids
        if attrs.get("href"):
            assert attrs["href"][1:] in ids


@pytest.mark.parametrize("name", CASES)
def test_a_screen_reader_finds_one_title_landmarks_and_headings_in_order(name: str) -> None:
    found = page(CASES[name]())
    assert found.headings.count(1) == 1 and found.headings[0] == 1
    assert all(b - a <= 1 for a, b in zip(found.headings, found.headings[1:], strict=False))
    for tag in ("main", "header", "footer"):
        assert found.having(tag)
    assert found.having("html") == [{"lang": "en"}]
    for attrs in found.having("section"):
        assert "aria-labelledby" in attrs
    for attrs in [attrs for _, attrs in found.tags if attrs.get("role") == "img"]:
        assert attrs["aria-label"]


def test_the_timeline_can_be_focused_is_described_and_has_a_table_beside_it() -> None:
    found = page(loader_bound())
    (canvas,) = found.having("canvas")
    assert canvas["tabindex"] == "0"
    assert "step 3 on GPU 0, 199 ms" in canvas["aria-label"]
    assert "Losses, the longest" in found.text
    assert "role" in canvas and canvas["aria-describedby"] == "timeline-keys"


def test_the_data_of_the_timeline_is_the_timeline() -> None:
    diagnosis = loader_bound()
    timeline = diagnosis.timeline
    assert timeline is not None
    data = timeline_data(page(diagnosis))
    names = data["names"]
    drawn = [
        (names[kind], names[name], start, length)
        for _, _, kind, name, start, length in data["spans"]
    ]
    assert drawn == [(s.kind, s.name, s.start_ns, s.end_ns - s.start_ns) for s in timeline.spans]
    lost = sum(claim[5] for claim in data["claims"] if claim[0] >= 0)
    assert lost == sum(c.end_ns - c.start_ns for c in timeline.claims if c.cause)
    assert [lane["host"] for lane in data["lanes"]] == [False, True]  # type: ignore[call-overload]


def test_a_step_of_thousands_of_spans_stays_a_small_page() -> None:
    big = msgspec.structs.replace(loader_bound(), timeline=loader_timeline(2400))
    assert big.timeline is not None and len(big.timeline.spans) > 4500
    assert len(html.render(big)) < 500_000


def test_calls_nested_too_deeply_are_left_out_and_counted() -> None:
    timeline = loader_timeline()
    deep = [msgspec.structs.replace(timeline.spans[1], depth=d) for d in range(38, 45)]
    diagnosis = msgspec.structs.replace(
        loader_bound(), timeline=msgspec.structs.replace(timeline, spans=deep)
    )
    found = page(diagnosis)
    assert "5 calls nested deeper than 40 levels: not drawn." in found.text
    assert len(timeline_data(found)["spans"]) == 2


def test_each_of_several_devices_has_a_row_and_a_single_one_has_none() -> None:
    found = page(many_ranks())
    assert "81.2% at the most (rank 5, GPU 0)" in found.text
    assert found.text.count("rank 5, GPU 0") == 2
    assert "Each device" not in page(loader_bound()).text


def test_of_a_thousand_devices_the_worst_are_drawn_and_all_are_listed() -> None:
    text = html.render(thousand())
    assert len(text) < 1_000_000
    found = Page(text)
    assert "The 16 devices that lost most" in found.text
    assert "1,000 of 1,000 devices" in found.text
    assert found.text.count("rank 999, GPU 0") >= 2
    assert "and 936 more files, in the JSON report" in found.text


def test_what_all_changes_together_bring_stands_beside_the_error_of_the_replay() -> None:
    found = page(loader_bound())
    assert "All together" in found.text
    assert "Step 195 ms → 142 ms (121 ms to 161 ms), 1.37x (1.21x to 1.61x)" in found.text
    assert "Step 195 ms → 151 ms (136 ms to 168 ms), 1.29x (1.16x to 1.44x) replay 1.5% off" in (
        found.text
    )
    assert "Replayed without a change: 192 ms; measured: 195 ms" in found.text


def test_signs_without_seconds_and_samples_without_a_trace_have_a_page() -> None:
    signs = page(signs_only())
    assert "2 signs of trouble were seen" in signs.text
    assert "Rank 3 did not enqueue all_reduce 1,204" in signs.text
    sampled = page(sampled_only())
    assert "The 3 sampled GPUs were busy for 76% of 6 h together; 17% was lost." in (
        sampled.text.replace("\u00a0", " ")
    )
    assert "node7, GPU 2" in sampled.text and "███▁▁·▅█" in sampled.text


def test_the_colours_of_spans_and_bars_lower_than_their_row_are_explained() -> None:
    found = page(loader_bound())
    assert "named range" in found.text and "computing" in found.text
    assert any(c.weight < 1 for c in loader_timeline().claims)
    assert "lower than its row: that share of the time was lost" in found.text


def test_finding_nothing_is_said() -> None:
    assert "No cause was found in what was recorded." in page(nothing_found()).text


def _tokens(block: str) -> dict[str, str]:
    return dict(re.findall(r"--([a-z]+): (#[0-9a-f]{6});", block))


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_can_be_read_on_every_ground_of_both_themes(theme: str) -> None:
    blocks = re.findall(r":root[^{]*\{([^}]*)\}", asset("theme.css"))
    light, dark_by_system, dark_by_choice = map(_tokens, blocks)
    assert dark_by_system == dark_by_choice
    colours = light if theme == "light" else {**light, **dark_by_choice}
    for text in ("text", "muted", "accent", "warn", "bad", "good"):
        for ground in ("page", "card", "sunken"):
            assert contrast(colours[text], colours[ground]) >= 4.5, (text, ground)


def test_the_page_follows_the_system_and_avoids_motion_where_asked() -> None:
    assert "prefers-color-scheme: dark" in asset("theme.css")
    assert "prefers-reduced-motion" in asset("media.css")
    assert "prefers-reduced-motion" in asset("timeline_controls.js")


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_never_write_markup(name: str) -> None:
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", asset(name)
    )


@pytest.mark.parametrize("name", CASES)
def test_a_notebook_gets_a_fragment_without_script_bound_to_its_own_name(name: str) -> None:
    text = html.fragment(CASES[name]())
    found = Page(text)
    assert found.scripts == [] and found.wrong == [] and found.open == []
    own = found.having("div")[0]["class"].split()[1]
    for rule in found.styles[0].split("}"):
        selector = rule.split("{")[0].strip()
        for part in selector.split(","):
            assert not part or part.strip().startswith(f".{own}"), selector


def test_two_fragments_in_one_notebook_do_not_share_a_name() -> None:
    one, other = (Page(html.fragment(make())) for make in (loader_bound, many_ranks))
    assert one.having("div")[0]["class"] != other.having("div")[0]["class"]


def test_cleaning_keeps_every_script_and_drops_what_garbles() -> None:
    assert clean("ядро 核函数 🚀") == "ядро 核函数 🚀"
    assert clean("a\tb\nc\x00\u202e\ud800") == "a b c\ufffd\ufffd\ufffd"


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_are_sound_javascript(name: str, tmp_path: Path) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    file = tmp_path / name
    file.write_text(asset(name), encoding="utf-8")
    done = subprocess.run([node, "--check", file], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_browser_runs_the_page_under_its_own_policy(tmp_path: Path) -> None:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no Chromium is installed")
    file = tmp_path / "report.html"
    file.write_text(html.render(loader_bound()), encoding="utf-8")
    flags = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        f"--user-data-dir={tmp_path / 'profile'}",
        "--dump-dom",
    ]
    done = subprocess.run(
        [browser, *flags, file.as_uri()], capture_output=True, text=True, timeout=120, check=True
    )
    shown = Page(done.stdout)
    assert [b for b in shown.having("button") if b.get("aria-label") == "Zoom in"]
    assert "In view: all of it, 199 ms" in shown.text
