"""The token that opens one result: whoever changes a letter of it holds nothing."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyoco_server.core.priced.result_token import LENGTH_MAX, open_token, sign

SECRET = bytes(range(32))
KEY = "dpp/acme/2026/02/13/0b0e9a52-6b1f-4c3c-9d0a-3c1a7d2f9a11/pack_envelope.json"
EXPIRES_AT = 1_770_940_800
TOKEN = sign(KEY, EXPIRES_AT, SECRET)
ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"


def armour(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def signed(payload: str, secret: bytes = SECRET) -> str:
    """A token with a true signature over whatever it is."""
    return f"{payload}.{armour(hmac.digest(secret, payload.encode(), hashlib.sha256))}"


def test_a_token_has_the_form_of_the_contract() -> None:
    """PRICED-81"""
    payload, _, signature = TOKEN.partition(".")
    assert json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4))) == {"k": KEY, "e": EXPIRES_AT}
    assert base64.urlsafe_b64decode(signature + "=") == hmac.digest(SECRET, payload.encode(), "sha256")
    assert set(TOKEN) <= {*ALPHABET, "."}


def test_a_token_opens_its_key_until_it_expires() -> None:
    """PRICED-81, PRICED-212"""
    assert open_token(TOKEN, 0, SECRET) == KEY
    assert open_token(TOKEN, EXPIRES_AT - 1, SECRET) == KEY
    assert open_token(TOKEN, EXPIRES_AT, SECRET) is None
    assert open_token(TOKEN, EXPIRES_AT + 1, SECRET) is None


def test_another_secret_opens_nothing() -> None:
    """PRICED-81"""
    assert open_token(TOKEN, 0, SECRET[:-1] + b"x") is None
    assert open_token(TOKEN, 0, b"") is None
    assert open_token(signed(TOKEN.partition(".")[0], b"\0"), 0, b"") is None


def test_no_change_of_a_single_letter_goes_unseen() -> None:
    """PRICED-81: the last letter of each part has bits that decoders pass over."""
    for place, letter in enumerate(TOKEN):
        others = ALPHABET if place in {TOKEN.index(".") - 1, len(TOKEN) - 1} else "A.z="
        for other in others:
            if other != letter:
                assert open_token(TOKEN[:place] + other + TOKEN[place + 1 :], 0, SECRET) is None


@pytest.mark.parametrize("padding", ["=", "==", "\n", " ", "\x00", "%3D", "A", "."])
def test_a_token_written_differently_is_another_token(padding: str) -> None:
    """PRICED-81"""
    payload, _, signature = TOKEN.partition(".")
    for token in (
        TOKEN + padding,
        padding + TOKEN,
        f"{payload}{padding}.{signature}",
        f"{payload}.{padding}{signature}",
    ):
        assert open_token(token, 0, SECRET) is None


def test_the_signature_of_one_token_does_not_fit_another() -> None:
    """PRICED-81, PRICED-212"""
    other = sign(KEY.replace("acme", "evil"), EXPIRES_AT, SECRET)
    later = sign(KEY, EXPIRES_AT + 10**6, SECRET)
    for token in (other, later):
        assert open_token(f"{token.partition('.')[0]}.{TOKEN.partition('.')[2]}", 0, SECRET) is None


@pytest.mark.parametrize(
    "payload",
    [
        "",
        "A",
        "!!!!",
        armour(b"\xff\xfe"),
        armour(b"null"),
        armour(b"[]"),
        armour(b'{"k":"x"}'),
        armour(b'{"k":5,"e":99}'),
        armour(b'{"k":"x","e":"99"}'),
        armour(b'{"k":"x","e":9.5}'),
        armour(b'{"k":"x","e":null}'),
        armour(b"[" * 700),
    ],
)
def test_rubbish_with_a_true_signature_is_still_rubbish(payload: str) -> None:
    """PRICED-81"""
    assert open_token(signed(payload), 0, SECRET) is None


@pytest.mark.parametrize(
    "token", ["", ".", "..", "a", "a.b", "é.é", "\ud800", "\x00", TOKEN.partition(".")[0], TOKEN[:-1], "." + TOKEN]
)
def test_rubbish_opens_nothing(token: str) -> None:
    """PRICED-81"""
    assert open_token(token, 0, SECRET) is None


@given(st.text(max_size=120))
def test_no_text_raises(token: str) -> None:
    """PRICED-81"""
    assert open_token(token, 0, SECRET) is None


def test_a_token_has_a_bound() -> None:
    """PRICED-81: what could not be opened is not made."""
    longest = "k" * 600
    assert open_token(sign(longest, EXPIRES_AT, SECRET), 0, SECRET) == longest
    with pytest.raises(ValueError, match="long"):
        sign("k" * LENGTH_MAX, EXPIRES_AT, SECRET)
    assert open_token(signed(armour(json.dumps({"k": "k" * LENGTH_MAX, "e": EXPIRES_AT}).encode())), 0, SECRET) is None


def test_nobody_signs_without_a_secret() -> None:
    """PRICED-81"""
    with pytest.raises(ValueError, match="secret"):
        sign(KEY, EXPIRES_AT, b"")
