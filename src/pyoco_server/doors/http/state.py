"""What a gateway keeps while it serves: its backend, and how far it has written."""

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
from pyoco_server.loops.tally import Tally
from pyoco_server.loops.trend import TrendSampler
from pyoco_server.ports.backend import GatewayBackend
from pyoco_server.ports.programs import Programs
from pyoco_server.ports.resources.port import StoreGone

__all__ = ["State", "caller_of", "programs_of", "state_of"]

#: How long a list waits for the index to be true. All waits together end before a gateway has to answer (5 s).
_SETTLE_SECONDS = 1.0
#: How long it waits for the gateway's own last write to show up in it.
_OWN_WRITE_SECONDS = 2.0
#: A keeper creates a queue again within this time.
_MADE_AGAIN_SECONDS = 30.0
#: Wheels on their way in at once: each lies on this gateway's disk meanwhile.
UPLOADS_MAX = 4
#: Inputs of packs on their way in at once, and those of one tenant: each lies on this gateway's disk meanwhile.
INPUTS_MAX, INPUTS_OF_TENANT_MAX = 32, 8
#: Jobs with large files on their way in at once, and those of one tenant: the same.
JOBS_MAX, JOBS_OF_TENANT_MAX = 32, 16
#: Files on their way out at once, and those of one tenant: a wheel or an artifact has some 2 MiB in memory, a result
#: is there whole.
DOWNLOADS_MAX, DOWNLOADS_OF_TENANT_MAX = 32, 24


class State:
    def __init__(self, backend: GatewayBackend) -> None:
        self.backend = backend
        #: The last hour, as this gateway has heard of it.
        self.trend = Trend()
        self._sampler = TrendSampler(backend, self.trend, self._lists_are_true)
        self.hub, self.tally = Hub(), Tally(backend.clock, self._sampler)
        self.feeder = IndexFeeder(backend.runs, backend.index, self.hub.on_changes, self.tally.on_changes)
        self.lookout = Lookout(self.hub, backend.is_up, self.feeder.caught_up, server_is_stopping)
        self.letter_feeder = DeadLetterFeeder(backend.dead_letters, backend.dead_letter_index)
        self._sweeper = None if backend.programs is None else ProgramSweeper(backend, backend.index, self.feeder)
        self._revision = 0
        self.slowdown, self.key_uses = Slowdown(), KeyUses(backend)
        #: None: this gateway knows nothing of priced runs.
        self.outlook = Outlook(backend.priced) if backend.priced is not None else None
        #: Whoever likes may ask, and each look writes to the ledger.
        self.readiness = SharedRead(self._readiness)
        #: Which resources were deleted in NATS (SAFE-14).
        self.missing = SharedRead(self._missing)
        #: Since when each has been missing, as far as this gateway has looked.
        self._missing_since: dict[str, float] = {}
        self.uploads = Turns(UPLOADS_MAX)
        self.downloads = FairTurns(DOWNLOADS_MAX, DOWNLOADS_OF_TENANT_MAX)
        self.inputs = FairTurns(INPUTS_MAX, INPUTS_OF_TENANT_MAX)
        self.jobs = FairTurns(JOBS_MAX, JOBS_OF_TENANT_MAX)
        self.run_times = RunTimes()
        #: Jobs that were submitted here and known already, by group.
        self.duplicates: Counter[str] = Counter()

    async def start(self) -> None:
        """Returns once lists are being made. Raises Unavailable."""
        await note_pepper(self.backend)
        await self.feeder.start()
        await self.letter_feeder.start()
        await self.lookout.start()
        await self._sampler.start()
        if self._sweeper is not None:
            await self._sweeper.start()
        await self.key_uses.start()  # with authentication off, `/v1` asks for keys all the same

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
        await self.letter_feeder.stop()
        await self.feeder.stop()

    async def _missing(self) -> tuple[StoreGone, ...]:
        gone, now = await self.backend.resources.missing(), self.backend.clock()
        self._missing_since = {each.name: self._missing_since.get(each.name, now) for each in gone}
        return gone

    async def lost(self) -> list[StoreGone]:
        """Those that a keeper does not create again, or has not in time (SAFE-15). Raises Unavailable."""
        gone, now = await self.missing(), self.backend.clock()
        late = {name for name, since in self._missing_since.items() if now - since > _MADE_AGAIN_SECONDS}
        return [each for each in gone if each.holds not in REBUILT or each.name in late]

    async def _readiness(self) -> Readiness:
        priced = self.backend.priced
        return NOT_READY if priced is None else await check_ready(priced)

    async def _lists_are_true(self) -> bool:
        """Without waiting for it."""
        return self.backend.is_up() and await self.feeder.caught_up(0)

    def told(self, revision: int) -> None:
        """Somebody knows of it: by an own write, or by what was read."""
        self._revision = max(self._revision, revision)

    async def settled(self) -> None:
        """Whoever was just given a run id, or saw a run end, finds that in the next list. Raises Unavailable when lists
        cannot be true."""
        if not self.backend.is_up():
            raise Unavailable("lists stand still while there is no connection to NATS")
        if not await self.feeder.caught_up(_SETTLE_SECONDS):
            await self._check_missing(Holds.RUNS)
            raise Unavailable("lists are not true: the index is still being made, or hears of no change")
        self.feeder.hurry()
        revision = self._revision
        if not await self.backend.index.applied(revision, _OWN_WRITE_SECONDS):
            await self._look_for(revision)

    async def _look_for(self, revision: int) -> None:
        """What was written last does not show. Raises Unavailable, unless it is stored no more: it has expired, or its
        bucket was made anew, and would be waited for until the revisions have come as far again."""
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
        """Raises ResourceMissing when that is why a list cannot be true (SAFE-14); Unavailable."""
        for gone in await self.missing():
            if gone.holds is holds:
                raise ResourceMissing(gone.name)

    async def letters_settled(self) -> None:
        """Returns once lists of dead letters are true. Raises Unavailable when they cannot be."""
        if not self.backend.is_up():
            raise Unavailable("lists stand still while there is no connection to NATS")
        if not await self.letter_feeder.caught_up(_SETTLE_SECONDS):
            await self._check_missing(Holds.LETTERS)
            raise Unavailable("lists are not true: the index of dead letters is still being made, or hears of none")


def state_of(request: Request) -> State:
    return cast(State, request.app.state.gateway)


def programs_of(request: Request) -> Programs:
    """Every gateway deals with programs."""
    programs = state_of(request).backend.programs
    assert programs is not None
    return programs


def caller_of(request: Request) -> Caller:
    """Who asks, as the guard at the entrance found out."""
    return cast(Caller, request.scope["caller"])
