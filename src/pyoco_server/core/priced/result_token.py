"""The signed token that grants access to one result object until it expires (PRICED-81)."""

from __future__ import annotations

import base64
import hmac
import json

__all__ = ["LENGTH_MAX", "open_token", "sign"]

#: The longest key has some 260 characters.
LENGTH_MAX = 1024


def sign(key: str, expires_at: int, secret: bytes) -> str:
    """Return a token for `key`, valid before `expires_at` (unix seconds). It needs no other credentials.

    Raises ValueError without a secret, and for a key whose token would be too long to be accepted.
    """
    if not secret:
        raise ValueError("without a secret anybody could sign")
    facts = json.dumps({"k": key, "e": expires_at}, separators=(",", ":"))
    payload = _armour(facts.encode("ascii"))
    token = f"{payload}.{_signature(payload, secret)}"
    if len(token) > LENGTH_MAX:
        raise ValueError("the object key is too long for a token")
    return token


def open_token(token: str, now: int, secret: bytes) -> str | None:
    """Return the key of a valid token. Returns None alike for a bad signature, an expired token and garbage.
    O(length)."""
    if not secret or len(token) > LENGTH_MAX or not token.isascii():
        return None
    payload, _, signature = token.rpartition(".")
    # Compare the encoded texts, not the decoded bytes, so that a token has only one valid form.
    if not hmac.compare_digest(_signature(payload, secret), signature):
        return None
    # From here on the content is ours, unless the secret was used for something else.
    try:
        facts = json.loads(base64.b64decode(payload + "=" * (-len(payload) % 4), altchars=b"-_", validate=True))
    except ValueError:
        return None
    match facts:
        case {"k": str(key), "e": int(expires_at)} if now < expires_at:
            return key
        case _:
            return None


def _signature(payload: str, secret: bytes) -> str:
    return _armour(hmac.digest(secret, payload.encode("ascii"), "sha256"))


def _armour(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")
