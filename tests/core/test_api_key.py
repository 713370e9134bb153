"""API keys: their form, what is kept of them, how one is checked."""

from __future__ import annotations

import json
import secrets
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyoco_server.core.api_key import KeyRecord, encode_key, key_id_of, make_key, read_key, verify
from pyoco_server.core.run import Caller
from pyoco_server.errors import Corrupt

#: The same in every process that collects these tests.
PLAIN, RECORD = make_key("acme", "pepper", 10.0, lambda size: "a1" * size, lambda _: "Zz-_" * 11)


def test_a_key_has_the_form_of_the_contract() -> None:
    """FLOW-269"""
    head, key_id, secret = PLAIN.split("_", 2)
    assert (head, key_id, len(key_id)) == ("pyoco", RECORD.key_id, 16)
    assert len(secret) >= 43  # 32 random bytes
    assert key_id_of(PLAIN) == RECORD.key_id


def test_a_key_opens_with_its_own_record_and_pepper() -> None:
    """FLOW-270, FLOW-271"""
    assert verify(PLAIN, RECORD, "pepper")
    assert not verify(PLAIN, RECORD, "salt")
    assert not verify(PLAIN[:-1], RECORD, "pepper")
    assert not verify(PLAIN, replace(RECORD, key_hash="0" * 64), "pepper")


def test_an_empty_pepper_is_a_pepper() -> None:
    """FLOW-270"""
    plain, record = make_key("acme", "", 10.0, secrets.token_hex, secrets.token_urlsafe)
    assert verify(plain, record, "")


def test_a_revoked_or_unknown_key_does_not_open() -> None:
    """FLOW-263"""
    assert not verify(PLAIN, replace(RECORD, revoked_at=11.0), "pepper")
    assert not verify(PLAIN, None, "pepper")


def test_no_record_holds_the_key_or_a_part_of_its_secret() -> None:
    """FLOW-268, FLOW-357"""
    stored = encode_key(RECORD).decode()
    assert PLAIN not in stored
    assert PLAIN.split("_", 2)[2] not in stored


def test_a_record_comes_back_as_it_was_stored() -> None:
    """FLOW-356"""
    assert read_key(encode_key(RECORD)) == RECORD
    assert json.loads(encode_key(RECORD))["hash_alg"] == "hmac-sha256"
    assert read_key(encode_key(RECORD)[:-1] + b',"newer":1}') == RECORD


def test_a_key_stands_for_its_tenant() -> None:
    """FLOW-272"""
    assert RECORD.caller == Caller("acme", RECORD.key_id)


@pytest.mark.parametrize(
    "text",
    ["", "pyoco_", "pyoco_0123456789abcdef_short", "PYOCO" + PLAIN[5:], PLAIN + "\n", " " + PLAIN, PLAIN + "é"],
)
def test_what_has_not_the_form_of_a_key_is_not_looked_up(text: str) -> None:
    """FLOW-263, FLOW-269"""
    assert key_id_of(text) is None


@given(st.text())
def test_any_text_may_be_checked_and_none_opens(text: str) -> None:
    """FLOW-263"""
    key_id_of(text)
    assert not verify(text, RECORD, "pepper")
    assert not verify(text, None, "pepper")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b"[" * 100_000,
        encode_key(RECORD).replace(b'"acme"', b"5"),
        encode_key(replace(RECORD, key_hash="é")),
    ],
)
def test_bytes_that_are_no_key_are_corrupt(data: bytes) -> None:
    """FLOW-356"""
    with pytest.raises(Corrupt):
        read_key(data)


def test_a_new_key_is_not_revoked() -> None:
    """FLOW-356"""
    assert (RECORD.created_at, RECORD.revoked_at) == (10.0, None)
    assert isinstance(RECORD, KeyRecord)
