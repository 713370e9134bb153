"""The signed token that opens one result object until it expires (PRICED-81)."""

from __future__ import annotations

import base64
import hmac
import json

__all__ = ["LENGTH_MAX", "open_token", "sign"]

#: The longest key has some 260 characters.
LENGTH_MAX = 1024


def sign(key: str, expires_at: int, secret: bytes) -> str:
    """A token for `key`, good before `expires_at` (unix seconds). Whoever holds it needs nothing else.

    Raises ValueError without a secret, and for a key too long to be opened again.
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
    """The key it opens, or None: a bad signature, an expired token and rubbish are told apart by nobody. O(length)."""
    if not secret or len(token) > LENGTH_MAX or not token.isascii():
        return None
    payload, _, signature = token.rpartition(".")
    # The texts are compared, not what they decode to: one token has one form.
    if not hmac.compare_digest(_signature(payload, secret), signature):
        return None
    # Ours from here on, unless the secret was used for something else.
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
