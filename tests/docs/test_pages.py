"""Generated documentation is current and complete, and links lead somewhere."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import whyidle
from whyidle.causes import all_causes
from whyidle.cli import build_parser
from whyidle.diagnosis import Diagnosis

ROOT = Path(__file__).parents[2]
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md", ROOT / "CHANGELOG.md"]
OURS = [c for c in all_causes().values() if c.module.__name__.startswith("whyidle.")]


def test_what_is_generated_is_current() -> None:
    done = subprocess.run(
        [sys.executable, "docs/generate.py", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, f"run: python docs/generate.py\n{done.stdout}{done.stderr}"


@pytest.mark.parametrize("cause", [pytest.param(c, id=c.id) for c in OURS])
def test_every_cause_has_a_page_that_the_index_leads_to(cause: object) -> None:
    id: str = cause.id  # type: ignore[attr-defined]
    page = ROOT / "docs/causes" / f"{id.replace('.', '/')}.md"
    assert f"`{id}`" in page.read_text(encoding="utf-8")
    index = (ROOT / "docs/causes/index.md").read_text(encoding="utf-8")
    assert f"({id.replace('.', '/')}.md)" in index


@pytest.mark.parametrize("page", [pytest.param(p, id=str(p.relative_to(ROOT))) for p in PAGES])
def test_every_link_of_a_page_leads_to_a_file(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", text)]
    dead = [
        link for link in links if link and "://" not in link and not (page.parent / link).exists()
    ]
    assert dead == []


def test_every_verb_and_option_is_on_the_reference_page() -> None:
    reference = (ROOT / "docs/cli.md").read_text(encoding="utf-8")
    (verbs,) = (a.choices for a in build_parser()._actions if isinstance(a.choices, dict))
    assert verbs
    for name, parser in verbs.items():
        assert f"## whyidle {name}\n" in reference
        for action in parser._actions:
            for option in action.option_strings:
                assert option in reference


def test_every_public_name_is_documented() -> None:
    texts = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    told = {name for name in whyidle.__all__ if re.search(rf"\b{re.escape(name)}\b", texts)}
    assert told | {"__version__"} == set(whyidle.__all__)
    assert all(getattr(whyidle, name).__doc__ for name in whyidle.__all__)
    methods = [name for name in vars(Diagnosis) if name in ("save", "to_json", "from_json")]
    assert len(methods) == 3
    assert all(name in texts for name in methods)


def test_the_published_schema_holds_the_keys_that_scripts_rely_on() -> None:
    schema = json.loads((ROOT / "docs/schema/diagnosis-1.json").read_text(encoding="utf-8"))
    records = schema["$defs"]
    promised = {
        "Diagnosis": "schema whyidle sources window devices ledger job findings plan replay "
        "timeline not_judged crashed",
        "Source": "path reader rank events notes",
        "Window": "origin_ns start_ns end_ns steps",
        "Device": "rank device name sms start_ns end_ns wall_s compute_s communication_s copy_s "
        "empty_s useful_s lost_s unexplained_s unrecorded_s steps step_s",
        "Step": "number start_ns end_ns",
        "LedgerRow": "rank device cause state lost_s share",
        "Finding": "cause reason title ledger lost_s share job_cost_s contested_s level status "
        "where evidence remedies",
        "Where": "file line op thread rank device lost_s",
        "EvidenceRow": "source row what",
        "Remedy": "what how patch safe why_safe effect gain prove",
        "Gain": "step_s_low step_s_mid step_s_high speedup_low speedup_mid speedup_high",
        "Replay": "measured_step_s replayed_step_s error constants_s",
        "Timeline": "rank device step spans claims capped",
        "NotJudged": "cause missing record_with",
        "Crashed": "cause error",
    }
    for record, keys in promised.items():
        assert set(keys.split()) <= set(records[record]["required"]), record
    assert records["Window"]["properties"]["origin_ns"]["type"] == "string"
