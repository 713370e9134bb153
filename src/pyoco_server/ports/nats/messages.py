"""Read and delete messages of a stream by sequence or subject, without a consumer."""

from __future__ import annotations

import base64
from datetime import datetime
from typing import Any

import msgspec

from pyoco_server.errors import Unavailable
from pyoco_server.ports.nats.link import Link, Rejected

__all__ = ["StoredMessage", "StoredMessages"]

_NO_MESSAGE_FOUND = 10037
_SEQUENCE_NOT_FOUND = 10043
_NOT_THERE = frozenset({_NO_MESSAGE_FOUND, _SEQUENCE_NOT_FOUND})


class StoredMessage(msgspec.Struct):
    """A message as stored in its stream."""

    seq: int
    subject: str
    time: datetime
    data: str = ""

    @property
    def body(self) -> bytes:
        return base64.b64decode(self.data)


class _Found(msgspec.Struct):
    message: StoredMessage


class StoredMessages:
    """The messages of one stream, according to its leader. Each call is one round trip, and raises Unavailable."""

    def __init__(self, link: Link, stream: str) -> None:
        self._link, self._stream = link, stream

    async def at(self, sequence: int) -> StoredMessage | None:
        """Return the message with this sequence. None: it has left the stream."""
        return await self._get({"seq": sequence})

    async def next(self, subject: str, sequence: int = 1) -> StoredMessage | None:
        """Return the first message of a subject from this sequence on. None: there is none."""
        return await self._get({"seq": sequence, "next_by_subj": subject})

    async def last(self, subject: str) -> StoredMessage | None:
        """Return the newest message of a subject. None: there is none."""
        return await self._get({"last_by_subj": subject})

    async def remove(self, sequence: int) -> bool:
        """Delete a message. False: it had left the stream already; this costs a second round trip."""
        request = {"seq": sequence, "no_erase": True}
        try:
            await self._link.insist(f"STREAM.MSG.DELETE.{self._stream}", request, dict[str, Any])
        except Rejected as error:
            # The server uses one code for every failure here, including a message that is already deleted.
            if await self.at(sequence) is not None:
                raise Unavailable(f"cannot remove message {sequence} of {self._stream}: {error}") from error
            return False
        return True

    async def _get(self, asked: dict[str, object]) -> StoredMessage | None:
        try:
            found = await self._link.insist(f"STREAM.MSG.GET.{self._stream}", asked, _Found)
        except Rejected as error:
            if error.code in _NOT_THERE:
                return None
            raise Unavailable(f"cannot look into {self._stream}: {error}") from error
        return found.message
