"""Read from the work stream without consuming."""

from __future__ import annotations

import base64
from datetime import datetime

import msgspec

from pyoco_server.errors import Unavailable
from pyoco_server.ports.nats.link import Link, Rejected

__all__ = ["StoredJob", "StoredJobs"]

_NO_MESSAGE_FOUND = 10037
_SEQUENCE_NOT_FOUND = 10043
_NOT_THERE = frozenset({_NO_MESSAGE_FOUND, _SEQUENCE_NOT_FOUND})


class StoredJob(msgspec.Struct):
    """A job as stored in the stream."""

    seq: int
    subject: str
    time: datetime
    data: str = ""

    @property
    def body(self) -> bytes:
        return base64.b64decode(self.data)


class _Found(msgspec.Struct):
    message: StoredJob


class StoredJobs:
    """The jobs of one work stream."""

    def __init__(self, link: Link, stream: str) -> None:
        self._link, self._stream = link, stream

    async def at(self, sequence: int) -> StoredJob | None:
        """Return the job with this sequence. None: it has left the stream. One round trip. Raises Unavailable."""
        return await self._get({"seq": sequence})

    async def next(self, subject: str, sequence: int = 1) -> StoredJob | None:
        """Return the first job of a subject from this sequence on.

        None: there is none. One round trip. Raises Unavailable.
        """
        return await self._get({"seq": sequence, "next_by_subj": subject})

    async def _get(self, asked: dict[str, object]) -> StoredJob | None:
        try:
            found = await self._link.insist(f"STREAM.MSG.GET.{self._stream}", asked, _Found)
        except Rejected as error:
            if error.code in _NOT_THERE:
                return None
            raise Unavailable(f"cannot look into {self._stream}: {error}") from error
        return found.message
