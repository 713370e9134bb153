"""The cursor tokens of lists: a position, and the filters that it belongs to. Their content is private."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from pyoco_server.doors.http.requests import wrong

__all__ = ["read_token", "write_token"]

T = TypeVar("T")

_CHECK_BYTES = 6
_encode = msgspec.json.Encoder().encode


def write_token(position: Any, filters: Sequence[object]) -> str:
    data = _encode(position)
    return base64.urlsafe_b64encode(_check(data, filters) + data).rstrip(b"=").decode()


def read_token(token: str, filters: Sequence[object], kind: type[T]) -> T:
    """Return the position. Raises Malformed for a token that was changed, or of a list with other filters."""
    try:
        data = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
        if data[:_CHECK_BYTES] == _check(data[_CHECK_BYTES:], filters):
            return msgspec.json.decode(data[_CHECK_BYTES:], type=kind)
    except (binascii.Error, msgspec.DecodeError, ValueError):
        pass
    raise wrong(("query", "cursor"), "must be `next_cursor` of a list with the same filters", "value")


def _check(data: bytes, filters: Sequence[object]) -> bytes:
    return hashlib.blake2b(data + _encode(list(filters)), digest_size=_CHECK_BYTES, person=b"pyoco-token").digest()
