"""Read the bytes of one object from the store, a few chunks at a time."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable

import msgspec
import nats.errors

from pyoco_server.errors import Corrupt, Unavailable
from pyoco_server.logs import get_logger
from pyoco_server.ports.nats.client import Raw
from pyoco_server.ports.nats.link import Link, Rejected

__all__ = ["ChunkReader"]

log = get_logger(__name__)

#: Chunks requested at a time: bounds memory per transfer.
_WINDOW = 16
_SECOND = 1_000_000_000
#: The server deletes a consumer that was unused for this long, such as that of a process that crashed.
_ABANDONED_SECONDS = 10
#: Time without a byte (FLOW-48).
_SILENCE_SECONDS = 5.0
#: Two missed heartbeats: the consumer is lost.
_DEAF_SECONDS = 2.5
#: How soon a reconnect is noticed.
_LOOK_SECONDS = 0.25


class _Gap(Exception):
    """The consumer is no longer usable; a new one resumes where it stopped."""


class _ConsumerInfo(msgspec.Struct):
    num_pending: int = 0


class ChunkReader:
    """Reads one object's chunks by small pulls, and resumes after the loss of a node or a connection.

    `check_current` is called when chunks are missing. It raises ObjectNotFound if the object has been replaced.
    """

    def __init__(
        self, link: Link, stream: str, subject: str, size_bytes: int, check_current: Callable[[], Awaitable[None]]
    ) -> None:
        self._link, self._stream, self._subject = link, stream, subject
        self._size_bytes, self._check_current = size_bytes, check_current
        self._hash = hashlib.sha256()
        self._read_bytes = 0
        self._last = 0
        self._heard_at = 0.0
        self._progress_at = 0.0

    @property
    def digest(self) -> bytes:
        return self._hash.digest()

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Yield the chunks.

        Raises Corrupt if there are more or fewer bytes than expected, Unavailable after silence.
        """
        if not self._size_bytes:
            await self._check_current()
        self._progress_at = time.monotonic()
        while self._read_bytes < self._size_bytes:
            try:
                async with contextlib.aclosing(self._one_consumer()) as chunks:
                    async for chunk in chunks:
                        yield chunk
                        # Time that the caller takes is not silence of the store.
                        self._heard_at = self._progress_at = time.monotonic()
            except (_Gap, Unavailable, Rejected, nats.errors.Error) as error:
                log.info("reading an object was interrupted, resuming", stream=self._stream, error=error)
                if self._is_stuck:
                    raise Unavailable("the object store is silent") from error
                await asyncio.sleep(0.1)

    async def _one_consumer(self) -> AsyncGenerator[bytes, None]:
        """Read with one consumer, until everything is read or the consumer is lost."""
        queue: asyncio.Queue[Raw] = asyncio.Queue()
        inbox = self._link.nc.new_inbox()
        name = "o" + inbox.rsplit(".", 1)[-1]
        subscription = await self._link.nc.listen(inbox, queue.put_nowait)
        connection = self._link.connection
        try:
            if not await self._make_consumer(name):
                await self._check_current()
            asked = taken = 0
            while self._read_bytes < self._size_bytes:
                if asked <= _WINDOW // 2:
                    await self._ask(name, inbox, _WINDOW - asked)
                    asked = _WINDOW
                message = await self._next(queue, connection)
                status = message.status
                if status is None:
                    asked, taken = asked - 1, taken + 1
                    yield self._take(message, taken)
                else:
                    asked -= await self._void(status, message, asked)
        finally:
            self._link.nc.forget(subscription)
            with contextlib.suppress(nats.errors.Error):  # without a connection the server deletes it after 10 s
                await subscription.unsubscribe()
                await self._link.tell(f"$JS.API.CONSUMER.DELETE.{self._stream}.{name}")

    async def _make_consumer(self, name: str) -> int:
        """Create the consumer. Return how many chunks it has to deliver."""
        config: dict[str, object] = {
            "name": name,
            "ack_policy": "none",
            "filter_subject": self._subject,
            "mem_storage": True,
            "num_replicas": 1,
            "inactive_threshold": _ABANDONED_SECONDS * _SECOND,
            "deliver_policy": "by_start_sequence" if self._last else "all",
        }
        if self._last:
            config["opt_start_seq"] = self._last + 1
        where = f"CONSUMER.CREATE.{self._stream}.{name}.{self._subject}"
        request = {"stream_name": self._stream, "config": config}
        made = await self._link.api(where, request, _ConsumerInfo, seconds=2)
        self._heard_at = time.monotonic()
        return made.num_pending

    async def _ask(self, name: str, inbox: str, count: int) -> None:
        request = msgspec.json.encode({"batch": count, "expires": 5 * _SECOND, "idle_heartbeat": _SECOND})
        await self._link.nc.publish(f"$JS.API.CONSUMER.MSG.NEXT.{self._stream}.{name}", request, inbox)

    async def _next(self, queue: asyncio.Queue[Raw], connection: int) -> Raw:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_SECONDS):
                    message = await queue.get()
                    self._heard_at = time.monotonic()
                    return message
            if connection != self._link.connection:
                raise _Gap("the connection was lost, and perhaps the consumer with it")
            if time.monotonic() - self._heard_at > _DEAF_SECONDS:
                raise _Gap("no heartbeat")

    async def _void(self, status: str, message: Raw, asked: int) -> int:
        """Handle a status message. Return how many requested chunks will not arrive."""
        if status in {"100", "408"}:  # nothing arrived for a second, or until the request expired
            await self._check_current()
            if self._is_stuck:
                raise Corrupt(f"an object has {self._read_bytes} of its {self._size_bytes} bytes")
        else:
            raise _Gap(f"the consumer says {status}")
        return min(asked, int(message.headers.get("Nats-Pending-Messages", 0))) if status == "408" else 0

    def _take(self, message: Raw, count: int) -> bytes:
        # As in ports/nats/watch.py: stream and consumer sequence, counted from the left (ADR-15).
        tokens = message.reply.split(".")
        offset = 0 if len(tokens) == 9 else 2
        if int(tokens[6 + offset]) != count:
            raise _Gap("a chunk is missing")
        self._last = int(tokens[5 + offset])
        self._read_bytes += len(message.data)
        if self._read_bytes > self._size_bytes:
            raise Corrupt(f"an object has more than its {self._size_bytes} bytes")
        self._hash.update(message.data)
        return message.data

    @property
    def _is_stuck(self) -> bool:
        return time.monotonic() - self._progress_at > _SILENCE_SECONDS
