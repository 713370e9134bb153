"""The chunks in an object store's stream: count them by object id, and find and remove strays."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime

import msgspec

from pyoco_server.errors import Unavailable
from pyoco_server.ports.nats.link import Link, Rejected
from pyoco_server.ports.objects.port import Stray
from pyoco_server.ports.objects.writer import CHUNK_BYTES

__all__ = ["Chunks", "Counted"]

#: The number of strays reported at a time: reading the age of each transfers its last chunk. The others are reported
#: once these are removed.
_STRAYS_MAX = 1000
_AT_ONCE = 16
_NO_MESSAGE_FOUND = 10037


class _State(msgspec.Struct):
    subjects: dict[str, int] | None = None


class _Page(msgspec.Struct):
    state: _State
    ts: datetime
    total: int = 0


class _Message(msgspec.Struct):
    seq: int
    time: datetime
    data: str = ""


class _Found(msgspec.Struct):
    message: _Message


class _Purged(msgspec.Struct):
    purged: int = 0


@dataclass(frozen=True)
class Counted:
    """The number of chunks by object id, at one moment of the server's clock."""

    at: datetime
    by_id: dict[str, int]


class Chunks:
    """The chunks of one store. An outage raises Unavailable."""

    def __init__(self, link: Link, stream: str, prefix: str) -> None:
        self._link, self._stream, self._prefix = link, stream, prefix

    async def count(self, object_id: str = ">") -> Counted:
        """Count the chunks of this object, or of all. O(objects), one round trip per 100,000."""
        by_id: dict[str, int] = {}
        offset = 0
        while True:
            request = {"subjects_filter": self._prefix + object_id, "offset": offset}
            with self._refusals():
                page = await self._link.insist(f"STREAM.INFO.{self._stream}", request, _Page)
            found = page.state.subjects or {}
            by_id |= {subject.removeprefix(self._prefix): count for subject, count in found.items()}
            offset += len(found)
            if not found or offset >= page.total:
                return Counted(page.ts, by_id)

    async def strays(self, counted: Counted, object_ids: Iterable[str], older_than_seconds: float) -> tuple[Stray, ...]:
        """Return those of these ids that had received no chunk for that long when they were counted.

        One read per id.
        """
        room = asyncio.Semaphore(_AT_ONCE)

        async def find_stray(object_id: str) -> Stray | None:
            async with room:
                last = await self._last(object_id)
            if last is None or (counted.at - last.time).total_seconds() < older_than_seconds:
                return None
            size_bytes = (counted.by_id[object_id] - 1) * CHUNK_BYTES + len(base64.b64decode(last.data))
            return Stray(object_id, last.seq, size_bytes)

        found = await asyncio.gather(*map(find_stray, sorted(object_ids)[:_STRAYS_MAX]))
        return tuple(stray for stray in found if stray is not None)

    async def remove(self, object_id: str, last_sequence: int = 0) -> int:
        """Delete an object's chunks up to `last_sequence`, or all. Return how many there were.

        Does not retry: chunks that remain are strays.
        """
        if {"*", ">"} & set(object_id.split(".")):
            return 0  # a foreign id: no chunk has it, and as a filter it would match other objects
        request: dict[str, object] = {"filter": self._prefix + object_id}
        if last_sequence:
            request["seq"] = last_sequence + 1
        with self._refusals():
            return (await self._link.api(f"STREAM.PURGE.{self._stream}", request, _Purged)).purged

    async def _last(self, object_id: str) -> _Message | None:
        """Return the newest chunk of an object. None: it was deleted in the meantime."""
        request = {"last_by_subj": self._prefix + object_id}
        with self._refusals():
            try:
                return (await self._link.insist(f"STREAM.MSG.GET.{self._stream}", request, _Found)).message
            except Rejected as error:
                if error.code == _NO_MESSAGE_FOUND:
                    return None
                raise

    @contextlib.contextmanager
    def _refusals(self) -> Iterator[None]:
        try:
            yield
        except Rejected as error:
            raise Unavailable(f"{self._stream} refuses: {error}") from error
