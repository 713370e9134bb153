"""The messages of a stream behind a place, until nothing is left."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator
from typing import Any

import msgspec
import nats.errors

from pyoco_server.core.backup_change import Change
from pyoco_server.errors import BackupFailed, Unavailable
from pyoco_server.ports.backups.incoming import Incoming, listening
from pyoco_server.ports.nats.client import Raw
from pyoco_server.ports.nats.link import Link

__all__ = ["read_behind"]

_SECOND = 1_000_000_000
#: Asked for at once, as far as one can tell from the size of the messages that are there.
_WINDOW_BYTES = 8 * 1024 * 1024
_WINDOW_MIN, _WINDOW_MAX = 16, 1000
#: A stream that changes faster than it can be read for so long will never be caught up with.
_CATCH_UP_SECONDS = 300.0
#: On a cluster a consumer reads the copy of some node, and is told to our node a moment after it was made.
_LAG_SECONDS = 2.0
_PAUSE_SECONDS = 0.05
_NOTHING_THERE, _NOBODY_THERE = "404", "503"


class _State(msgspec.Struct):
    messages: int
    bytes: int
    last_seq: int


class _Info(msgspec.Struct):
    state: _State


async def read_behind(link: Link, stream: str, after: int) -> AsyncGenerator[Change, None]:
    """It ends when the server has nothing more, and not before the last message that its leader knew of in the
    beginning: so of two streams that are read in turn, the second is never shown as it was before the first.

    Raises Rejected, Unavailable, BackupFailed.
    """
    state = (await link.insist(f"STREAM.INFO.{stream}", {}, _Info)).state
    fitting = _WINDOW_BYTES * state.messages // max(state.bytes, 1)
    window = min(max(fitting, _WINDOW_MIN), _WINDOW_MAX)
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
                if message.status == _NOTHING_THERE and (after >= state.last_seq or waited > _LAG_SECONDS):
                    return
                if waited > _CATCH_UP_SECONDS:
                    raise BackupFailed(f"{stream} changes faster than it can be read")
                if message.status == _NOBODY_THERE and waited > link.patience.unanswered_seconds:
                    raise Unavailable(f"nobody lets us read {stream}")
                if message.status not in {None, _NOTHING_THERE, _NOBODY_THERE}:
                    raise BackupFailed(f"NATS broke off reading {stream}: {message.status} {message.description}")
                if message.status is not None:
                    await asyncio.sleep(_PAUSE_SECONDS)
        finally:
            with contextlib.suppress(nats.errors.Error):  # the server forgets it by itself
                await link.tell(f"$JS.API.CONSUMER.DELETE.{stream}.{consumer}")


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
    """So many messages; or fewer, and then the word that says why."""
    ask = msgspec.json.encode({"batch": window, "no_wait": True})
    await link.nc.publish(f"$JS.API.CONSUMER.MSG.NEXT.{consumer}", ask, incoming.subject)
    for _ in range(window):
        message = await incoming.next()
        yield message
        if message.status is not None:
            return


def _change(message: Raw) -> Change:
    # As in ports/nats/watch.py: the stream's sequence, counted from the left (ADR-15).
    tokens = message.reply.split(".")
    return Change(int(tokens[5 if len(tokens) == 9 else 7]), message.subject, message.data, message.headers)
