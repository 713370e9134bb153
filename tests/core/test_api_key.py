"""API keys: their form, what is kept of them, how one is checked."""

from __future__ import annotations

import json
import secrets
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyoco_server.core.api_key import (
    KeyRecord,
    encode_key,
    encode_over,
    key_id_of,
    label_problem,
    make_key,
    read_expiry,
    read_key,
    verify,
)
from pyoco_server.core.run import Caller
from pyoco_server.errors import Corrupt

NOW = 1_800_000_000.0
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
    assert verify(PLAIN, RECORD, "pepper", NOW)
    assert not verify(PLAIN, RECORD, "salt", NOW)
    assert not verify(PLAIN[:-1], RECORD, "pepper", NOW)
    assert not verify(PLAIN, replace(RECORD, key_hash="0" * 64), "pepper", NOW)


def test_an_empty_pepper_is_a_pepper() -> None:
    """FLOW-270"""
    plain, record = make_key("acme", "", 10.0, secrets.token_hex, secrets.token_urlsafe)
    assert verify(plain, record, "", NOW)


def test_a_revoked_or_unknown_key_does_not_open() -> None:
    """FLOW-263"""
    assert not verify(PLAIN, replace(RECORD, revoked_at=11.0), "pepper", NOW)
    assert not verify(PLAIN, None, "pepper", NOW)


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
    assert not verify(text, RECORD, "pepper", NOW)
    assert not verify(text, None, "pepper", NOW)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b"[" * 100_000,
        encode_key(RECORD).replace(b'"acme"', b"5"),
        encode_key(replace(RECORD, key_hash="é")),
        *(
            encode_key(RECORD)[:-1] + f',"{name}":{value}}}'.encode()
            for name in ("created_at", "revoked_at", "expires_at", "last_used_at")
            for value in ('"tomorrow"', "true", "NaN", "Infinity", "[]", "{}")
        ),
        encode_key(RECORD)[:-1] + b',"created_at":null}',
        encode_key(RECORD)[:-1] + b',"label":5}',
    ],
)
def test_bytes_that_are_no_key_are_corrupt(data: bytes) -> None:
    """FLOW-356"""
    with pytest.raises(Corrupt):
        read_key(data)


@pytest.mark.parametrize("name", ["key_id", "tenant_id", "key_hash"])
def test_a_key_of_nobody_is_corrupt(name: str) -> None:
    """FLOW-274: an empty tenant would be taken for everybody."""
    with pytest.raises(Corrupt):
        read_key(json.dumps(json.loads(encode_key(RECORD)) | {name: ""}).encode())


def test_a_new_key_is_not_revoked() -> None:
    """FLOW-356"""
    assert (RECORD.created_at, RECORD.revoked_at) == (10.0, None)
    assert isinstance(RECORD, KeyRecord)


def test_a_key_opens_until_it_expires() -> None:
    """FLOW-263: nobody is told which of the ways it is wrong"""
    record = replace(RECORD, expires_at=NOW)
    assert verify(PLAIN, record, "pepper", NOW - 0.001)
    assert not verify(PLAIN, record, "pepper", NOW)
    assert not verify(PLAIN, record, "pepper", NOW + 1e9)
    assert not verify(PLAIN, replace(record, revoked_at=1.0), "pepper", NOW - 1)


def test_a_record_from_before_labels_and_expiry_reads_fine() -> None:
    """FLOW-551"""
    newer = ("label", "expires_at", "last_used_at")
    old = {name: value for name, value in json.loads(encode_key(RECORD)).items() if name not in newer}
    record = read_key(json.dumps(old).encode())
    assert record == RECORD
    assert verify(PLAIN, record, "pepper", 1e12)


def test_a_label_and_an_expiry_are_kept() -> None:
    plain, record = make_key("a", "", 1.0, secrets.token_hex, secrets.token_urlsafe, "nightly ü", 5.0)
    assert (record.label, record.expires_at, record.last_used_at) == ("nightly ü", 5.0, None)
    assert read_key(encode_key(record)) == record
    assert verify(plain, record, "", 4.0)


def test_what_a_newer_version_keeps_in_a_record_is_not_dropped() -> None:
    """A scope that this version does not know must not be lost by a look at the clock"""
    stored = encode_key(RECORD)[:-1] + b',"scopes":["read"]}'
    written = encode_over(replace(read_key(stored), last_used_at=7.0), stored)
    assert json.loads(written)["scopes"] == ["read"]
    assert read_key(written) == replace(RECORD, last_used_at=7.0)


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("90m", NOW + 5400),
        ("12h", NOW + 12 * 3600),
        ("30d", NOW + 30 * 86_400),
        ("2027-01-31", 1_801_353_600.0),
        ("1800000001", 1_800_000_001.0),
        ("1800000000.5", 1_800_000_000.5),
        ("9999-12-31", 253_402_214_400.0),
    ],
)
def test_an_expiry_is_a_span_a_date_or_a_moment(text: str, moment: float) -> None:
    assert read_expiry(text, NOW) == moment


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "30",
            "d",
            "0d",
            "-1d",
            "+1d",
            "1.5d",
            "30 d",
            "30D",
            "30y",
            "1w",
            "９d",
            "9999999d",
            "never",
            "tomorrow",
        ),
        *("2027-02-30", "2027-13-01", "27-01-31", "20270131", "2027-01-31T00:00", "2020-01-01", "2027/01/31"),
        *("1800000000", "1", "1e10", "inf", "nan", "999999999999", "1800000001 ", "0x6b49d200"),
    ],
)
def test_what_is_no_expiry_ahead_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        read_expiry(text, NOW)


@pytest.mark.parametrize(
    ("label", "fits"),
    [
        ("", True),
        ("nightly import ü 日本", True),
        ("x" * 200, True),
        ("x" * 201, False),
        ("two\nlines", False),
        ("\x1b[31m", False),
        ("a\udcffb", False),
    ],
)
def test_a_label_is_one_line_of_text(label: str, fits: bool) -> None:
    assert (label_problem(label) is None) == fits
