"""The state of a running gateway: its backend, and its newest known write."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import cast

from starlette.requests import Request

from pyoco_server.actions.note_pepper import note_pepper
from pyoco_server.actions.priced.check_ready import NOT_READY, Readiness, check_ready
from pyoco_server.actions.programs.measure import RunTimes
from pyoco_server.core.holds import REBUILT, Holds
from pyoco_server.core.run import Caller
from pyoco_server.core.trend import Trend
from pyoco_server.doors.http.event_stream import server_is_stopping
from pyoco_server.doors.http.outlook import Outlook, SharedRead
from pyoco_server.doors.http.slowdown import Slowdown
from pyoco_server.doors.http.turns import FairTurns, Turns
from pyoco_server.errors import ResourceMissing, Unavailable
from pyoco_server.loops.dead_letter_feeder import DeadLetterFeeder
from pyoco_server.loops.feeder import IndexFeeder
from pyoco_server.loops.hub import Hub, Lookout
from pyoco_server.loops.key_uses import KeyUses
from pyoco_server.loops.programs.sweeper import ProgramSweeper
from pyoco_server.loops.schedule_tally import ScheduleTally
from pyoco_server.loops.tally import Tally
from pyoco_server.loops.trend import TrendSampler
from pyoco_server.ports.backend import GatewayBackend
from pyoco_server.ports.programs import Programs
from pyoco_server.ports.resources.port import StoreGone

__all__ = ["State", "caller_of", "programs_of", "state_of"]

#: How long a list request waits for the index to catch up. All waits together end within the 5 s response limit.
_SETTLE_SECONDS = 1.0
#: How long it waits until the index contains the gateway's own last write.
_OWN_WRITE_SECONDS = 2.0
#: A keeper recreates a queue within this time.
_RECREATE_SECONDS = 30.0
#: Concurrent wheel uploads: each is spooled to this gateway's disk.
UPLOADS_MAX = 4
#: Concurrent uploads of pack inputs, in total and per tenant: each is spooled to this gateway's disk.
INPUTS_MAX, INPUTS_OF_TENANT_MAX = 32, 8
#: Concurrent uploads of jobs with large files, in total and per tenant: likewise.
JOBS_MAX, JOBS_OF_TENANT_MAX = 32, 16
#: Concurrent downloads, in total and per tenant: a wheel or artifact takes about 2 MiB of memory, a result is held in
#: memory completely.
DOWNLOADS_MAX, DOWNLOADS_OF_TENANT_MAX = 32, 24


class State:
    def __init__(self, backend: GatewayBackend) -> None:
        self.backend = backend
        #: The last hour, as observed by this gateway.
        self.trend = Trend()
        self._sampler = TrendSampler(backend, self.trend, self._lists_are_current)
        self.hub, self.tally = Hub(), Tally(backend.clock, self._sampler)
        self.feeder = IndexFeeder(backend.runs, backend.index, self.hub.on_changes, self.tally.on_changes)
        self.lookout = Lookout(self.hub, backend.is_up, self.feeder.caught_up, server_is_stopping)
        self.dead_letter_feeder = DeadLetterFeeder(backend.dead_letters, backend.dead_letter_index)
        self._sweeper = None if backend.programs is None else ProgramSweeper(backend, backend.index, self.feeder)
        scheduling = backend.scheduling
        self.schedules = None if scheduling is None else ScheduleTally(scheduling.schedules, backend.clock)
        self._revision = 0
        self.slowdown, self.key_uses = Slowdown(), KeyUses(backend)
        #: None if this gateway does not serve priced runs.
        self.outlook = Outlook(backend.priced) if backend.priced is not None else None
        #: Shared, because readiness needs no key and each check writes to the ledger.
        self.readiness = SharedRead(self._readiness)
        #: Resources that were deleted in NATS (SAFE-14).
        self.missing = SharedRead(self._missing)
        #: When this gateway first saw each resource missing.
        self._missing_since: dict[str, float] = {}
        self.uploads = Turns(UPLOADS_MAX)
        self.downloads = FairTurns(DOWNLOADS_MAX, DOWNLOADS_OF_TENANT_MAX)
        self.inputs = FairTurns(INPUTS_MAX, INPUTS_OF_TENANT_MAX)
        self.jobs = FairTurns(JOBS_MAX, JOBS_OF_TENANT_MAX)
        self.run_times = RunTimes()
        #: Submitted jobs that were already known, by group.
        self.duplicates: Counter[str] = Counter()

    async def start(self) -> None:
        """Return once the index feeders are running. Raises Unavailable."""
        await note_pepper(self.backend)
        await self.feeder.start()
        await self.dead_letter_feeder.start()
        await self.lookout.start()
        await self._sampler.start()
        if self._sweeper is not None:
            await self._sweeper.start()
        await self.key_uses.start()  # `/v1` requires keys even with authentication off

    async def stop(self) -> None:
        self.hub.close()
        await self.readiness.close()
        await self.missing.close()
        if self.outlook is not None:
            await self.outlook.close()
        if self._sweeper is not None:
            await self._sweeper.stop()
        await self._sampler.stop()
        await self.lookout.stop()
        await self.key_uses.stop()
        await self.dead_letter_feeder.stop()
        await self.feeder.stop()

    async def _missing(self) -> tuple[StoreGone, ...]:
        missing, now = await self.backend.resources.missing(), self.backend.clock()
        self._missing_since = {each.name: self._missing_since.get(each.name, now) for each in missing}
        return missing

    async def lost(self) -> list[StoreGone]:
        """Return the missing resources that a keeper does not recreate, or has not recreated in time (SAFE-15).

        Raises Unavailable.
        """
        missing, now = await self.missing(), self.backend.clock()
        late = {name for name, since in self._missing_since.items() if now - since > _RECREATE_SECONDS}
        return [each for each in missing if each.holds not in REBUILT or each.name in late]

    async def _readiness(self) -> Readiness:
        priced = self.backend.priced
        return NOT_READY if priced is None else await check_ready(priced)

    async def _lists_are_current(self) -> bool:
        """Return whether the index is current, without waiting."""
        return self.backend.is_up() and await self.feeder.caught_up(0)

    def note_revision(self, revision: int) -> None:
        """Note a revision that a caller has seen, by its own write or by a read; later lists must contain it."""
        self._revision = max(self._revision, revision)

    async def settled(self) -> None:
        """Wait until lists contain everything that callers have already seen, such as a new run id or the end of a run.

        Raises Unavailable if lists cannot be current.
        """
        if not self.backend.is_up():
            raise Unavailable("lists are not updated while there is no connection to NATS")
        if not await self.feeder.caught_up(_SETTLE_SECONDS):
            await self._check_missing(Holds.RUNS)
            raise Unavailable("lists are not current: the index is still being built, or receives no changes")
        self.feeder.hurry()
        revision = self._revision
        if not await self.backend.index.applied(revision, _OWN_WRITE_SECONDS):
            await self._check_newest(revision)

    async def _check_newest(self, revision: int) -> None:
        """Handle a noted revision that the index does not contain.

        Raises Unavailable, unless the revision no longer exists: it has expired, or its bucket was recreated. Lists
        would then wait until the revision numbers have grown that far again.
        """
        try:
            async with asyncio.timeout(_SETTLE_SECONDS):
                newest = await self.backend.runs.newest()
        except TimeoutError:
            raise Unavailable("lists cannot be compared with what is stored") from None
        if not await self.backend.index.applied(newest, 0):
            raise Unavailable("lists do not show what was written last")
        if self._revision == revision:
            self._revision = newest

    async def _check_missing(self, holds: Holds) -> None:
        """Raises ResourceMissing if that is why lists cannot be current (SAFE-14); Unavailable."""
        for resource in await self.missing():
            if resource.holds is holds:
                raise ResourceMissing(resource.name)

    async def dead_letters_settled(self) -> None:
        """Wait until the lists of dead letters are current. Raises Unavailable if they cannot be."""
        if not self.backend.is_up():
            raise Unavailable("lists are not updated while there is no connection to NATS")
        if not await self.dead_letter_feeder.caught_up(_SETTLE_SECONDS):
            await self._check_missing(Holds.DEAD_LETTERS)
            raise Unavailable(
                "lists are not current: the index of dead letters is still being built, or receives no changes"
            )


def state_of(request: Request) -> State:
    return cast(State, request.app.state.gateway)


def programs_of(request: Request) -> Programs:
    """Return the program resources, which every gateway has."""
    programs = state_of(request).backend.programs
    assert programs is not None
    return programs


def caller_of(request: Request) -> Caller:
    """Return the caller that the guard identified."""
    return cast(Caller, request.scope["caller"])
