"""The wheel history in its bucket, key = time in milliseconds and event id (FLOW-222). The bucket's max age ends it."""

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
#: Events asked for at once: bounds memory, and leaves most of the link to others.
_WINDOW = 250
#: Where fewer than one in so many is wanted, it is cheaper to have all of them sent.
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
    """As little of an event as tells whether it may be wanted: a tenth of what it costs to read all of it."""

    wheel_name: Any = None
    action: Any = None


_read_glance = msgspec.json.Decoder(_Glance).decode


@dataclass(frozen=True)
class _Wanted:
    """Which events are asked for; None: of any wheel, of any kind."""

    wheel_name: str | None
    action: WheelAction | None

    @property
    def is_all(self) -> bool:
        return self.wheel_name is None and self.action is None

    def may_fit(self, data: bytes) -> bool:
        try:
            event = _read_glance(data)
        except (ValueError, RecursionError):
            return True  # whoever reads all of it says what is wrong
        return self.wheel_name in (None, event.wheel_name) and self.action in (None, event.action)

    def fits(self, event: WheelEvent) -> bool:
        return self.wheel_name in (None, event.wheel_name) and self.action in (None, event.action)


class JetStreamWheelHistory:
    """No event is ever written over, so the numbers of the stream are the order of events, without gaps but for those
    that have expired.

    It is read by number, from the newest backwards, many questions at once, and each answered by the leader: who has
    just uploaded sees it. 100 events took 4 ms, 500 took 20 ms. Whoever looks for few among many goes on with a
    consumer, which begins at the far end, costs 6 ms for one event, and read 20,000 in 200 ms instead of 1.3 s. On a
    cluster it may live on a node that is a moment behind: by less than the newest events, which were read before.
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
        """The newest that are wanted among those up to the number `last`. O(events), in memory for `limit` of them."""
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
                await asyncio.sleep(0)  # others have their turn between two batches
        return list(reversed(found))

    async def _event(self, number: int) -> WheelEvent | None:
        """None: it has expired, or nobody can read it."""
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
        log.warning("an event of the wheel history cannot be read; lists pass it over", number=number, error=error)
        return None
