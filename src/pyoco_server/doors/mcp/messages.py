"""Validation of JSON-RPC messages. Independent of the transport."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

__all__ = [
    "ID_LENGTH_MAX",
    "ID_MAX",
    "INVALID_REQUEST",
    "METHOD_LENGTH_MAX",
    "PARSE_ERROR",
    "misfit",
    "readable_id",
]

PARSE_ERROR, INVALID_REQUEST = -32700, -32600
#: Ids are echoed in the response, so their size is limited. No client uses ids above these limits.
ID_LENGTH_MAX = 256
ID_MAX = 2**53 - 1
METHOD_LENGTH_MAX = 256


def misfit(body: bytes) -> tuple[int, str] | None:
    """Return the error code and text of an invalid message, or None if it is valid.

    The text quotes nothing of the message; the SDK's own error texts do.
    """
    try:
        message = json.loads(body)
    except (ValueError, RecursionError):  # not UTF-8, not JSON, a number of thousands of digits, nested too deeply
        return PARSE_ERROR, "the message is not JSON in UTF-8"
    if b"\\ud" in body.lower() and not _is_text(message):
        return PARSE_ERROR, "the message has half a surrogate pair"
    rule = next((rule for holds, rule in _RULES if not holds(message)), None)
    return None if rule is None else (INVALID_REQUEST, rule)


def readable_id(body: bytes) -> int | str | None:
    """Return the id of a message that may be invalid elsewhere, or None if no valid id can be read."""
    try:
        # An overlong number elsewhere must not prevent reading the id.
        message = json.loads(body, parse_int=lambda digits: int(digits) if len(digits) <= len(str(-ID_MAX)) else None)
    except (ValueError, RecursionError):
        return None
    value = message.get("id") if isinstance(message, dict) else None
    return value if _is_id(value) and _is_text(value) else None


#: Each rule is checked only if all before it hold.
_RULES: tuple[tuple[Callable[[Any], bool], str], ...] = (
    (lambda message: not isinstance(message, list), "send one message at a time: batches are not served"),
    (
        lambda message: isinstance(message, dict) and message.get("jsonrpc") == "2.0",
        'it must be one JSON-RPC message: {"jsonrpc": "2.0", ...}',
    ),
    (
        lambda message: isinstance(message.get("method"), str) and len(message["method"]) <= METHOD_LENGTH_MAX,
        "the message needs a method; answers are not expected here",
    ),
    (lambda message: isinstance(message.get("params", {}), dict), "params must be an object"),
    (
        lambda message: "id" not in message or _is_id(message["id"]),
        f"id must be a whole number or a text of at most {ID_LENGTH_MAX} characters",
    ),
)


def _is_id(value: object) -> bool:
    if isinstance(value, str):
        return len(value) <= ID_LENGTH_MAX
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= ID_MAX


def _is_text(message: object) -> bool:
    try:
        json.dumps(message, ensure_ascii=False).encode()
    except (UnicodeEncodeError, RecursionError):
        return False
    return True
