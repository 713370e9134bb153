"""Dead letters in their JetStream stream. A dead letter's id is its sequence."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass

import msgspec

from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.dead_letter import read_dead_letter
from pyoco_server.errors import Corrupt, Unavailable
from pyoco_server.logs import get_logger
from pyoco_server.ports.dead_letters.port import DeadLetterChanges, StoredDeadLetter
from pyoco_server.ports.nats.bucket import Bucket
from pyoco_server.ports.nats.link import Link, Rejected
from pyoco_server.ports.nats.messages import StoredMessages
from pyoco_server.ports.nats.watch import WatchBatch, watch

__all__ = ["JetStreamDeadLetters"]

log = get_logger(__name__)

#: How soon a dead letter that expired, or was deleted elsewhere, is noticed.
_POLL_SECONDS = 2.0
#: Polling a stream with very many gaps is slow: the pause is at least this many times the duration of the last poll.
_REST = 10


class _State(msgspec.Struct):
    first_seq: int = 0
    num_deleted: int = 0
    deleted: tuple[int, ...] = ()


class _Info(msgspec.Struct):
    created: str
    state: _State


@dataclass
class _FeedState:
    """The state of one feed."""

    epoch: str
    #: The newest dead letter that was reported.
    after: int
    first_id: int = 0
    #: How many sequences between the first and the last were deleted. A change of this or of `first_id` means
    #: deletions.
    gaps: int = 0
    #: Deleted before they were reported: their messages may still arrive.
    early: frozenset[int] = frozenset()
    polled: bool = False
    caught_up: bool = False


class JetStreamDeadLetters:
    def __init__(self, link: Link, config: NatsBackendConfig, look_seconds: float = _POLL_SECONDS) -> None:
        self._link = link
        self._stream = config.dlq_stream
        self._messages = StoredMessages(link, self._stream)
        self._prefix = f"{config.dlq_subject_prefix}."
        self._bucket = Bucket(link, config.dlq_stream, self._stream, self._prefix)
        self._look_seconds = look_seconds

    async def find(self, letter_id: int) -> StoredDeadLetter | None:
        message = await self._messages.at(letter_id)
        if message is None or not message.subject.startswith(self._prefix):
            return None
        tag = message.subject.removeprefix(self._prefix)
        return _dead_letter(letter_id, message.body, tag, message.time.timestamp())

    async def delete(self, letter_id: int) -> bool:
        return await self._messages.remove(letter_id)

    async def changes(
        self, after: int = 0, epoch: str = "", on_heard: Callable[[], None] = lambda: None
    ) -> AsyncGenerator[DeadLetterChanges, None]:
        """New dead letters arrive by a watch.

        Deletions cause no event, so the stream is polled: one small request, and the list of deleted sequences only if
        it has changed.
        """
        async with aclosing(watch(self._link, self._bucket, after, epoch, on_heard)) as batches:
            upcoming = asyncio.ensure_future(anext(batches))
            feed, next_poll_at = _FeedState(epoch, after), math.inf
            try:
                while True:
                    await asyncio.wait({upcoming}, timeout=max(0.0, next_poll_at - time.monotonic()))
                    if upcoming.done():
                        batch = upcoming.result()
                        upcoming = asyncio.ensure_future(anext(batches))
                        if next_poll_at == math.inf or batch.created != feed.epoch:
                            feed = _FeedState(batch.created, after if batch.created == epoch else 0)
                            next_poll_at = 0.0
                        yield _changes_in(feed, batch)
                    began = time.monotonic()
                    if began >= next_poll_at:
                        seen = await self._poll_deletions(feed)
                        if seen is not None:
                            yield seen
                        # The time that the consumer spent on the item counts, too.
                        now = time.monotonic()
                        next_poll_at = now + max(self._look_seconds, _REST * (now - began))
            finally:
                upcoming.cancel()
                await asyncio.gather(upcoming, return_exceptions=True)

    async def _poll_deletions(self, feed: _FeedState) -> DeadLetterChanges | None:
        """Return what was deleted since the last poll. None: nothing, or NATS did not answer."""
        subject = f"STREAM.INFO.{self._stream}"
        try:
            info = await self._link.api(subject, {}, _Info)
            changed = (info.state.first_seq, info.state.num_deleted) != (feed.first_id, feed.gaps)
            if changed and info.state.num_deleted:
                info = await self._link.api(subject, {"deleted_details": True}, _Info)
        except (Unavailable, Rejected) as error:
            log.info("cannot poll the stream of dead letters", error=error)
            return None
        if info.created != feed.epoch.partition("#")[0]:
            return None  # the stream was replaced: the watch will report it
        if feed.polled and not changed:
            return None
        feed.polled = True
        feed.first_id, feed.gaps = info.state.first_seq, info.state.num_deleted
        gone = frozenset(info.state.deleted)
        feed.early = frozenset(letter_id for letter_id in gone if letter_id > feed.after)
        return DeadLetterChanges((), gone, feed.first_id, feed.caught_up, feed.epoch)


def _changes_in(feed: _FeedState, batch: WatchBatch) -> DeadLetterChanges:
    feed.caught_up = batch.caught_up
    items = []
    invalid = 0
    for entry in batch.entries:
        feed.after = entry.revision
        dead_letter = (
            None if entry.value is None else _dead_letter(entry.revision, entry.value, entry.key, entry.stored_at)
        )
        invalid += dead_letter is None
        if dead_letter is not None and entry.revision >= feed.first_id and entry.revision not in feed.early:
            items.append(dead_letter)
    if invalid:
        log.warning("skipping messages that are not dead letters", count=invalid, last=feed.after)
    return DeadLetterChanges(tuple(items), frozenset(), feed.first_id, feed.caught_up and feed.polled, feed.epoch)


def _dead_letter(letter_id: int, data: bytes, tag: str, stored_at: float) -> StoredDeadLetter | None:
    try:
        # Truncated to milliseconds: the two ways to read a message differ in the precision of its time.
        return StoredDeadLetter(letter_id, read_dead_letter(data, tag, int(stored_at * 1000) / 1000))
    except Corrupt:
        return None
