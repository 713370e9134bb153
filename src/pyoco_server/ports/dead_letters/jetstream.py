"""Dead letters in their JetStream stream. A letter's id is its sequence."""

from __future__ import annotations

import asyncio
import base64
import math
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.dead_letter import read_letter
from pyoco_server.errors import Corrupt, Unavailable
from pyoco_server.logs import get_logger
from pyoco_server.ports.dead_letters.port import DeadLetterChanges, StoredDeadLetter
from pyoco_server.ports.nats.bucket import Bucket
from pyoco_server.ports.nats.link import Link, Rejected
from pyoco_server.ports.nats.watch import Batch, watch

__all__ = ["JetStreamDeadLetters"]

log = get_logger(__name__)

_NO_MESSAGE_FOUND = 10037
_SEQUENCE_NOT_FOUND = 10043
#: Also said of a sequence beyond the end of the stream.
_DELETE_FAILED = 10057

#: How soon a letter that expired, or was deleted elsewhere, is noticed.
_LOOK_SECONDS = 2.0
#: A look at a stream with very many gaps takes its time: this many times as long nobody looks.
_REST = 10


class _Message(msgspec.Struct):
    subject: str
    seq: int
    time: datetime
    data: str = ""


class _Found(msgspec.Struct):
    message: _Message


class _State(msgspec.Struct):
    first_seq: int = 0
    num_deleted: int = 0
    deleted: tuple[int, ...] = ()


class _Info(msgspec.Struct):
    created: str
    state: _State


@dataclass
class _Sight:
    """What one feed knows of its stream."""

    epoch: str
    #: The newest letter that was told of.
    after: int
    first_id: int = 0
    #: Between the first and the last: how many were taken out. Together with the first it tells whether any were.
    gaps: int = 0
    #: Known to be gone before they were told of: their message may still be on its way to us.
    early: frozenset[int] = frozenset()
    looked: bool = False
    caught_up: bool = False


class JetStreamDeadLetters:
    def __init__(self, link: Link, config: NatsBackendConfig, look_seconds: float = _LOOK_SECONDS) -> None:
        self._link = link
        self._stream = config.dlq_stream
        self._prefix = f"{config.dlq_subject_prefix}."
        self._bucket = Bucket(link, config.dlq_stream, self._stream, self._prefix)
        self._look_seconds = look_seconds

    async def find(self, letter_id: int) -> StoredDeadLetter | None:
        try:
            found = await self._link.insist(f"STREAM.MSG.GET.{self._stream}", {"seq": letter_id}, _Found)
        except Rejected as error:
            if error.code == _NO_MESSAGE_FOUND:
                return None
            raise Unavailable(f"cannot read dead letter {letter_id}: {error}") from error
        message = found.message
        if not message.subject.startswith(self._prefix):
            return None
        tag = message.subject.removeprefix(self._prefix)
        return _letter(letter_id, base64.b64decode(message.data), tag, message.time.timestamp())

    async def delete(self, letter_id: int) -> bool:
        request = {"seq": letter_id, "no_erase": True}
        try:
            await self._link.insist(f"STREAM.MSG.DELETE.{self._stream}", request, dict[str, Any])
        except Rejected as error:
            gone = error.code in (_NO_MESSAGE_FOUND, _SEQUENCE_NOT_FOUND)
            if gone or (error.code == _DELETE_FAILED and await self.find(letter_id) is None):
                return False
            raise Unavailable(f"cannot delete dead letter {letter_id}: {error}") from error
        return True

    async def changes(
        self, after: int = 0, epoch: str = "", on_heard: Callable[[], None] = lambda: None
    ) -> AsyncGenerator[DeadLetterChanges, None]:
        """New letters come by a watch. Of what goes nobody tells, so the stream is looked at every so often: one small
        question, and a list of what was taken out only when that has changed."""
        async with aclosing(watch(self._link, self._bucket, after, epoch, on_heard)) as batches:
            upcoming = asyncio.ensure_future(anext(batches))
            sight, snapshot_queue = _Sight(epoch, after), math.inf
            try:
                while True:
                    await asyncio.wait({upcoming}, timeout=max(0.0, snapshot_queue - time.monotonic()))
                    if upcoming.done():
                        batch = upcoming.result()
                        upcoming = asyncio.ensure_future(anext(batches))
                        if snapshot_queue == math.inf or batch.created != sight.epoch:
                            sight = _Sight(batch.created, after if batch.created == epoch else 0)
                            snapshot_queue = 0.0
                        yield _told(sight, batch)
                    began = time.monotonic()
                    if began >= snapshot_queue:
                        seen = await self._look(sight)
                        if seen is not None:
                            yield seen
                        # However long the reader took with it counts, too.
                        now = time.monotonic()
                        snapshot_queue = now + max(self._look_seconds, _REST * (now - began))
            finally:
                upcoming.cancel()
                await asyncio.gather(upcoming, return_exceptions=True)

    async def _look(self, sight: _Sight) -> DeadLetterChanges | None:
        """What went since the last look. None: nothing, or nobody answered."""
        subject = f"STREAM.INFO.{self._stream}"
        try:
            info = await self._link.api(subject, {}, _Info)
            changed = (info.state.first_seq, info.state.num_deleted) != (sight.first_id, sight.gaps)
            if changed and info.state.num_deleted:
                info = await self._link.api(subject, {"deleted_details": True}, _Info)
        except (Unavailable, Rejected) as error:
            log.info("the stream of dead letters could not be looked at", error=error)
            return None
        if info.created != sight.epoch.partition("#")[0]:
            return None  # another stream by now: the watch will tell
        if sight.looked and not changed:
            return None
        sight.looked = True
        sight.first_id, sight.gaps = info.state.first_seq, info.state.num_deleted
        gone = frozenset(info.state.deleted)
        sight.early = frozenset(letter_id for letter_id in gone if letter_id > sight.after)
        return DeadLetterChanges((), gone, sight.first_id, sight.caught_up, sight.epoch)


def _told(sight: _Sight, batch: Batch) -> DeadLetterChanges:
    sight.caught_up = batch.caught_up
    items = []
    strange = 0
    for entry in batch.entries:
        sight.after = entry.revision
        letter = None if entry.value is None else _letter(entry.revision, entry.value, entry.key, entry.stored_at)
        strange += letter is None
        if letter is not None and entry.revision >= sight.first_id and entry.revision not in sight.early:
            items.append(letter)
    if strange:
        log.warning("messages among the dead letters are none; lists pass them over", count=strange, last=sight.after)
    return DeadLetterChanges(tuple(items), frozenset(), sight.first_id, sight.caught_up and sight.looked, sight.epoch)


def _letter(letter_id: int, data: bytes, tag: str, stored_at: float) -> StoredDeadLetter | None:
    try:
        # In whole milliseconds: the two ways to a message tell its time in different precision.
        return StoredDeadLetter(letter_id, read_letter(data, tag, int(stored_at * 1000) / 1000))
    except Corrupt:
        return None
