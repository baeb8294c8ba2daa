"""``--fail-on``: what a limit means, and what is refused."""

from __future__ import annotations

import pytest

from whyidle.diagnosis import Device, Diagnosis, LedgerRow, NotJudged, Window
from whyidle.errors import UsageError
from whyidle.gate import Limit, check_judged, exceeded, parse_limits

CAUSES = (
    "data_loading.loader_workers_too_few",
    "data_loading.h2d_copy_blocking",
    "small_work.host_sync_scalar_read",
)


def diagnosis(unrecorded_s: float = 0.0) -> Diagnosis:
    """10 s on one device: 4 s lost (3 to the loader, 1 to a read), the rest useful or unknown."""
    device = Device(
        rank=0, device=0, name=None, sms=None, start_ns=0, end_ns=10_000_000_000, wall_s=10.0,
        compute_s=4.0, communication_s=0.0, copy_s=0.0, empty_s=6.0, useful_s=4.0, lost_s=4.0,
        unexplained_s=2.0, unrecorded_s=unrecorded_s, steps=[], step_s=None,
    )  # fmt: skip
    rows = [
        LedgerRow(rank=0, device=0, cause=cause, state="empty", lost_s=s, share=s / 10)
        for cause, s in ((CAUSES[0], 3.0), (CAUSES[2], 1.0))
    ]
    return Diagnosis(
        whyidle="0", sources=[], devices=[device], ledger=rows, findings=[],
        window=Window(origin_ns="0", start_ns=0, end_ns=10_000_000_000, steps=None),
        not_judged=[NotJudged(cause=CAUSES[1], missing=["copies"], record_with="cuda=True")],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "what", "share"),
    [
        ("lost>30%", "lost", 0.30),
        ("data_loading>10%", "data_loading", 0.10),
        (" data_loading.loader_workers_too_few > 2.5 % ", CAUSES[0], 0.025),
        ("communication>0%", "communication", 0.0),
    ],
)
def test_a_limit_is_read_as_a_share_of_what_it_names(text: str, what: str, share: float) -> None:
    assert parse_limits([text], CAUSES) == [Limit(what, pytest.approx(share))]


@pytest.mark.parametrize(
    "text", ["lost", "lost>", "lost>30", "30%", "lost<30%", "lost>-1%", "lost>120%", "lost>x%", ""]
)
def test_text_that_is_no_limit_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError, match=r"(?s)--fail-on.*(lost>30%|100%)"):
        parse_limits([text], CAUSES)


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("data_loadin", "data_loading"),
        ("loader_workers_too_few", CAUSES[0]),
        ("small_work.host_sync_scalar_reads", CAUSES[2]),
    ],
)
def test_an_unknown_cause_is_answered_with_near_matches(wrong: str, meant: str) -> None:
    with pytest.raises(UsageError, match=f"Did you mean .*{meant}"):
        parse_limits([f"{wrong}>5%"], CAUSES)


def test_an_unknown_cause_without_a_near_match_points_to_the_list() -> None:
    with pytest.raises(UsageError, match="whyidle explain"):
        parse_limits(["zzzzzz>5%"], CAUSES)


@pytest.mark.parametrize(
    ("limit", "above"),
    [
        (Limit("lost", 0.39), True),
        (Limit("lost", 0.40), False),
        (Limit("data_loading", 0.29), True),
        (Limit("data_loading", 0.31), False),
        (Limit("small_work.host_sync_scalar_read", 0.05), True),
        (Limit("communication", 0.0), False),
    ],
)
def test_a_limit_is_exceeded_only_when_the_share_is_above_it(limit: Limit, above: bool) -> None:
    assert bool(exceeded(diagnosis(), [limit])) is above


def test_time_that_was_not_recorded_is_out_of_the_base() -> None:
    # 4 s lost of 10 s is 40 %; with 2 s of 10 not recorded it is 4 of 8, 50 %.
    assert exceeded(diagnosis(unrecorded_s=2.0), [Limit("lost", 0.49)]) != []
    assert exceeded(diagnosis(unrecorded_s=2.0), [Limit("lost", 0.50)]) == []


def test_a_sentence_names_the_share_and_the_limit() -> None:
    (sentence,) = exceeded(diagnosis(), [Limit("data_loading", 0.1)])
    assert sentence == "data_loading is 30.0% of the recorded time, over the limit of 10%."


def test_a_limit_on_what_the_evidence_cannot_show_is_refused() -> None:
    with pytest.raises(UsageError, match="(?s)cannot show data_loading.h2d_copy.*cuda=True"):
        check_judged(diagnosis(), [Limit(CAUSES[1], 0.1)], CAUSES)


def test_a_limit_on_a_folder_stands_when_one_of_its_causes_was_judged() -> None:
    check_judged(diagnosis(), [Limit("data_loading", 0.5), Limit("lost", 0.5)], CAUSES)
    assert exceeded(diagnosis(), [Limit("data_loading", 0.5)]) == []
