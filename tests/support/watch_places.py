"""A run in a real store and a reader that watches it, for tests."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pyoco_server.actions.watch import Watch, WatchEvent, Watching, watch
from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.flow_moves import accept, beat, claim, conclude
from pyoco_server.core.outcome import Completed, Progress
from pyoco_server.core.run import Caller, Run
from pyoco_server.loops.feeder import IndexFeeder
from pyoco_server.loops.hub import Hub
from pyoco_server.ports.backend import GatewayBackend
from pyoco_server.ports.runs.port import Changes, Stored
from pyoco_server.wiring import backend as wiring
from support.backends import ANNA, a_submission
from support.waiting import eventually

__all__ = ["ALICE", "Place", "place", "rest", "take", "told"]

ALICE = Caller("team-a", "key-a")


class Place:
    """A gateway's backend with a fed hub, and one run to watch."""

    def __init__(self, backend: GatewayBackend) -> None:
        self.backend, self.hub, self.run_id = backend, Hub(), str(uuid.uuid4())
        self._held: list[Changes] | None = None

    def feed(self, changes: Changes) -> None:
        if self._held is None:
            self.hub.on_changes(changes)
        else:
            self._held.append(changes)

    def hold_feed(self) -> None:
        """Changes arrive, and are held back until they are released."""
        self._held = []

    def let_feed_go(self) -> None:
        held, self._held = self._held or [], None
        for changes in held:
            self.hub.on_changes(changes)

    @property
    def held(self) -> int:
        return len(self._held or ())

    async def change(self, how: Callable[[Run], Run]) -> Stored:
        found = await self.backend.runs.find(self.run_id)
        assert isinstance(found, Stored)
        written = await self.backend.runs.replace(how(found.run), found.revision)
        assert isinstance(written, Stored)
        return written

    async def claim(self) -> Stored:
        return await self.change(lambda run: claim(run, ANNA, "attempt", 10.0))

    async def report(self, task_state: str, now: float = 20.0) -> Stored:
        return await self.change(lambda run: beat(run, Progress(tasks={"a": task_state}), now))

    async def beat(self, now: float) -> Stored:
        return await self.change(lambda run: beat(run, Progress(), now))

    async def end(self, now: float = 30.0) -> Stored:
        return await self.change(lambda run: conclude(run, Completed(progress=Progress()), now))

    async def told(self, stored: Stored) -> None:
        """Returns once the feed has passed this revision to a follower of the run."""
        with self.hub.follow(self.run_id) as follower:
            await eventually(
                lambda: follower.version is not None and follower.version.stored.revision >= stored.revision
            )

    async def watch(self, backend: GatewayBackend | None = None, **asked: Any) -> Watching:
        ask = Watch(run_id=self.run_id, **{"timeout_seconds": 280.0, "heartbeat_seconds": 250.0, **asked})
        watching = await watch(backend or self.backend, Caller(), self.hub, ask)
        assert isinstance(watching, Watching)
        return watching


@pytest.fixture
async def place(config: NatsBackendConfig, tmp_path: Path) -> AsyncIterator[Place]:
    async with wiring.open_gateway_backend(replace(config, data_dir=str(tmp_path))) as backend:
        place = Place(backend)
        feeder = IndexFeeder(backend.runs, backend.index, place.feed)
        await feeder.start()
        assert await feeder.caught_up(60)
        place.hub.is_current = True
        assert isinstance(await backend.runs.create(accept(a_submission(), ALICE, place.run_id, 1.0)), Stored)
        yield place
        await feeder.stop()
    assert place.hub.count == 0, "a place at the hub was not given back"


async def take(watching: Watching, seconds: float = 60.0) -> WatchEvent | None:
    async with asyncio.timeout(seconds):
        return await watching.next()


async def told(watching: Watching) -> tuple[str, str, int]:
    """The next event: its kind, the status and the revision it shows."""
    event = await take(watching)
    assert event is not None
    return str(event.kind), str(event.version.stored.run.status), event.version.stored.revision


async def rest(watching: Watching) -> list[WatchEvent]:
    found = []
    while (event := await take(watching)) is not None:
        found.append(event)
    return found
