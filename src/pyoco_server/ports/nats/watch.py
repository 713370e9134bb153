"""A watch of a bucket that resumes by sequence and survives the loss of a node.

The library's own watch sometimes reports an empty bucket on a cluster, and stalls for up to 18 s when a node fails.
This one checks a heartbeat every second and creates a new consumer that continues after the last sequence seen.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass

import msgspec
import nats.errors

from pyoco_server.errors import Unavailable
from pyoco_server.logs import get_logger
from pyoco_server.logs.outages import Outage
from pyoco_server.ports.nats.bucket import Bucket, Entry, is_deletion
from pyoco_server.ports.nats.client import Raw
from pyoco_server.ports.nats.link import Link, NoConnection, Rejected

__all__ = ["WatchBatch", "next_batch", "watch"]

log = get_logger(__name__)

_SECOND = 1_000_000_000
#: The server deletes a consumer that was unused for this long, such as that of a crashed process.
_ABANDONED_SECONDS = 10
#: Three missed heartbeats of a second each.
_SILENCE_SECONDS = 3.0
#: The longer timeout for a read up to a known end, since creating a consumer takes time.
_WHOLE_SECONDS = 5.0
_BATCH_MAX = 2000
#: The assumed maximum difference between the clocks of nodes.
_SKEW_SECONDS = 2.0
#: A node that lags only briefly has caught up before the second heartbeat.
_BEHIND_HEARTBEATS = 2


@dataclass(frozen=True)
class WatchBatch:
    """The changes that were available, oldest first."""

    entries: tuple[Entry, ...]
    #: True once all entries that existed when the watch began or resumed have been seen.
    caught_up: bool
    #: Identifies the bucket's creation. If it changes, the bucket was created anew or restored: drop all known entries.
    created: str


class _State(msgspec.Struct):
    last_seq: int = 0
    messages: int = 0


class _StreamInfo(msgspec.Struct):
    created: str
    state: _State


class _ConsumerInfo(msgspec.Struct):
    num_pending: int = 0


class _Gap(Exception):
    """Messages or heartbeats are missing; a new consumer continues after the last entry."""


def _nothing() -> None:
    """The default for `on_heard`."""


async def watch(
    link: Link, bucket: Bucket, after: int = 0, created: str = "", on_heard: Callable[[], None] = _nothing
) -> AsyncGenerator[WatchBatch, None]:
    """Yield every change of the bucket with a sequence above `after`, without end; with history 1, the newest per key.

    Memory is bounded by JetStream's flow control. The watch starts from the beginning if `created` differs from the
    bucket's, or if the bucket has lost the last entries seen. While it is caught up, `on_heard` is called about once a
    second or more often.
    """
    pause, stored_at = 0.1, 0.0
    outage = Outage(log)
    try:
        while True:
            try:
                info = await link.api(f"STREAM.INFO.{bucket.stream}", {}, _StreamInfo)
                if info.created != created.partition("#")[0]:
                    after, created = 0, info.created
                elif info.state.last_seq < after or await _was_cut(bucket, after, stored_at):
                    # The stream was restored or has lost its tail: known entries may no longer exist.
                    after, created = 0, f"{info.created}#{time.time_ns()}"
                async with contextlib.aclosing(_watch_once(link, bucket, after, info, created, on_heard)) as batches:
                    async for batch in batches:
                        if batch.entries:
                            after, stored_at = max(after, batch.entries[-1].revision), batch.entries[-1].stored_at
                        pause = 0.1
                        outage.worked()
                        yield batch
            except (_Gap, Unavailable, Rejected, nats.errors.Error) as error:
                outage.failed("watch interrupted; it resumes", error, bucket=bucket.name, after=after)
            if link.is_up:
                await asyncio.sleep(pause)
                pause = min(pause * 2, 2.0)
            else:
                with contextlib.suppress(NoConnection):
                    await link.until_up(60)
    finally:
        outage.forget()


async def _watch_once(
    link: Link, bucket: Bucket, after: int, info: _StreamInfo, created: str, on_heard: Callable[[], None]
) -> AsyncGenerator[WatchBatch, None]:
    """Yield the batches of one consumer until an exception ends it."""
    queue: asyncio.Queue[Raw | None] = asyncio.Queue()  # None: the connection was lost

    def lose() -> None:
        queue.put_nowait(None)

    inbox = link.nc.new_inbox()
    name = "w" + inbox.rsplit(".", 1)[-1]
    subscription = await link.nc.listen(inbox, queue.put_nowait)
    link.on_loss[lose] = None  # after the last await before `try`: a cancelled watch must not stay registered
    try:
        pending = await _make_consumer(link, bucket, name, inbox, after)
        target = info.state.last_seq
        caught_up = after >= target or (not pending and await _is_all(link, bucket, after))
        if caught_up:
            on_heard()
            yield WatchBatch((), True, created)
        reader, behind = _Reader(link, bucket, queue), 0
        while True:
            entries, idle = await reader.next()
            if entries:
                after = entries[-1].revision
            # An idle heartbeat means that nothing is left to deliver, even if the newest message was deleted.
            was = caught_up
            is_done = idle or reader.delivered >= pending  # what was overwritten meanwhile comes after all others
            caught_up = was or after >= target or (is_done and await _is_all(link, bucket, after))
            if entries or (caught_up and not was):
                yield WatchBatch(entries, caught_up, created)
            if caught_up:
                on_heard()
            behind = 0 if caught_up or entries else behind + idle
            if behind >= _BEHIND_HEARTBEATS:
                raise _Gap("the node that we read from lacks what others have; perhaps another one is chosen now")
    finally:
        del link.on_loss[lose]
        link.nc.forget(subscription)
        with contextlib.suppress(nats.errors.Error):  # without a connection, the server deletes the consumer in 10 s
            await subscription.unsubscribe()
            await link.tell(f"$JS.API.CONSUMER.DELETE.{bucket.stream}.{name}")


async def _was_cut(bucket: Bucket, after: int, stored_at: float) -> bool:
    """Return whether the stream lost its tail and was written again: a later message has an earlier sequence.

    Raises Unavailable.
    """
    first = await bucket.first_since(stored_at + _SKEW_SECONDS) if stored_at else None
    return first is not None and first <= after


async def _is_all(link: Link, bucket: Bucket, after: int) -> bool:
    """Return whether there is really nothing after `after`, as the consumer reports.

    In a cluster the consumer reads the replica of any node, which may still be empty after a restore or a disk loss, so
    the leader is asked.
    """
    return not link.is_clustered or await bucket.last_revision() <= after


async def _make_consumer(link: Link, bucket: Bucket, name: str, inbox: str, after: int) -> int:
    subject = f"{bucket.prefix}>"
    config: dict[str, object] = {
        "name": name,
        "deliver_subject": inbox,
        "ack_policy": "none",
        "filter_subject": subject,
        "mem_storage": True,
        "num_replicas": 1,
        "idle_heartbeat": _SECOND,
        "flow_control": True,
        "inactive_threshold": _ABANDONED_SECONDS * _SECOND,
        "deliver_policy": "by_start_sequence" if after else "all",
    }
    if after:
        config["opt_start_seq"] = after + 1
    request = {"stream_name": bucket.stream, "config": config}
    made = await link.api(f"CONSUMER.CREATE.{bucket.stream}.{name}.{subject}", request, _ConsumerInfo, seconds=2)
    return made.num_pending


class _Reader:
    """Reads one push consumer: answers flow control, detects gaps and missing heartbeats."""

    def __init__(self, link: Link, bucket: Bucket, queue: asyncio.Queue[Raw | None]) -> None:
        self._link, self._queue = link, queue
        self._skip = len(bucket.prefix)
        self._delivered = 0

    @property
    def delivered(self) -> int:
        """The number of messages so far."""
        return self._delivered

    async def next(self) -> tuple[tuple[Entry, ...], bool]:
        """Return the available entries, and whether the server has no more for now. Waits for at least one message."""
        messages = [await self._first()]
        while len(messages) < _BATCH_MAX and not self._queue.empty():
            messages.append(_unless_lost(self._queue.get_nowait()))
        entries = []
        idle = False
        for message in messages:
            if message.status == "100":
                idle = await self._on_control(message)
            else:
                entries.append(self._entry(message))
        return tuple(entries), idle

    async def _first(self) -> Raw:
        try:
            async with asyncio.timeout(_SILENCE_SECONDS):
                return _unless_lost(await self._queue.get())
        except TimeoutError:
            raise _Gap("no heartbeat") from None

    async def _on_control(self, message: Raw) -> bool:
        """Handle a control message. Returns whether it is an idle heartbeat: nothing is waiting to be delivered."""
        if message.reply:
            await self._link.nc.publish(message.reply, b"")
            return False
        headers = message.headers
        stalled = headers.get("Nats-Consumer-Stalled")
        if stalled:
            await self._link.nc.publish(stalled, b"")
            return False
        if int(headers.get("Nats-Last-Consumer", self._delivered)) != self._delivered:
            raise _Gap("according to a heartbeat, messages are missing")
        return True

    def _entry(self, message: Raw) -> Entry:
        # $JS.ACK.<stream>.<consumer>.<delivered>.<stream seq>.<consumer seq>.<time>.<pending>; the newer form
        # has domain and account in front, so count from the left (ADR-15).
        tokens = message.reply.split(".")
        offset = 0 if len(tokens) == 9 else 2
        if int(tokens[6 + offset]) != self._delivered + 1:
            raise _Gap("a message is missing")
        self._delivered += 1
        is_deleted = is_deletion(message.head)
        key = message.subject[self._skip :]
        stored_at = int(tokens[7 + offset]) / _SECOND
        return Entry(key, int(tokens[5 + offset]), None if is_deleted else message.data, stored_at)


def _unless_lost(message: Raw | None) -> Raw:
    if message is None:
        raise _Gap("the connection was lost, and perhaps the consumer with it")
    return message


async def next_batch(batches: AsyncGenerator[WatchBatch, None], doing: str) -> WatchBatch:
    """Return the next batch of a read up to a known end. Raises Unavailable after a timeout (FLOW-48)."""
    try:
        async with asyncio.timeout(_WHOLE_SECONDS):
            return await anext(batches)
    except TimeoutError:
        raise Unavailable(f"{doing}: it is silent") from None
