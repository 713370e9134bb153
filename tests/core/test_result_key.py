"""Where the objects of a priced run lie, and how its instants are shown."""

from __future__ import annotations

import re
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyoco_server.core.priced.instants import SECOND_US, iso
from pyoco_server.core.priced.result_key import artifact_key, envelope_key, is_artifact_name, result_prefix, tenant_of

RUN_ID = "0b0e9a52-6b1f-4c3c-9d0a-3c1a7d2f9a11"
MIDNIGHT_US = 1_770_940_800 * SECOND_US


def test_the_keys_follow_from_the_row() -> None:
    """PRICED-165"""
    prefix = result_prefix("t_acme", MIDNIGHT_US, RUN_ID)
    assert prefix == f"dpp/t_acme/2026/02/13/{RUN_ID}/"
    assert envelope_key(prefix) == f"{prefix}pack_envelope.json"
    assert artifact_key(prefix, "ocr.md") == f"{prefix}artifacts/ocr.md"
    assert tenant_of(artifact_key(prefix, "ocr.md")) == "t_acme"


def test_the_day_is_the_one_in_utc() -> None:
    """PRICED-165"""
    assert "/2026/02/12/" in result_prefix("t", MIDNIGHT_US - 1, RUN_ID)
    assert "/2026/02/13/" in result_prefix("t", MIDNIGHT_US + 86_400 * SECOND_US - 1, RUN_ID)


@pytest.mark.parametrize("tenant_id", ["", "a/b", "..", "a b", "é", "a\n", "x" * 129])
def test_a_tenant_cannot_be_named_into_another_ones_folder(tenant_id: str) -> None:
    """PRICED-165"""
    with pytest.raises(ValueError, match="tenant"):
        result_prefix(tenant_id, MIDNIGHT_US, RUN_ID)


@pytest.mark.parametrize("run_id", ["", "..", RUN_ID.upper(), RUN_ID + "/x", "x"])
def test_a_run_is_named_by_its_uuid(run_id: str) -> None:
    """PRICED-165"""
    with pytest.raises(ValueError, match="UUID"):
        result_prefix("t", MIDNIGHT_US, run_id)


@pytest.mark.parametrize("name", ["a", "ocr.md", "a_b-c.0", "...", "x" * 64])
def test_a_name_of_an_artifact_within_the_grammar_is_one(name: str) -> None:
    """PRICED-165"""
    assert is_artifact_name(name)
    assert re.fullmatch("[a-z0-9_.-]{1,64}", name)


@pytest.mark.parametrize("name", ["", ".", "..", "A.md", "a/b", "../x", "a b", "é", "a\n", "x" * 65, "٣"])
def test_any_other_name_is_refused(name: str) -> None:
    """PRICED-165"""
    assert not is_artifact_name(name)
    with pytest.raises(ValueError, match="artifact"):
        artifact_key("dpp/", name)


def test_a_whole_second_is_shown_without_a_fraction() -> None:
    """PRICED-74, PRICED-130"""
    assert iso(MIDNIGHT_US + 5 * SECOND_US) == "2026-02-13T00:00:05Z"
    assert iso(MIDNIGHT_US + 1) == "2026-02-13T00:00:00.000001Z"
    assert iso(MIDNIGHT_US + 250_000) == "2026-02-13T00:00:00.250000Z"


@given(st.integers(0, 4_000_000_000 * SECOND_US))
def test_an_instant_is_shown_exactly(at_us: int) -> None:
    """PRICED-74"""
    moment = datetime.fromisoformat(iso(at_us))
    assert int(moment.replace(microsecond=0).timestamp()) * SECOND_US + moment.microsecond == at_us
