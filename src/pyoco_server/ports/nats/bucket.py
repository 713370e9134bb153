"""A key-value bucket: compare-and-set writes whose outcome is always known, and reads from the leader."""

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

#: Another write was faster. 10164 is what newer servers say for the same thing.
_WRONG_LAST_SEQUENCE = frozenset({10071, 10164})
_TTL_DISABLED = 10166
_NO_MESSAGE_FOUND = 10037


@dataclass(frozen=True)
class Entry:
    """The newest word on a key. `value` is None when that word is "deleted" or "expired"."""

    key: str
    revision: int
    value: bytes | None
    #: When it was stored, by the server's clock; 0.0 for one that has just been written.
    stored_at: float = 0.0


class TtlRefused(NotStored):
    """The bucket was made without expiry; nothing was stored."""


class _Stored(msgspec.Struct):
    subject: str
    seq: int
    time: datetime
    data: str = ""
    hdrs: str = ""


class _Found(msgspec.Struct):
    message: _Stored


class Bucket:
    """One KV bucket. Every write names the revision it replaces; none is blind."""

    def __init__(self, link: Link, name: str, stream: str = "", prefix: str = "") -> None:
        """With `stream` and `prefix`, other subjects that are used as one uses a bucket."""
        self._link = link
        self.name = name
        self.stream = stream or f"KV_{name}"
        self.prefix = prefix or f"$KV.{name}."

    async def get(self, key: str) -> Entry | None:
        """The newest revision as the leader knows it: one round trip. None: the key was never written."""
        message = await self._last(self.prefix + key)
        if message is None:
            return None
        gone = message.hdrs and is_deletion(base64.b64decode(message.hdrs))
        value = None if gone else base64.b64decode(message.data)
        return Entry(key, message.seq, value, message.time.timestamp())

    async def last_revision(self) -> int:
        """The newest revision of any key, as the leader knows it. 0: nothing was ever written."""
        message = await self._last(self.prefix + ">")
        return message.seq if message is not None else 0

    async def first_since(self, instant: float) -> int | None:
        """The revision of what was stored first, then or later. None: nothing was, or the server is too old to know the
        question. Raises Unavailable."""
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
        """Write over exactly `revision` (0: the key must not exist). None: someone was faster; nothing changed.

        Repeats itself for as long as the link's patience lasts. A repeat after silence cannot write twice: it
        names the same revision, and a refusal is checked by reading back. Raises NotStored when nothing was
        stored for certain, Unavailable when that could not be found out; both are NoRoom, too, when that is the reason.
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
            return await self._mine(key, value) if error.is_ambiguous else None
        return Entry(key, sequence, value)

    async def _mine(self, key: str, value: bytes) -> Entry | None:
        """After silence and a refusal: is it my own earlier try that won?"""
        entry = await self.get(key)
        if entry is not None and (entry.value or b"") == value:
            # Not the key: that of an object is made of its name.
            log.info("a write without an answer had been stored", bucket=self.name, revision=entry.revision)
            return entry
        return None

    async def delete(self, key: str, revision: int) -> bool:
        """Leave a deletion marker over exactly `revision`. False: someone wrote in between; nothing changed."""
        return await self.write(key, b"", revision, {"KV-Operation": "DEL"}) is not None


def is_deletion(headers: bytes) -> bool:
    """Whether raw headers mark a deletion or an expiry, rather than a value."""
    return b"KV-Operation:" in headers or b"Nats-Marker-Reason:" in headers
