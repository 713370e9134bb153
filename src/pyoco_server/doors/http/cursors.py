"""The token that says where a walk through a list goes on.

Its content is nobody's business but ours (FLOW-111): it may change with any version, and a client must not build one.
It is no secret either: what may be seen is decided by the key of whoever sends it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import math
from collections.abc import Callable
from dataclasses import fields

import msgspec

from pyoco_server.ports.index.port import ListPosition, RunFilter

__all__ = ["LENGTH_MAX", "BadCursor", "read_cursor", "write_cursor"]

LENGTH_MAX = 4096

_VERSION = 1
_CHECK_BYTES = 6
#: As large as a revision can be.
_REVISION_MAX = 2**63 - 1

_encode = msgspec.json.Encoder().encode


class _Token(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    version: int
    revision: int
    updated_at: float
    run_id: str
    #: What was asked for: a place in one list means nothing in another.
    filters: str


_decode = msgspec.json.Decoder(_Token).decode


class BadCursor(Exception):
    """Not a token of ours. Its text says what to do."""


def write_cursor(place: ListPosition, wanted: RunFilter) -> str:
    data = _encode(_Token(_VERSION, place.revision, place.updated_at, place.run_id, _digest(wanted)))
    return _armour(_check(data) + data)


def read_cursor(token: str) -> tuple[ListPosition, Callable[[RunFilter], bool]]:
    """The place, and whether it is one in the list with these filters. Raises BadCursor."""
    data = _open(token)
    try:
        found = _decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadCursor("is not a token of this version; begin again without it") from error
    is_place = 0 <= found.revision <= _REVISION_MAX and math.isfinite(found.updated_at) and found.updated_at >= 0
    if found.version != _VERSION or not is_place:
        raise BadCursor("is not a token of this version; begin again without it")
    return ListPosition(found.revision, found.updated_at, found.run_id), lambda wanted: found.filters == _digest(wanted)


def _armour(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _open(token: str) -> bytes:
    if not token or len(token) > LENGTH_MAX or not token.isascii():
        raise BadCursor("must be a token from `next_cursor`")
    try:
        data = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
    except (binascii.Error, ValueError) as error:
        raise BadCursor("must be a token from `next_cursor`") from error
    # The decoder passes over what it does not know: written again, it has to be the same.
    if _armour(data) != token or data[:_CHECK_BYTES] != _check(data[_CHECK_BYTES:]):
        raise BadCursor("must be a token from `next_cursor`; this one was cut or changed")
    return data[_CHECK_BYTES:]


def _check(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_CHECK_BYTES, person=b"pyoco-cursor").digest()


#: What a filter had first, in this order. It stays: a walk may begin at a gateway of one release and go on at another.
_FIRST = ("tenant_id", "status", "flow", "tag", "kind", "workflow_yaml_sha256", "updated_after")
#: What came later, and what it is when nobody asks for it.
_LATER = {each.name: each.default for each in fields(RunFilter) if each.name not in _FIRST}


def _digest(wanted: RunFilter) -> str:
    """Of what is asked for: a filter that a later version knows changes nothing for whoever does not set it."""
    asked: list[object] = [getattr(wanted, name) for name in _FIRST]
    more = {name: getattr(wanted, name) for name, unset in _LATER.items() if getattr(wanted, name) != unset}
    return hashlib.blake2b(_encode([*asked, more] if more else asked), digest_size=_CHECK_BYTES).hexdigest()
