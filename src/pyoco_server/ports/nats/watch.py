"""A watch over a bucket that resumes by sequence and survives the loss of a node.

The library's own watch reports an empty bucket on a cluster now and then, and stays silent for up to 18 s when a
node dies. This one checks a heartbeat every second and makes itself a new consumer from the last sequence it saw.
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
from pyoco_server.outages import Outage
from pyoco_server.ports.nats.bucket import Bucket, Entry, is_deletion
from pyoco_server.ports.nats.client import Raw
from pyoco_server.ports.nats.link import Link, NoConnection, Rejected

__all__ = ["Batch", "next_batch", "watch"]

log = get_logger(__name__)

_SECOND = 1_000_000_000
#: The server deletes a consumer that nobody has used for so long: that of a process that died.
_ABANDONED_SECONDS = 10
#: Three missed heartbeats of a second each.
_SILENCE_SECONDS = 3.0
#: Who reads to a known end waits longer: a new consumer takes its time to be made.
_WHOLE_SECONDS = 5.0
_BATCH_MAX = 2000
#: By how much clocks of nodes may differ.
_SKEW_SECONDS = 2.0
#: A node that is only a moment behind has caught up before the second of them.
_BEHIND_HEARTBEATS = 2


@dataclass(frozen=True)
class Batch:
    """Some changes, oldest first, all that were at hand."""

    entries: tuple[Entry, ...]
    #: True once everything has been seen that was there when the watch began or was renewed.
    caught_up: bool
    #: The bucket's own birthday. Another one than last time: the bucket was made anew, forget what you knew.
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
    """The server went on without us; a new consumer starts where we stopped."""


def _nothing() -> None:
    """Whoever does not care how fresh a watch is."""


async def watch(
    link: Link, bucket: Bucket, after: int = 0, created: str = "", on_heard: Callable[[], None] = _nothing
) -> AsyncGenerator[Batch, None]:
    """Every change of the bucket with a sequence above `after`, for ever; with history 1, the newest per key.

    Memory is bounded by JetStream's flow control. When `created` names another bucket than the one found, the
    watch starts from the beginning, and so when the bucket has lost what was seen last. `on_heard` is called about once
    a second at least while all that is there has been seen.
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
                    # The same stream with an earlier end: it was restored, or lost its tail. What we knew may be gone.
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
) -> AsyncGenerator[Batch, None]:
    """One consumer's life: ends by an exception."""
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
            yield Batch((), True, created)
        reader, behind = _Reader(link, bucket, queue), 0
        while True:
            entries, idle = await reader.next()
            if entries:
                after = entries[-1].revision
            # An idle heartbeat means that nothing is left to deliver, though the newest message may be gone.
            was = caught_up
            caught_up = was or after >= target or (idle and await _is_all(link, bucket, after))
            if entries or (caught_up and not was):
                yield Batch(entries, caught_up, created)
            if caught_up:
                on_heard()
            behind = 0 if caught_up or entries else behind + idle
            if behind >= _BEHIND_HEARTBEATS:
                raise _Gap("the node that we read from lacks what others have; perhaps another one is chosen now")
    finally:
        del link.on_loss[lose]
        link.nc.forget(subscription)
        with contextlib.suppress(nats.errors.Error):  # the connection may be gone; the server forgets it in 10 s
            await subscription.unsubscribe()
            await link.tell(f"$JS.API.CONSUMER.DELETE.{bucket.stream}.{name}")


async def _was_cut(bucket: Bucket, after: int, stored_at: float) -> bool:
    """Whether the tail that we have seen is gone, and others have written since: then what was stored later has an
    earlier place. Raises Unavailable."""
    first = await bucket.first_since(stored_at + _SKEW_SECONDS) if stored_at else None
    return first is not None and first <= after


async def _is_all(link: Link, bucket: Bucket, after: int) -> bool:
    """Whether nothing lies behind `after`, as the consumer says. In a cluster it reads the copy of some node, which may
    be empty yet, after a restore or the loss of its disk: so the leader is asked."""
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
    """Messages of one push consumer: answers flow control, notices gaps and silence."""

    def __init__(self, link: Link, bucket: Bucket, queue: asyncio.Queue[Raw | None]) -> None:
        self._link, self._queue = link, queue
        self._skip = len(bucket.prefix)
        self._delivered = 0

    async def next(self) -> tuple[tuple[Entry, ...], bool]:
        """What is at hand, at least one message, and whether the server has nothing more for the moment."""
        messages = [await self._first()]
        while len(messages) < _BATCH_MAX and not self._queue.empty():
            messages.append(_heard(self._queue.get_nowait()))
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
                return _heard(await self._queue.get())
        except TimeoutError:
            raise _Gap("no heartbeat") from None

    async def _on_control(self, message: Raw) -> bool:
        """Returns whether this was an idle heartbeat: nothing is waiting to be delivered."""
        if message.reply:
            await self._link.nc.publish(message.reply, b"")
            return False
        headers = message.headers
        stalled = headers.get("Nats-Consumer-Stalled")
        if stalled:
            await self._link.nc.publish(stalled, b"")
            return False
        if int(headers.get("Nats-Last-Consumer", self._delivered)) != self._delivered:
            raise _Gap("a heartbeat tells of messages that did not arrive")
        return True

    def _entry(self, message: Raw) -> Entry:
        # $JS.ACK.<stream>.<consumer>.<delivered>.<stream seq>.<consumer seq>.<time>.<pending>; the newer form
        # has domain and account in front, so count from the left (ADR-15).
        tokens = message.reply.split(".")
        offset = 0 if len(tokens) == 9 else 2
        if int(tokens[6 + offset]) != self._delivered + 1:
            raise _Gap("a message is missing")
        self._delivered += 1
        gone = is_deletion(message.head)
        key = message.subject[self._skip :]
        stored_at = int(tokens[7 + offset]) / _SECOND
        return Entry(key, int(tokens[5 + offset]), None if gone else message.data, stored_at)


def _heard(message: Raw | None) -> Raw:
    if message is None:
        raise _Gap("the connection was lost, and perhaps the consumer with it")
    return message


async def next_batch(batches: AsyncGenerator[Batch, None], doing: str) -> Batch:
    """The next one, for whoever reads to an end that is known. Raises Unavailable after a silence (FLOW-48)."""
    try:
        async with asyncio.timeout(_WHOLE_SECONDS):
            return await anext(batches)
    except TimeoutError:
        raise Unavailable(f"{doing}: it is silent") from None
