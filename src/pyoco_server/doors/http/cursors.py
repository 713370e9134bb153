"""The cursor tokens of run lists.

Their content is private (FLOW-111): it may change with any release, and clients must not build tokens. It is not secret
either: the API key of the request decides which runs are visible.
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
#: The highest possible revision.
_REVISION_MAX = 2**63 - 1

_encode = msgspec.json.Encoder().encode


class _Token(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    version: int
    revision: int
    updated_at: float
    run_id: str
    #: Digest of the filters: a position in one list is meaningless in another.
    filters: str


_decode = msgspec.json.Decoder(_Token).decode


class BadCursor(Exception):
    """Invalid cursor. The message says what the client should do."""


def write_cursor(place: ListPosition, wanted: RunFilter) -> str:
    data = _encode(_Token(_VERSION, place.revision, place.updated_at, place.run_id, _digest(wanted)))
    return _armour(_check(data) + data)


def read_cursor(token: str) -> tuple[ListPosition, Callable[[RunFilter], bool]]:
    """Return the position, and a check whether it belongs to the list with given filters. Raises BadCursor."""
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
    # The decoder ignores invalid characters, so compare with the re-encoded form.
    if _armour(data) != token or data[:_CHECK_BYTES] != _check(data[_CHECK_BYTES:]):
        raise BadCursor("must be a token from `next_cursor`; this one was cut or changed")
    return data[_CHECK_BYTES:]


def _check(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_CHECK_BYTES, person=b"pyoco-cursor").digest()


#: The filters of the first release, in this order. Must not change: a client may start a list at a gateway of one
#: release and continue it at a gateway of another.
_FIRST = ("tenant_id", "status", "flow", "tag", "kind", "workflow_yaml_sha256", "updated_after")
#: Filters added later, with their defaults.
_LATER = {each.name: each.default for each in fields(RunFilter) if each.name not in _FIRST}


def _digest(wanted: RunFilter) -> str:
    """Digest of the filters in use. Unset filters do not change it, so later releases may add filters."""
    asked: list[object] = [getattr(wanted, name) for name in _FIRST]
    more = {name: getattr(wanted, name) for name, unset in _LATER.items() if getattr(wanted, name) != unset}
    return hashlib.blake2b(_encode([*asked, more] if more else asked), digest_size=_CHECK_BYTES).hexdigest()
