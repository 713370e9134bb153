"""A key-value bucket with compare-and-set writes, whose outcome is reported, and reads from the leader."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec

from pyoco_server.errors import NotStored, Unavailable
from pyoco_server.logs import get_logger
from pyoco_server.ports.nats.link import Link, Rejected
from pyoco_server.ports.nats.storing import RefusedStore, store_until_certain

__all__ = ["Bucket", "Entry", "TtlRefused", "is_deletion"]

log = get_logger(__name__)

#: A concurrent write was faster. Newer servers report 10164 instead.
_WRONG_LAST_SEQUENCE = frozenset({10071, 10164})
_TTL_DISABLED = 10166
_NO_MESSAGE_FOUND = 10037


@dataclass(frozen=True)
class Entry:
    """The newest revision of a key. `value` is None if the key was deleted or has expired."""

    key: str
    revision: int
    value: bytes | None
    #: When it was stored, by the server's clock; 0.0 for an entry returned by a write.
    stored_at: float = 0.0


class TtlRefused(NotStored):
    """The bucket was created without TTL support; nothing was stored."""


class _Stored(msgspec.Struct):
    subject: str
    seq: int
    time: datetime
    data: str = ""
    hdrs: str = ""


class _Found(msgspec.Struct):
    message: _Stored


class Bucket:
    """One KV bucket. Every write is conditional on the revision that it replaces."""

    def __init__(self, link: Link, name: str, stream: str = "", prefix: str = "") -> None:
        """`stream` and `prefix` allow other subjects to be used like a bucket."""
        self._link = link
        self.name = name
        self.stream = stream or f"KV_{name}"
        self.prefix = prefix or f"$KV.{name}."

    async def get(self, key: str) -> Entry | None:
        """Return the newest revision from the leader: one round trip. None: the key has no entry."""
        message = await self._last(self.prefix + key)
        if message is None:
            return None
        is_deleted = message.hdrs and is_deletion(base64.b64decode(message.hdrs))
        value = None if is_deleted else base64.b64decode(message.data)
        return Entry(key, message.seq, value, message.time.timestamp())

    async def last_revision(self) -> int:
        """Return the newest revision of any key from the leader. 0: the bucket is empty."""
        message = await self._last(self.prefix + ">")
        return message.seq if message is not None else 0

    async def first_since(self, instant: float) -> int | None:
        """Return the first revision stored at `instant` or later. None: none, or the server is too old for the request.

        Raises Unavailable.
        """
        asked = {"start_time": datetime.fromtimestamp(instant, UTC).isoformat()}
        try:
            return (await self._link.insist(f"STREAM.MSG.GET.{self.stream}", asked, _Found)).message.seq
        except Rejected:
            return None

    async def _last(self, subject: str) -> _Stored | None:
        try:
            found = await self._link.insist(f"STREAM.MSG.GET.{self.stream}", {"last_by_subj": subject}, _Found)
        except Rejected as error:
            if error.code == _NO_MESSAGE_FOUND:
                return None
            raise Unavailable(f"cannot read {self.name}: {error}") from error
        return found.message

    async def write(
        self, key: str, value: bytes, revision: int, headers: Mapping[str, str] | None = None
    ) -> Entry | None:
        """Write over exactly `revision` (0: the key must not exist). None: another write was faster; nothing changed.

        Retries for as long as the link's patience lasts. A retry after a timeout cannot write twice: it names the same
        revision, and a refusal is checked by reading back. Raises NotStored if certainly nothing was stored,
        Unavailable if that is not known; both are also NoRoom if lack of room is the reason.
        """
        subject = self.prefix + key
        conditions = {"Nats-Expected-Last-Subject-Sequence": str(revision), **(headers or {})}
        doing = f"cannot write {self.name}/{key}"
        try:
            sequence = await store_until_certain(
                self._link, subject, value, conditions, stream=self.stream, doing=doing
            )
        except RefusedStore as error:
            if error.code == _TTL_DISABLED:
                raise TtlRefused(f"{self.name} has no expiry") from error
            if error.code not in _WRONG_LAST_SEQUENCE:
                raise error.failure(doing) from error
            return await self._own_earlier_write(key, value) if error.is_ambiguous else None
        return Entry(key, sequence, value)

    async def _own_earlier_write(self, key: str, value: bytes) -> Entry | None:
        """Return the entry if an earlier attempt of our own was stored. Called after a timeout and a refusal."""
        entry = await self.get(key)
        if entry is not None and (entry.value or b"") == value:
            # The key is not logged: that of an object contains its name.
            log.info("a write without a response had been stored", bucket=self.name, revision=entry.revision)
            return entry
        return None

    async def delete(self, key: str, revision: int) -> bool:
        """Write a deletion marker over exactly `revision`. False: another write was faster; nothing changed."""
        return await self.write(key, b"", revision, {"KV-Operation": "DEL"}) is not None


def is_deletion(headers: bytes) -> bool:
    """Return whether raw headers mark a deletion or an expiry rather than a value."""
    return b"KV-Operation:" in headers or b"Nats-Marker-Reason:" in headers
