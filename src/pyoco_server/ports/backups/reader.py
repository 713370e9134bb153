"""Read the messages of a stream after a given sequence, until none is left."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator
from typing import Any

import msgspec
import nats.errors

from pyoco_server.core.backup_change import LateChange
from pyoco_server.errors import BackupFailed, Unavailable
from pyoco_server.ports.backups.incoming import Incoming, listening
from pyoco_server.ports.nats.client import Raw
from pyoco_server.ports.nats.link import Link, Rejected

__all__ = ["read_behind"]

_SECOND = 1_000_000_000
#: Requested per pull, estimated from the average size of the stored messages.
_WINDOW_BYTES = 8 * 1024 * 1024
_WINDOW_MIN, _WINDOW_MAX = 16, 1000
#: If reading has not caught up with the stream's writers within this time, give up.
_CATCH_UP_SECONDS = 300.0
#: On a cluster a consumer reads one node's replica, and our node is notified of the new consumer with a delay.
_LAG_SECONDS = 2.0
#: A node that was restored, or lost its disk, lags for longer: then try this many consumers, each possibly on another
#: node.
_CONSUMERS_MAX = 5
_PAUSE_SECONDS = 0.05
_NOTHING_THERE, _NOBODY_THERE = "404", "503"
_NO_MESSAGE_FOUND = 10037


class _State(msgspec.Struct):
    messages: int
    bytes: int
    last_seq: int


class _Info(msgspec.Struct):
    state: _State


class _Message(msgspec.Struct):
    seq: int


class _Found(msgspec.Struct):
    message: _Message


class _Behind(Exception):
    """The replica being read lacks messages that the leader has."""


async def read_behind(link: Link, stream: str, after: int) -> AsyncGenerator[LateChange, None]:
    """Yield every message after `after`.

    Ends when the server has no more, and not before the last message that the leader had at the start. So if two
    streams are read in turn, the second is never seen as of an earlier time than the first.

    Raises Rejected, Unavailable, BackupFailed.
    """
    state = (await link.insist(f"STREAM.INFO.{stream}", {}, _Info)).state
    fitting = _WINDOW_BYTES * state.messages // max(state.bytes, 1)
    window = min(max(fitting, _WINDOW_MIN), _WINDOW_MAX)
    for _ in range(_CONSUMERS_MAX):
        with contextlib.suppress(_Behind):
            async with contextlib.aclosing(_read(link, stream, after, state.last_seq, window)) as changes:
                async for change in changes:
                    after = change.sequence
                    yield change
            return
    raise Unavailable(f"a node lacks what others have of {stream}; begin anew when it has caught up")


async def _read(link: Link, stream: str, after: int, last: int, window: int) -> AsyncGenerator[LateChange, None]:
    """Read with one consumer. Raises _Behind, and what `read_behind` raises."""
    async with listening(link) as incoming:
        consumer = "b" + incoming.subject.rsplit(".", 1)[-1]
        await _make_consumer(link, stream, consumer, after)
        began = time.monotonic()
        try:
            while True:
                async with contextlib.aclosing(_some(link, f"{stream}.{consumer}", incoming, window)) as some:
                    async for message in some:
                        if message.status is None:
                            change = _change(message)
                            after = change.sequence
                            yield change
                waited = time.monotonic() - began
                if message.status == _NOTHING_THERE:
                    if after >= last or await _newest(link, stream) <= after:
                        return
                    if waited > _LAG_SECONDS:
                        raise _Behind
                if waited > _CATCH_UP_SECONDS:
                    raise BackupFailed(f"{stream} changes faster than it can be read")
                if message.status == _NOBODY_THERE and waited > link.patience.unanswered_seconds:
                    raise Unavailable(f"NATS does not permit reading {stream}")
                if message.status not in {None, _NOTHING_THERE, _NOBODY_THERE}:
                    raise BackupFailed(f"NATS broke off reading {stream}: {message.status} {message.description}")
                if message.status is not None:
                    await asyncio.sleep(_PAUSE_SECONDS)
        finally:
            with contextlib.suppress(nats.errors.Error):  # the server would expire it, too
                await link.tell(f"$JS.API.CONSUMER.DELETE.{stream}.{consumer}")


async def _newest(link: Link, stream: str) -> int:
    """Return the sequence of the last existing message according to the leader; 0 if the stream is empty.

    It may be lower than `last_seq`, whose message may have been deleted.
    """
    try:
        request = {"last_by_subj": ">"}
        return (await link.insist(f"STREAM.MSG.GET.{stream}", request, _Found)).message.seq
    except Rejected as error:
        if error.code != _NO_MESSAGE_FOUND:
            raise
        return 0


async def _make_consumer(link: Link, stream: str, consumer: str, after: int) -> None:
    config = {
        "name": consumer,
        "ack_policy": "none",
        "mem_storage": True,
        "num_replicas": 1,
        "inactive_threshold": 60 * _SECOND,
        "deliver_policy": "by_start_sequence",
        "opt_start_seq": after + 1,
    }
    request = {"stream_name": stream, "config": config}
    await link.insist(f"CONSUMER.CREATE.{stream}.{consumer}", request, dict[str, Any])


async def _some(link: Link, consumer: str, incoming: Incoming, window: int) -> AsyncGenerator[Raw, None]:
    """Yield up to `window` messages; if there are fewer, the last one is the status message that explains why."""
    ask = msgspec.json.encode({"batch": window, "no_wait": True})
    await link.nc.publish(f"$JS.API.CONSUMER.MSG.NEXT.{consumer}", ask, incoming.subject)
    for _ in range(window):
        message = await incoming.next()
        yield message
        if message.status is not None:
            return


def _change(message: Raw) -> LateChange:
    # As in ports/nats/watch.py: the stream sequence, counted from the left (ADR-15).
    tokens = message.reply.split(".")
    return LateChange(int(tokens[5 if len(tokens) == 9 else 7]), message.subject, message.data, message.headers)
