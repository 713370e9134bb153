"""Delivers every change of a run to its watchers in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType

from pyoco_server.actions.watch import RunVersion, next_version
from pyoco_server.errors import TooManyWatchers
from pyoco_server.logs import get_logger
from pyoco_server.loops.loop import Loop
from pyoco_server.ports.runs.port import Changes, Removed, Stored

__all__ = ["Follower", "Hub", "Lookout"]

log = get_logger(__name__)

#: A watcher costs about 20 KiB with its connection, plus at worst one snapshot that it does not read.
FOLLOWERS_MAX = 10_000
#: How soon streams end after the connection to NATS is lost.
_LOOK_SECONDS = 0.5


class _Topic:
    """One watched run. Its latest state is stored once, however many followers it has."""

    __slots__ = ("followers", "is_broken", "removed", "run_id", "version")

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.version: RunVersion | None = None
        #: The revision at which the run was removed; a state with a higher revision overrides it.
        self.removed = 0
        self.is_broken = False
        self.followers: set[Follower] = set()

    @property
    def revision(self) -> int:
        return max(self.removed, self.version.stored.revision if self.version is not None else 0)

    @property
    def is_over(self) -> bool:
        return self.is_broken or self.removed == self.revision > 0

    def accept(self, item: Stored | Removed) -> None:
        """Accept a change: O(size of the run) if it is new, plus O(followers) if it has to be reported."""
        if item.revision <= self.revision:
            return  # the feed restarted from an earlier revision, or a reader already offered a newer state
        if isinstance(item, Removed):
            self.removed = item.revision
            self.end()
            return
        before = self.version
        self.version = next_version(before, item)
        # A heartbeat alone wakes no follower: it is sent with the next event of the stream.
        if before is None or before.content != self.version.content:
            for follower in self.followers:
                follower.wake()

    def end(self) -> None:
        for follower in tuple(self.followers):
            follower.wake()
            try:
                if follower.on_over is not None:
                    follower.on_over()
            except Exception:  # one watcher's failure must not keep the others' streams open or stop the feed
                log.exception("could not notify a watcher that its stream is over", run_id=self.run_id)


class Follower:
    """One watcher's subscription. Use it in a `with` block, or close it."""

    __slots__ = ("_hub", "_is_closed", "_loop", "_topic", "_waiter", "on_over")

    def __init__(self, hub: Hub, topic: _Topic) -> None:
        self._hub, self._topic = hub, topic
        self._loop = asyncio.get_running_loop()  # cached: looking it up costs a system call before Python 3.12
        self._waiter: asyncio.Future[None] | None = None
        self._is_closed = False
        self.on_over: Callable[[], None] | None = None

    def __enter__(self) -> Follower:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def version(self) -> RunVersion | None:
        return self._topic.version

    @property
    def is_over(self) -> bool:
        return self._is_closed or self._topic.is_over

    @property
    def is_current(self) -> bool:
        return self._hub.is_current

    def offer(self, stored: Stored) -> None:
        self._topic.accept(stored)

    async def wait(self, until: float) -> None:
        if self.is_over:
            return
        self._waiter = self._loop.create_future()
        timer = self._loop.call_at(until, self.wake)
        try:
            await self._waiter
        finally:
            timer.cancel()
            self._waiter = None

    def wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._hub.leave(self, self._topic)
            self.wake()


class Hub:
    """One upstream consumer, any number of followers. Memory is O(followers + watched runs).

    What it cannot do: report changes from before a follower subscribed, or more than the latest state to a slow
    follower.
    """

    def __init__(self, followers_max: int = FOLLOWERS_MAX) -> None:
        self._followers_max = followers_max
        self._topics: dict[str, _Topic] = {}
        self._epoch = ""
        self._is_closed = False
        #: Number of current followers.
        self.count = 0
        #: Whether the feed has caught up with the store; kept up to date by the component that feeds the hub.
        self.is_current = False

    def on_changes(self, changes: Changes) -> None:
        """Listener of the feeder: one dictionary lookup per change of a run without followers."""
        if changes.epoch != self._epoch:
            if self._epoch:  # another store: revisions restart, and reported states may not exist in it
                self.break_off()
            self._epoch = changes.epoch
        if not self._topics:
            return
        for item in changes.items:
            topic = self._topics.get(item.run.run_id if isinstance(item, Stored) else item.run_id)
            if topic is not None:
                topic.accept(item)

    def follow(self, run_id: str) -> Follower:
        """Subscribe to every change of this run from now on. Raises TooManyWatchers.

        A closed hub still returns a follower, which receives nothing: the stream then ends after its first snapshot.
        """
        if self.count >= self._followers_max:
            raise TooManyWatchers(f"{self.count} event streams are open")
        topic = self._topics.get(run_id)
        if topic is None:
            topic = _Topic(run_id)
            topic.is_broken = self._is_closed
            if not self._is_closed:
                self._topics[run_id] = topic
        follower = Follower(self, topic)
        topic.followers.add(follower)
        self.count += 1
        return follower

    def leave(self, follower: Follower, topic: _Topic) -> None:
        """Remove a follower; called when it closes."""
        topic.followers.discard(follower)
        self.count -= 1
        if not topic.followers and self._topics.get(topic.run_id) is topic:
            del self._topics[topic.run_id]

    def break_off(self) -> None:
        """End all open streams; new ones may begin. O(followers)."""
        topics, self._topics = self._topics, {}
        for topic in topics.values():
            topic.is_broken = True
            topic.end()

    def close(self) -> None:
        """End all streams, and end new ones immediately. Idempotent."""
        self._is_closed = True
        self.break_off()


class Lookout(Loop):
    """Ends the streams when no further change can arrive: NATS is unavailable (FLOW-128), or the server is stopping.

    What it cannot do: detect an outage shorter than its polling interval. The feed resumes after such an outage and
    delivers what was missed.
    """

    def __init__(
        self,
        hub: Hub,
        is_up: Callable[[], bool],
        is_fed: Callable[[float], Awaitable[bool]],
        is_stopping: Callable[[], bool],
    ) -> None:
        super().__init__(every_seconds=_LOOK_SECONDS)
        self._hub, self._is_up, self._is_fed, self._is_stopping = hub, is_up, is_fed, is_stopping

    async def turn(self) -> None:
        if self._is_stopping():
            self._hub.close()
        elif not self._is_up():
            self._hub.break_off()
        self._hub.is_current = await self._is_fed(0)
