"""The wheel history in a KV bucket, by time in milliseconds and event id (FLOW-222).

Events expire by the bucket's max age.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections import deque
from dataclasses import dataclass
from typing import Any

import msgspec

from pyoco_server.core.wheel_event import WheelAction, WheelEvent, encode_wheel_event, read_wheel_event
from pyoco_server.errors import Corrupt, NotStored, Unavailable
from pyoco_server.logs import get_logger
from pyoco_server.ports.nats.bucket import Bucket, is_deletion
from pyoco_server.ports.nats.link import Link, Rejected
from pyoco_server.ports.nats.watch import next_batch, watch

__all__ = ["JetStreamWheelHistory"]

log = get_logger(__name__)

_NO_MESSAGE_FOUND = 10037
#: Events requested concurrently: bounds memory, and leaves most of the connection to others.
_WINDOW = 250
#: If fewer than one in this many events match, it is cheaper to stream all of them.
_RARE = 4


class _State(msgspec.Struct):
    first_seq: int = 0
    last_seq: int = 0


class _Info(msgspec.Struct):
    state: _State


class _Message(msgspec.Struct):
    data: str = ""
    hdrs: str = ""


class _Found(msgspec.Struct):
    message: _Message


class _Glance(msgspec.Struct):
    """The members of an event that a filter needs: decoding them takes a tenth of the time of a complete decode."""

    wheel_name: Any = None
    action: Any = None


_read_glance = msgspec.json.Decoder(_Glance).decode


@dataclass(frozen=True)
class _Wanted:
    """A filter for events. None: any wheel, any kind."""

    wheel_name: str | None
    action: WheelAction | None

    @property
    def is_all(self) -> bool:
        return self.wheel_name is None and self.action is None

    def may_fit(self, data: bytes) -> bool:
        try:
            event = _read_glance(data)
        except (ValueError, RecursionError):
            return True  # the complete decoder reports the error
        return self.wheel_name in (None, event.wheel_name) and self.action in (None, event.action)

    def fits(self, event: WheelEvent) -> bool:
        return self.wheel_name in (None, event.wheel_name) and self.action in (None, event.action)


class JetStreamWheelHistory:
    """Events are never overwritten, so stream sequences are in the order of events, without gaps except expired events.

    It is read by sequence, newest first, with many concurrent requests, each answered by the leader, so that an
    uploader sees its own event. 100 events took 4 ms, 500 took 20 ms. A filter that matches few events continues with a
    consumer, which starts at the oldest event, costs 6 ms for one event, and read 20,000 in 200 ms instead of 1.3 s. On
    a cluster the consumer may read from a node that lags: by less than the newest events, which were read before.
    """

    def __init__(self, link: Link, bucket: str) -> None:
        self._link = link
        self._bucket = Bucket(link, bucket)

    async def add(self, event: WheelEvent) -> None:
        key = f"{int(event.occurred_at * 1000)}_{event.event_id}"
        if await self._bucket.write(key, encode_wheel_event(event), 0) is None:
            raise NotStored(f"there is another event {key} in the wheel history")

    async def newest(
        self, limit: int, wheel_name: str | None = None, action: WheelAction | None = None
    ) -> list[WheelEvent]:
        wanted = _Wanted(wheel_name, action)
        found: list[WheelEvent] = []
        is_rare = False
        try:
            state = (await self._link.insist(f"STREAM.INFO.{self._bucket.stream}", {}, _Info)).state
            last, end = state.last_seq, max(state.first_seq, 1)
            while last >= end and len(found) < limit and not is_rare:
                window = min(_WINDOW, limit - len(found)) if wanted.is_all else _WINDOW
                numbers = range(last, max(end, last - window + 1) - 1, -1)
                events = await asyncio.gather(*map(self._event, numbers))
                fitting = [event for event in events if event is not None and wanted.fits(event)]
                found += fitting
                last -= len(numbers)
                is_rare = not wanted.is_all and len(fitting) < len(numbers) / _RARE
        except Rejected as error:
            raise Unavailable(f"cannot read {self._bucket.name}: {error}") from error
        if last >= end and len(found) < limit:
            found += await self._older(last, limit - len(found), wanted)
        return found[:limit]

    async def _older(self, last: int, limit: int, wanted: _Wanted) -> list[WheelEvent]:
        """Return the newest matching events up to the sequence `last`. O(events), with `limit` of them in memory."""
        found: deque[WheelEvent] = deque(maxlen=limit)
        seen = 0
        async with contextlib.aclosing(watch(self._link, self._bucket)) as batches:
            while seen < last:
                batch = await next_batch(batches, f"cannot read {self._bucket.name}")
                for entry in batch.entries:
                    seen = entry.revision
                    if seen <= last and entry.value is not None and wanted.may_fit(entry.value):
                        event = _read(entry.value, seen)
                        if event is not None and wanted.fits(event):
                            found.append(event)
                if batch.caught_up:
                    break
                await asyncio.sleep(0)  # let other tasks run between two batches
        return list(reversed(found))

    async def _event(self, number: int) -> WheelEvent | None:
        """Read one event. None: it has expired, or is unreadable."""
        try:
            found = await self._link.insist(f"STREAM.MSG.GET.{self._bucket.stream}", {"seq": number}, _Found)
        except Rejected as error:
            if error.code == _NO_MESSAGE_FOUND:
                return None
            raise
        if found.message.hdrs and is_deletion(base64.b64decode(found.message.hdrs)):
            return None
        return _read(base64.b64decode(found.message.data), number)


def _read(data: bytes, number: int) -> WheelEvent | None:
    try:
        return read_wheel_event(data)
    except Corrupt as error:
        log.warning("unreadable event in the wheel history, omitted", number=number, error=error)
        return None
