"""Follow the changes of one run."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Protocol

from pyoco_server.actions.read import read_run
from pyoco_server.core.api_key import is_open
from pyoco_server.core.run import Caller, Run
from pyoco_server.errors import RunNotFound, Unavailable
from pyoco_server.logs import get_logger
from pyoco_server.ports.backend import GatewayBackend
from pyoco_server.ports.runs.port import Stored

__all__ = ["HEARTBEAT_SECONDS", "NOTHING_LEFT", "EventKind", "Follower", "Hub", "RunVersion", "Watch", "WatchEvent"]
__all__ += ["Watching", "may_still_see", "next_version", "watch"]

log = get_logger(__name__)

#: FLOW-124, FLOW-207
HEARTBEAT_SECONDS = 5.0


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class RunVersion:
    """One stored state of a run, shared by all of its watchers."""

    stored: Stored
    #: The last revision that changed more than `heartbeat_at` and `updated_at`. The same number means nothing new to
    #: send.
    content: int


def next_version(before: RunVersion | None, stored: Stored) -> RunVersion:
    """Return the version for a newly stored state. Compares once for all watchers: O(size of the run)."""
    if before is not None and _is_heartbeat_only(before.stored.run, stored.run):
        return RunVersion(stored, before.content)
    return RunVersion(stored, stored.revision)


def _is_heartbeat_only(before: Run, after: Run) -> bool:
    """Whether only the heartbeat differs (FLOW-123)."""
    try:
        return replace(before, heartbeat_at=after.heartbeat_at, updated_at=after.updated_at) == after
    except RecursionError:  # nested deeper than Python can compare: rather send one snapshot too many
        return False


class Follower(Protocol):
    """One watcher's subscription to the feed. It has no queue: a slow watcher gets the latest state, not every
    state."""

    #: Called once when the feed has ended for this follower, unless it closed itself.
    on_over: Callable[[], None] | None

    @property
    def version(self) -> RunVersion | None:
        """The newest known state of the run. Never goes back to an older one."""

    @property
    def is_over(self) -> bool:
        """Whether no more changes will come: the run was deleted, the feed broke off, or this follower is closed."""

    @property
    def is_current(self) -> bool:
        """Whether the feed has caught up with the store. If not, read the store."""

    def offer(self, stored: Stored) -> None:
        """Offer a state that was read elsewhere; it is used if it is newer."""

    async def wait(self, until: float) -> None:
        """Return when there may be a change, at the latest at `until` by the event loop's clock."""

    def wake(self) -> None:
        """Let `wait` return now."""

    def close(self) -> None:
        """Release the subscription. May be called twice."""


class Hub(Protocol):
    """The source of changes: one consumer, any number of followers."""

    def follow(self, run_id: str) -> Follower:
        """Follow every change from now on. Raises TooManyWatchers."""


class EventKind(StrEnum):
    """The kinds of events (FLOW-121)."""

    SNAPSHOT = "snapshot"
    HEARTBEAT = "heartbeat"


@dataclass(frozen=True, slots=True)
class WatchEvent:
    kind: EventKind
    version: RunVersion


@dataclass(frozen=True, kw_only=True)
class Watch:
    """What a watcher requests."""

    run_id: str
    #: FLOW-118: the first snapshot is sent only if it is newer.
    since: float | None = None
    #: The revision of the last event that the watcher received. More reliable than `since`, which comes from a worker's
    #: clock.
    last_revision: int | None = None
    #: FLOW-119
    timeout_seconds: float = 300.0
    heartbeat_seconds: float = HEARTBEAT_SECONDS


class _NothingLeft:
    """The watcher already has the terminal snapshot."""


NOTHING_LEFT = _NothingLeft()


async def watch(backend: GatewayBackend, caller: Caller, hub: Hub, ask: Watch) -> Watching | _NothingLeft:
    """Follow the run first, then read it from the leader, so that no change is missed in between: one round trip.

    Raises RunNotFound (also for another tenant's run), TooManyWatchers, Unavailable. Close the returned object: it
    holds a subscription to the hub. Nothing is stored, so a crash leaves nothing.
    """
    with contextlib.ExitStack() as undo:
        follower = hub.follow(ask.run_id)
        undo.callback(follower.close)
        follower.offer(await read_run(backend, caller, ask.run_id))
        version = follower.version
        if version is None:  # deleted after it was read: the feed was faster
            raise RunNotFound
        if version.stored.run.is_terminal and ask.last_revision == version.stored.revision:
            return NOTHING_LEFT
        watching = Watching(backend, caller, follower, ask, version)
        undo.pop_all()
    return watching


def _is_known(ask: Watch, version: RunVersion) -> bool:
    """Whether the watcher already has the current state."""
    if ask.last_revision is not None and ask.last_revision <= version.stored.revision:
        return ask.last_revision == version.stored.revision
    return ask.since is not None and version.stored.run.updated_at <= ask.since


async def may_still_see(backend: GatewayBackend, caller: Caller) -> bool:
    """Whether the caller of an open stream may see more: a revoked or expired key shows nothing more. A lookup in
    memory at most."""
    if caller.api_key_id is None:
        return True
    try:
        record = await backend.keys.find(caller.api_key_id)
    except Unavailable:  # FLOW-264: a key cache that may be out of date grants nothing
        return False
    return record is not None and is_open(record, backend.clock())


class Watching:
    """The events of one watcher, one at a time. Memory is O(1), however fast the run and however slow the watcher."""

    def __init__(
        self, backend: GatewayBackend, caller: Caller, follower: Follower, ask: Watch, version: RunVersion
    ) -> None:
        self.follower = follower
        self._backend, self._caller, self._ask = backend, caller, ask
        self._loop = asyncio.get_running_loop()
        self._sent_at = self._loop.time()
        #: When the stream ends at the latest, by the event loop's clock.
        self.ends_at = self._sent_at + ask.timeout_seconds
        self._sent: int | None = None
        self._is_done = False
        if _is_known(ask, version):
            self._sent = version.content
            # A `since` later than the terminal update does not prove that the watcher has it: clocks differ. A
            # heartbeat delivers it.
            self._is_done = version.stored.run.is_terminal and version.stored.run.updated_at == ask.since

    async def next(self) -> WatchEvent | None:
        """Return the next event, as soon as it is due. Returns None if there will be no more."""
        follower = self.follower
        while not self._is_done:
            version = self._latest()
            if version.content != self._sent:
                return await self._event(EventKind.SNAPSHOT, version)
            now = self._loop.time()
            if follower.is_over or now >= self.ends_at:
                break
            beats_at = self._sent_at + self._ask.heartbeat_seconds
            if now < beats_at:
                await follower.wait(min(beats_at, self.ends_at))
            elif not await self._is_stored():
                break
            elif self._latest().content == self._sent:
                return await self._event(EventKind.HEARTBEAT, self._latest())
        self._is_done = True
        return None

    def _latest(self) -> RunVersion:
        version = self.follower.version
        assert version is not None, "a follower that has a state never loses it"
        return version

    async def _event(self, kind: EventKind, version: RunVersion) -> WatchEvent | None:
        if not await may_still_see(self._backend, self._caller):
            self._is_done = True
            return None
        self._sent, self._sent_at = version.content, self._loop.time()
        self._is_done = version.stored.run.is_terminal  # FLOW-125
        return WatchEvent(kind, version)

    async def _is_stored(self) -> bool:
        """Read the store itself while the feed is lagging: a lagging feed must not look like a run without changes."""
        if self.follower.is_current:
            return True
        try:
            self.follower.offer(await read_run(self._backend, self._caller, self._ask.run_id))
        except (RunNotFound, Unavailable) as error:
            log.info("watch ends early", run_id=self._ask.run_id, reason=type(error).__name__)
            return False
        return True

    def close(self) -> None:
        """Release the subscription to the hub. May be called twice, and while `next` waits: `next` then returns."""
        self.follower.close()
