"""The meta message under an object's name in its store's stream, in the format of all NATS clients (ADR-20)."""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from typing import Any

import msgspec

from pyoco_server.errors import Corrupt
from pyoco_server.logs import get_logger
from pyoco_server.ports.nats.bucket import Entry
from pyoco_server.ports.objects.port import ObjectInfo

__all__ = ["Meta", "digest_text", "info_of", "key_of", "listed_info", "meta_of", "named_by", "now_text"]

log = get_logger(__name__)

_DIGEST = "SHA-256="
_DIGEST_BYTES = 32
_SIZE_MAX = 2**63 - 1
#: What decoding foreign bytes may raise: invalid UTF-8 is no DecodeError, and deep nesting raises RecursionError.
_UNREADABLE = (ValueError, RecursionError)


class Meta(msgspec.Struct, omit_defaults=True):
    """The members that we do not use are set by other clients."""

    name: str
    bucket: str
    nuid: str
    size: int | None = 0
    mtime: str | None = None
    chunks: int | None = 0
    digest: str | None = None
    deleted: bool | None = False
    headers: dict[str, list[str] | str] | None = None
    options: dict[str, Any] | None = None


class _Naming(msgspec.Struct):
    """The part of a meta that tells which chunks it refers to."""

    nuid: str
    deleted: bool | None = False


_read_meta = msgspec.json.Decoder(Meta).decode
_read_naming = msgspec.json.Decoder(_Naming).decode


def key_of(name: str) -> str:
    return base64.urlsafe_b64encode(name.encode()).decode()


def now_text() -> str:
    return datetime.now(UTC).isoformat()


def digest_text(sha256: bytes) -> str:
    return _DIGEST + base64.urlsafe_b64encode(sha256).decode()


def meta_of(entry: Entry) -> Meta | None:
    """Decode a meta. None: deleted, or a link, which we do not follow. Raises Corrupt."""
    try:
        meta = _read_meta(entry.value or b"")
    except _UNREADABLE as error:
        raise Corrupt(f"the description of an object cannot be read: {error}") from error
    return None if meta.deleted or "link" in (meta.options or {}) else meta


def named_by(entry: Entry) -> str | None:
    """Return the id of the chunks that the meta refers to.

    None: it refers to none. Raises Corrupt only if the id cannot be determined.
    """
    if entry.value is None:
        return None
    try:
        naming = _read_naming(entry.value)
    except _UNREADABLE as error:
        raise Corrupt(f"which bytes belong to {entry.key} cannot be read: {error}") from error
    return None if naming.deleted else naming.nuid


def info_of(entry: Entry) -> ObjectInfo | None:
    """Return the description of an object. None and Corrupt as for `meta_of`."""
    meta = meta_of(entry)
    if meta is None:
        return None
    if key_of(meta.name) != entry.key:
        raise Corrupt(f"the description of an object calls it {meta.name!r} under the name of another")
    if not 0 <= (meta.size or 0) <= _SIZE_MAX:
        raise Corrupt(f"object {meta.name} has {meta.size} bytes")
    words = (meta.headers or {}).items()
    return ObjectInfo(
        name=meta.name,
        size_bytes=meta.size or 0,
        sha256_hex=_digest_of(meta).hex(),
        object_id=meta.nuid,
        modified=round(entry.stored_at, 3),  # the two ways to read a meta differ in the microseconds
        headers={key: value if isinstance(value, str) else ",".join(value) for key, value in words},
    )


def _digest_of(meta: Meta) -> bytes:
    try:
        digest = base64.urlsafe_b64decode((meta.digest or "").removeprefix(_DIGEST) + "==")
    except ValueError as error:
        raise Corrupt(f"the digest of object {meta.name} cannot be read: {error}") from error
    if len(digest) != _DIGEST_BYTES:
        raise Corrupt(f"the digest of object {meta.name} has {len(digest)} bytes")
    return digest


def listed_info(entry: Entry) -> ObjectInfo | None:
    """Like `info_of`, but return None for an unreadable meta, so that it does not break a list."""
    try:
        return info_of(entry)
    except Corrupt:
        log.exception("unreadable object description, omitted from lists", entry=entry.key)
        return None
