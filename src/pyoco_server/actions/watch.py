"""Follow one run as it changes."""

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

__all__ = ["HEARTBEAT_SECONDS", "NOTHING_LEFT", "Event", "EventKind", "Follower", "Hub", "Watch", "Watching", "Word"]
__all__ += ["next_word", "watch"]

log = get_logger(__name__)

#: FLOW-124, FLOW-207
HEARTBEAT_SECONDS = 5.0


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Word:
    """One stored state of a run, shared by everybody who watches it."""

    stored: Stored
    #: The last revision that changed more than `heartbeat_at` and `updated_at`: the same number, nothing to tell.
    content: int


def next_word(before: Word | None, stored: Stored) -> Word:
    """Compares once for all watchers: O(size of the run)."""
    if before is not None and _is_mere_beat(before.stored.run, stored.run):
        return Word(stored, before.content)
    return Word(stored, stored.revision)


def _is_mere_beat(before: Run, after: Run) -> bool:
    """FLOW-123"""
    try:
        return replace(before, heartbeat_at=after.heartbeat_at, updated_at=after.updated_at) == after
    except RecursionError:  # nested deeper than Python compares: better told once too often
        return False


class Follower(Protocol):
    """One watcher's place at the feed. It holds no queue: whoever is slow finds the latest word, not all of them."""

    #: Called once when the feed has ended for this follower, unless it closed itself.
    on_over: Callable[[], None] | None

    @property
    def word(self) -> Word | None:
        """The newest state of the run that anybody here knows of. It never goes back."""

    @property
    def is_over(self) -> bool:
        """Nothing more will come: the run is no longer stored, the feed broke off, or this follower is closed."""

    @property
    def is_current(self) -> bool:
        """Whether the feed has caught up with the store. If not, ask the store."""

    def offer(self, stored: Stored) -> None:
        """What was read elsewhere; it counts when it is newer."""

    async def wait(self, until: float) -> None:
        """Returns when there may be news, at the latest at `until` by the event loop's clock."""

    def close(self) -> None:
        """Give the place back. May be called twice."""


class Hub(Protocol):
    """Where changes come from: one consumer, any number of followers."""

    def follow(self, run_id: str) -> Follower:
        """Every change from now on. Raises TooManyWatchers."""


class EventKind(StrEnum):
    """FLOW-121"""

    SNAPSHOT = "snapshot"
    HEARTBEAT = "heartbeat"


@dataclass(frozen=True, slots=True)
class Event:
    kind: EventKind
    word: Word


@dataclass(frozen=True, kw_only=True)
class Watch:
    """What a watcher asks for."""

    run_id: str
    #: FLOW-118: the first snapshot is sent only when it is newer.
    since: float | None = None
    #: The revision of the last event that the watcher got. It says more than `since`, which is some worker's clock.
    last_revision: int | None = None
    #: FLOW-119
    timeout_seconds: float = 300.0
    heartbeat_seconds: float = HEARTBEAT_SECONDS


class _NothingLeft:
    """The watcher has the terminal snapshot already."""


NOTHING_LEFT = _NothingLeft()


async def watch(backend: GatewayBackend, caller: Caller, hub: Hub, ask: Watch) -> Watching | _NothingLeft:
    """Follow first, then read the leader, so that no change falls in between: one round trip.

    Raises RunNotFound (also for another tenant's run), TooManyWatchers, Unavailable. Close what it returns: it holds
    a place at the hub. A crash leaves nothing, for nothing is stored.
    """
    with contextlib.ExitStack() as undo:
        follower = hub.follow(ask.run_id)
        undo.callback(follower.close)
        follower.offer(await read_run(backend, caller, ask.run_id))
        word = follower.word
        if word is None:  # removed after it was read: the feed was faster
            raise RunNotFound
        if word.stored.run.is_terminal and ask.last_revision == word.stored.revision:
            return NOTHING_LEFT
        watching = Watching(backend, caller, follower, ask, word)
        undo.pop_all()
    return watching


def _is_known(ask: Watch, word: Word) -> bool:
    """Whether the watcher has the current state already."""
    if ask.last_revision is not None and ask.last_revision <= word.stored.revision:
        return ask.last_revision == word.stored.revision
    return ask.since is not None and word.stored.run.updated_at <= ask.since


class Watching:
    """The events of one watcher, one at a time. Memory is O(1), however fast the run and however slow the watcher."""

    def __init__(self, backend: GatewayBackend, caller: Caller, follower: Follower, ask: Watch, word: Word) -> None:
        self.follower = follower
        self._backend, self._caller, self._ask = backend, caller, ask
        self._loop = asyncio.get_running_loop()
        self._told_at = self._loop.time()
        #: When the stream ends at the latest, by the event loop's clock.
        self.ends_at = self._told_at + ask.timeout_seconds
        self._told: int | None = None
        self._is_done = False
        if _is_known(ask, word):
            self._told = word.content
            # Later than the end itself is no proof that the watcher has it: clocks differ. A heartbeat will tell.
            self._is_done = word.stored.run.is_terminal and word.stored.run.updated_at == ask.since

    async def next(self) -> Event | None:
        """The next event, as soon as it is due. None: there will be no more."""
        follower = self.follower
        while not self._is_done:
            word = self._latest()
            if word.content != self._told:
                return await self._tell(EventKind.SNAPSHOT, word)
            now = self._loop.time()
            if follower.is_over or now >= self.ends_at:
                break
            beats_at = self._told_at + self._ask.heartbeat_seconds
            if now < beats_at:
                await follower.wait(min(beats_at, self.ends_at))
            elif not await self._is_stored():
                break
            elif self._latest().content == self._told:
                return await self._tell(EventKind.HEARTBEAT, self._latest())
        self._is_done = True
        return None

    def _latest(self) -> Word:
        word = self.follower.word
        assert word is not None, "a word never goes back to none"
        return word

    async def _tell(self, kind: EventKind, word: Word) -> Event | None:
        if not await self._may_see():
            self._is_done = True
            return None
        self._told, self._told_at = word.content, self._loop.time()
        self._is_done = word.stored.run.is_terminal  # FLOW-125
        return Event(kind, word)

    async def _is_stored(self) -> bool:
        """Ask the store itself while the feed is behind: a long silence must not pass for a quiet run."""
        if self.follower.is_current:
            return True
        try:
            self.follower.offer(await read_run(self._backend, self._caller, self._ask.run_id))
        except (RunNotFound, Unavailable) as error:
            log.info("a watch ends early", run_id=self._ask.run_id, reason=type(error).__name__)
            return False
        return True

    async def _may_see(self) -> bool:
        """A key that was revoked or has expired shows nothing more. Costs a lookup in memory, if that."""
        if self._caller.api_key_id is None:
            return True
        try:
            record = await self._backend.keys.find(self._caller.api_key_id)
        except Unavailable:  # FLOW-264: a memory of keys that may be out of date opens nothing
            return False
        return record is not None and is_open(record, self._backend.clock())

    def close(self) -> None:
        """Give the place at the hub back. May be called twice, and while `next` waits: it then returns."""
        self.follower.close()
