"""An in-memory copy of a small bucket, current within moments: for data that is read often and changed rarely."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import aclosing
from typing import Generic, TypeVar

from pyoco_server.errors import Corrupt, Unavailable
from pyoco_server.logs import get_logger
from pyoco_server.ports.nats.bucket import Bucket, Entry
from pyoco_server.ports.nats.link import Link
from pyoco_server.ports.nats.watch import watch

__all__ = ["Follower", "Mirror"]

log = get_logger(__name__)

T = TypeVar("T")


class Follower(ABC):
    """Applies every change of a bucket between `start` and `stop`; subclasses define how.

    It lags by the network delay: a change is applied when its message arrives, and none while the connection is down.
    """

    #: Two heartbeats of the watch.
    FRESH_SECONDS = 2.0

    def __init__(self, link: Link, bucket: Bucket) -> None:
        self._link, self._bucket = link, bucket
        self._last_alive = (-1, 0.0)
        self._ready = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self._gate, self._following = asyncio.Lock(), False

    async def start(self, seconds: float = 10.0) -> None:
        """Return once the existing entries have been read. May be called repeatedly and concurrently.

        Raises Unavailable.
        """
        async with self._gate:
            if self._task is None:
                self._stopping.clear()
                self._ready.clear()
                self._task = asyncio.create_task(self._run(), name=f"mirror {self._bucket.name}")
            try:
                async with asyncio.timeout(seconds):
                    await self._ready.wait()
            except TimeoutError:
                raise Unavailable(f"cannot read {self._bucket.name}") from None
            self._following = True

    async def stop(self) -> None:
        """Return once the watch has stopped. May be called repeatedly, concurrently, or without a start."""
        async with self._gate:
            self._following = False
            self._stopping.set()
            task, self._task = self._task, None
            # The event alone would take effect only at the next change; a cancel alone can be lost before 3.12.
            while task is not None and not task.done():
                task.cancel()
                await asyncio.wait({task}, timeout=0.5)

    @property
    def is_following(self) -> bool:
        """Whether it is between `start` and `stop`."""
        return self._following

    @property
    def is_fresh(self) -> bool:
        """Whether the watch was recently alive on the current connection. If not, read the bucket itself."""
        if not self._following:
            return False
        connection, at = self._last_alive
        return self._link.is_up and connection == self._link.connection and time.monotonic() - at < self.FRESH_SECONDS

    def _on_alive(self) -> None:
        self._last_alive = (self._link.connection, time.monotonic())

    def note(self, entry: Entry) -> None:
        """Apply a write of this process immediately, so that it reads its own writes."""
        self._apply(entry)

    async def _run(self) -> None:
        async with aclosing(watch(self._link, self._bucket, on_heard=self._on_alive)) as batches:
            created = ""
            async for batch in batches:
                if batch.created != created:
                    created = batch.created
                    self._clear()
                for entry in batch.entries:
                    self._apply(entry)
                if batch.caught_up:
                    self._ready.set()
                if self._stopping.is_set():
                    return

    @abstractmethod
    def _apply(self, entry: Entry) -> None:
        """Apply a change, or a write of this process. It may be older than one that was applied before."""

    @abstractmethod
    def _clear(self) -> None:
        """Drop everything: the bucket was created anew or restored."""


class Mirror(Follower, Generic[T]):
    """The decoded content of a bucket. A read costs a dictionary lookup; memory is O(keys)."""

    def __init__(
        self,
        link: Link,
        bucket: Bucket,
        decode: Callable[[bytes], T],
        on_new: Callable[[str, T], None] = lambda _key, _value: None,
    ) -> None:
        """`on_new` is called for each key that did not exist before."""
        super().__init__(link, bucket)
        self._decode, self._on_new = decode, on_new
        self._values: dict[str, tuple[int, T]] = {}

    def get(self, key: str) -> T | None:
        held = self._values.get(key)
        return held[1] if held is not None else None

    def get_held(self, key: str) -> tuple[int, T] | None:
        """Return the revision, too."""
        return self._values.get(key)

    def all(self) -> list[T]:
        return [value for _, value in self._values.values()]

    def items(self) -> list[tuple[str, T]]:
        return [(key, value) for key, (_, value) in self._values.items()]

    def _clear(self) -> None:
        self._values.clear()

    def _apply(self, entry: Entry) -> None:
        held = self._values.get(entry.key)
        if held is not None and held[0] >= entry.revision:
            return
        if entry.value is None:
            self._values.pop(entry.key, None)
            return
        try:
            value = self._decode(entry.value)
        except Corrupt:
            # Drop the previous value too: an API key whose record is damaged must not stay valid.
            self._values.pop(entry.key, None)
            log.exception("skipping unreadable record", bucket=self._bucket.name, entry=entry.key)
            return
        self._values[entry.key] = (entry.revision, value)
        if held is None:
            self._on_new(entry.key, value)
