"""The envelope: always one document, never too large, and nothing in it that JSON does not have."""

from __future__ import annotations

import hashlib
import json
import math
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyoco_server.core.priced import envelope as module
from pyoco_server.core.priced.constants import ENVELOPE_MAX_BYTES
from pyoco_server.core.priced.envelope import (
    Artifact,
    BadPackResult,
    Cover,
    DoesNotFit,
    PackResult,
    Sealed,
    seal,
    seal_failed,
)

RUN_ID = "0b0e9a52-6b1f-4c3c-9d0a-3c1a7d2f9a11"
PREFIX = f"dpp/acme/2026/02/13/{RUN_ID}/"
COVER = Cover(
    run_id=RUN_ID,
    pack_type="decision",
    trace_id="t_1",
    profile_version="PROFILE_DPP_0_4_2_2",
    prefix=PREFIX,
    generated_at="2026-02-13T00:00:05Z",
    reserved_usd_micros=250_100,
    charge_usd_micros=50_000,
    minimum_fee_usd_micros=5_002,
    min_reliability_e4=8000,
)
RESULT = PackResult(data={"answer_text": "Ja, 배송", "confidence": 0.75}, actual_cost_usd_micros=50_000)
MARKDOWN = Artifact(name="ocr.md", content_type="text/markdown; charset=utf-8", data=b"# Title")


def opened(sealed: Sealed) -> Any:
    """The document, after what must hold for each: its size, its digest, and that all it names is there."""
    assert len(sealed.envelope) <= ENVELOPE_MAX_BYTES
    assert sealed.sha256 == hashlib.sha256(sealed.envelope).hexdigest()
    document = json.loads(sealed.envelope)
    assert sealed.envelope == json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
    for each in sealed.objects:
        assert re.fullmatch(r"[a-z0-9_.-]{1,64}", each.name)
        assert each.key == f"{PREFIX}artifacts/{each.name}"
        assert each.sha256 == hashlib.sha256(each.data).hexdigest()
    listed = {
        each.name: {
            "key": each.key,
            "sha256": each.sha256,
            "bytes": len(each.data),
            "content_type": each.content_type,
        }
        for each in sealed.objects
    }
    assert document["artifacts"] == listed
    assert list(sealed.manifest) == [{"name": name, **facts} for name, facts in listed.items()]
    return document


def whole(sealed: Sealed) -> Any:
    """The data, with what was moved out put back."""
    objects = {each.name: each for each in sealed.objects}
    return {
        name: json.loads(objects[value["$artifact"]].data)
        if isinstance(value, dict) and "$artifact" in value
        else value
        for name, value in opened(sealed)["data"].items()
    }


def test_an_envelope_has_the_members_of_the_contract() -> None:
    """PRICED-130, PRICED-131"""
    logs: dict[str, Any] = {
        "discard_log": [{"url": "https://a.example", "reason": "TIMEOUT"}],
        "blocked_log": [{"url": "https://b.example", "resolved_ip": "127.0.0.1", "reason": "LOOPBACK"}],
    }
    document = opened(seal(COVER, replace(RESULT, tokens_consumed=12, **logs)))
    assert document == {
        "schema_version": "0.4.2.2",
        "run_id": RUN_ID,
        "pack_type": "decision",
        "status": "COMPLETED",
        "generated_at": "2026-02-13T00:00:05Z",
        "cost": {"reserved_usd": "0.2501", "used_usd": "0.0500", "minimum_fee_usd": "0.0051"},
        "data": {"answer_text": "Ja, 배송", "confidence": 0.75},
        "artifacts": {},
        "logs": logs,
        "meta": {
            "trace_id": "t_1",
            "profile_version": "PROFILE_DPP_0_4_2_2",
            "reliability_met": None,
            "tokens_consumed": 12,
        },
    }


def test_text_is_stored_as_utf_8() -> None:
    """PRICED-130"""
    assert "배송".encode() in seal(COVER, RESULT).envelope


def test_what_was_used_is_the_charge_and_not_what_the_pack_cost() -> None:
    """PRICED-131"""
    cover = replace(COVER, charge_usd_micros=250_001)
    document = opened(seal(cover, replace(RESULT, actual_cost_usd_micros=9_000_000)))
    assert document["cost"]["used_usd"] == "0.2501"


def test_a_failed_run_has_an_envelope_without_data() -> None:
    """PRICED-131, PRICED-133"""
    sealed = seal_failed(replace(COVER, charge_usd_micros=5_002, trace_id=None))
    document = opened(sealed)
    assert sealed.objects == ()
    assert document["status"] == "FAILED"
    assert document["cost"] == {"reserved_usd": "0.2501", "used_usd": "0.0051", "minimum_fee_usd": "0.0051"}
    assert document["data"] == document["artifacts"] == {}
    assert document["logs"] == {"discard_log": [], "blocked_log": []}
    assert list(document) == list(opened(seal(COVER, RESULT)))


@pytest.mark.parametrize(
    ("score", "min_reliability_e4", "met"),
    [
        (None, 8000, None),
        (0.8, 8000, True),
        (0.79999, 8000, False),
        (0.0057, 57, True),  # the double of 0.0057 lies below it
        (0.29, 2900, True),
        (0, 0, True),
        (0, 1, False),
        (1, 10_000, True),
        (0.9999, 10_000, False),
        (1e-9, 0, True),
    ],
)
def test_whether_the_score_was_met_is_a_flag(score: float | None, min_reliability_e4: int, met: bool | None) -> None:
    """PRICED-128"""
    cover = replace(COVER, min_reliability_e4=min_reliability_e4)
    document = opened(seal(cover, replace(RESULT, reliability_score=score)))
    assert document["meta"]["reliability_met"] is met
    assert document["status"] == "COMPLETED"
    assert document["cost"]["used_usd"] == "0.0500"


def test_artifacts_of_a_pack_are_listed_with_their_digests() -> None:
    """PRICED-132, PRICED-165, PRICED-169"""
    empty = Artifact(name="empty.docx", content_type="application/vnd.x-y+zip", data=b"")
    sealed = seal(COVER, replace(RESULT, artifacts=[MARKDOWN, empty]))
    opened(sealed)
    assert [(each.name, each.data) for each in sealed.objects] == [("ocr.md", b"# Title"), ("empty.docx", b"")]


def test_the_largest_members_move_out_until_the_rest_fits() -> None:
    """PRICED-132"""
    data = {"small": "s", "Second Best": ["b" * 500_000], "third": "c" * 400_000, "Largest": {"x": "a" * 600_000}}
    sealed = seal(COVER, replace(RESULT, data=data, artifacts=[MARKDOWN]))
    document = opened(sealed)
    assert [each.name for each in sealed.objects] == ["ocr.md", "largest.json"]
    assert sealed.objects[1].content_type == "application/json"
    assert document["data"] == data | {"Largest": {"$artifact": "largest.json"}}
    assert list(document["data"]) == list(data)
    assert whole(sealed) == data


def test_an_envelope_may_have_exactly_as_many_bytes_as_it_may_have() -> None:
    """PRICED-132"""
    room = ENVELOPE_MAX_BYTES - len(seal(COVER, replace(RESULT, data={"text": ""})).envelope)
    fits = seal(COVER, replace(RESULT, data={"text": "x" * room}))
    assert len(fits.envelope) == ENVELOPE_MAX_BYTES
    assert fits.objects == ()
    moved = seal(COVER, replace(RESULT, data={"text": "x" * (room + 1)}))
    assert [each.name for each in moved.objects] == ["text.json"]
    assert whole(moved) == {"text": "x" * (room + 1)}


def test_size_is_counted_in_bytes_and_not_in_characters() -> None:
    """PRICED-132"""
    assert seal(COVER, replace(RESULT, data={"text": "배" * 400_000})).objects


def test_names_of_moved_members_are_within_the_grammar_and_unlike() -> None:
    """PRICED-132, PRICED-165"""
    names = ["Text", "text", "TEXT", "텍스트", "가나다", "", "..", "a/b", "a b", "x" * 80, "x" * 81, "x" * 59 + "-2"]
    data = {name: [name, "y" * 200_000] for name in names}
    pack_made = Artifact(name="text.json", content_type="application/json", data=b"{}")
    sealed = seal(COVER, replace(RESULT, data=data, artifacts=[pack_made]))
    assert whole(sealed) == data
    moved = [each.name for each in sealed.objects]
    assert (
        len(set(moved)) == len(moved) == 1 + len([each for each in opened(sealed)["data"].values() if len(each) == 1])
    )
    assert moved[0] == "text.json"


def test_thousands_of_members_move_out_in_one_go() -> None:
    """PRICED-132"""
    data = {f"텍{number}": "z" * 2_000 for number in range(1_000)}
    sealed = seal(COVER, replace(RESULT, data=data))
    assert whole(sealed) == data
    assert 500 < len(sealed.objects) < 1_000


def test_a_member_stays_where_what_stands_for_it_would_be_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """PRICED-132: its name is written three times over."""
    data = {"x" * 59: "v" * 400, "a": "v" * 399}
    size = len(seal(COVER, replace(RESULT, data=data)).envelope)
    monkeypatch.setattr(module, "ENVELOPE_MAX_BYTES", size - 50)
    sealed = seal(COVER, replace(RESULT, data=data))
    assert [each.name for each in sealed.objects] == ["a.json"]
    assert whole(sealed) == data


def test_what_cannot_be_made_to_fit_is_refused() -> None:
    """PRICED-132"""
    many_short = {f"{number:06d}": "z" * 20 for number in range(40_000)}
    for result in (
        replace(RESULT, data=many_short),
        replace(RESULT, discard_log=[{"url": "x" * ENVELOPE_MAX_BYTES}]),
        replace(RESULT, data={"x" * ENVELOPE_MAX_BYTES: 1}),
    ):
        with pytest.raises(DoesNotFit, match="bytes"):
            seal(COVER, result)


#: Small members, so that a small envelope has to move some of them.
datas = st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=70), st.integers(0, 900).map(lambda n: "v" * n))


@given(datas, st.integers(700, 3_000))
def test_whatever_the_members_are_the_envelope_fits_or_is_refused(data: dict[str, str], limit: int) -> None:
    """PRICED-132"""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "ENVELOPE_MAX_BYTES", limit)
        try:
            sealed = seal(COVER, replace(RESULT, data=data))
        except DoesNotFit:
            return
    assert len(sealed.envelope) <= limit
    assert whole(sealed) == data


ITSELF: list[Any] = []
ITSELF.append(ITSELF)
DEEP: Any = []
for _ in range(100_000):
    DEEP = [DEEP]

BAD: dict[str, dict[str, Any]] = {
    "NaN in data": {"data": {"confidence": math.nan}},
    "infinity in a log": {"discard_log": [{"n": math.inf}]},
    "half of a surrogate pair": {"data": {"text": "\ud800"}},
    "half of a surrogate pair in a name": {"data": {"\ud800": "text"}},
    "bytes": {"data": {"text": b"bytes"}},
    "a set": {"blocked_log": [{"s": {1}}]},
    "a member whose name is a number": {"data": {1: "a", "1": "b"}},
    "a member within whose name is a number": {"data": {"a": [{1: "a", "1": "b"}]}},
    "data that contains itself": {"data": {"a": ITSELF}},
    "data nested too deep": {"data": {"a": DEEP}},
    "data that is no object": {"data": ["a"]},
    "no data": {"data": None},
    "a log that is no list": {"discard_log": None},
    "artifacts that are no list": {"artifacts": {"ocr.md": MARKDOWN}},
    "an artifact that is none": {"artifacts": [{"name": "a"}]},
    "two artifacts of one name": {"artifacts": [MARKDOWN, MARKDOWN]},
    "an artifact with capitals": {"artifacts": [replace(MARKDOWN, name="OCR.md")]},
    "an artifact elsewhere": {"artifacts": [replace(MARKDOWN, name="../pack_envelope.json")]},
    "an artifact that is a step": {"artifacts": [replace(MARKDOWN, name="..")]},
    "an artifact without a name": {"artifacts": [replace(MARKDOWN, name=None)]},  # type: ignore[arg-type]
    "an artifact with too long a name": {"artifacts": [replace(MARKDOWN, name="x" * 65)]},
    "an artifact of text": {"artifacts": [replace(MARKDOWN, data="text")]},  # type: ignore[arg-type]
    "a content type with a header in it": {"artifacts": [replace(MARKDOWN, content_type="text/x\r\nSet-Cookie: a=b")]},
    "a content type that is none": {"artifacts": [replace(MARKDOWN, content_type="markdown")]},
    "tokens below zero": {"tokens_consumed": -1},
    "tokens in part": {"tokens_consumed": 1.5},
    "tokens that are true": {"tokens_consumed": True},
    "more tokens than a column holds": {"tokens_consumed": 2**63},
    "a score above one": {"reliability_score": 1.01},
    "a score below zero": {"reliability_score": -0.01},
    "a score that is no number": {"reliability_score": math.nan},
    "a score of text": {"reliability_score": "0.9"},
    "a score that is true": {"reliability_score": True},
}


@pytest.mark.parametrize("change", BAD.values(), ids=BAD)
def test_what_a_pack_may_not_return_is_refused(change: dict[str, Any]) -> None:
    """PRICED-118, PRICED-132"""
    with pytest.raises(BadPackResult):
        seal(COVER, replace(RESULT, **change))


def test_a_charge_above_the_reservation_is_a_defect() -> None:
    """PRICED-8, PRICED-131"""
    with pytest.raises(AssertionError):
        replace(COVER, charge_usd_micros=COVER.reserved_usd_micros + 1)
