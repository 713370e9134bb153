"""Histories of real stores: one that keeps its promise is found right, and one that does not is found out."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from contracts.runs import a_run
from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.flow_moves import ask_cancel, beat, claim, conclude
from pyoco_server.core.outcome import Completed, Progress
from pyoco_server.core.run import Owner, Run
from pyoco_server.errors import Unavailable
from pyoco_server.ports.nats.link import Link, Patience, open_link
from pyoco_server.ports.nats.resources import resources_of
from pyoco_server.ports.runs.jetstream import JetStreamRuns
from pyoco_server.ports.runs.port import Lost, Runs, Stored
from storm.history import Put, Read, check
from storm.port import Site
from storm.recorder import RecordedRuns, Recorder
from support.servers import NatsServer, config_for
from support.waiting import eventually

_RUNS, _WRITERS, _ROUNDS = 4, 5, 25


async def whole_history(link: Link, config: NatsBackendConfig) -> None:
    """The bucket of runs, made to keep every revision."""
    name = f"KV_{config.runs_kv_bucket}"
    (runs,) = [item for item in resources_of(config) if item.name == name]
    await link.api(f"STREAM.CREATE.{name}", runs.config | {"max_msgs_per_subject": -1}, dict[str, Any])


class _Writers:
    """Who do with a few runs whatever is allowed, all at once, each from what he has read."""

    def __init__(self, runs: Runs, seed: int) -> None:
        self._runs, self._seed = runs, seed
        self._tokens = itertools.count()
        self.unanswered = 0

    async def work(self, rounds: int = _ROUNDS) -> None:
        made = [a_run() for _ in range(_RUNS)]
        # Two at once for each: one of them must lose.
        await asyncio.gather(*(self._tried(self._runs.create(run)) for run in [*made, *made]))
        run_ids = [run.run_id for run in made]
        await asyncio.gather(
            *(self._write(run_ids, random.Random(f"{self._seed} {n}"), rounds) for n in range(_WRITERS))
        )

    async def _write(self, run_ids: list[str], dice: random.Random, rounds: int) -> None:
        for _ in range(rounds):
            try:
                found = await self._runs.find(dice.choice(run_ids))
            except Unavailable:
                self.unanswered += 1
                continue
            if isinstance(found, Stored) and not found.run.is_terminal:
                await self._tried(self._runs.replace(self._changed(found.run, dice), found.revision))

    async def _tried(self, writing: Any) -> None:
        try:
            await writing
        except Unavailable:
            self.unanswered += 1

    def _changed(self, run: Run, dice: random.Random) -> Run:
        now = time.time()
        if run.status == "CANCELLING":
            return conclude(run, Completed(progress=Progress()), now)
        throw = dice.random()
        if run.status == "PENDING" or throw < 0.2:
            return claim(run, Owner("anna", "1"), f"token-{next(self._tokens)}", now)
        if throw < 0.25:
            return ask_cancel(run, None, now)
        return conclude(run, Completed(progress=Progress()), now) if throw < 0.27 else beat(run, Progress(), now)


class _Blind(JetStreamRuns):
    """A store that writes over whatever is there, and forgets to name it."""

    async def replace(self, run: Run, revision: int) -> Stored | Lost:
        data = self._encode(run, self._bytes_max)
        return Stored(run, await self._link.store(self._bucket.prefix + run.run_id, data))


class _Obliging(JetStreamRuns):
    """A store that looks what is newest, and names that instead of what it was told."""

    async def replace(self, run: Run, revision: int) -> Stored | Lost:
        found = await self.find(run.run_id)
        return await super().replace(run, found.revision)


@pytest.fixture
async def recorder(link: Link, config: NatsBackendConfig) -> AsyncIterator[Recorder]:
    await whole_history(link, config)
    site = Site(nodes=1, processes=[], nats_url=config.nats_url)
    async with Recorder(site, config.runs_kv_bucket) as recorder:
        yield recorder


def runs_in(kind: Callable[..., JetStreamRuns], link: Link, config: NatsBackendConfig) -> JetStreamRuns:
    return kind(link, config.runs_kv_bucket, config.max_run_snapshot_bytes)


async def test_writers_at_once_leave_a_history_of_one_register_per_run(
    link: Link, config: NatsBackendConfig, recorder: Recorder
) -> None:
    """FLOW-178"""
    runs = RecordedRuns(runs_in(JetStreamRuns, link, config), recorder.note)
    await _Writers(runs, 1).work()
    history = await recorder.history()
    assert check(history) == []
    assert len(history.keys) == _RUNS
    assert any(isinstance(put.outcome, int) for put in history.puts)
    assert any(put.outcome is not None and not isinstance(put.outcome, int) for put in history.puts), "nobody lost"
    assert len(history.seen) == history.writes
    assert all(write.replaced is not None for write in history.committed)


@pytest.mark.parametrize("kind", [_Blind, _Obliging])
async def test_a_store_that_ignores_the_expected_revision_is_found_out(
    kind: type[JetStreamRuns], link: Link, config: NatsBackendConfig, recorder: Recorder
) -> None:
    """FLOW-178"""
    runs = RecordedRuns(runs_in(kind, link, config), recorder.note)
    await _Writers(runs, 2).work()
    found = {violation.what for violation in check(await recorder.history())}
    wanted = {"a blind write"} if kind is _Blind else {"an acknowledged write is another by now"}
    assert found >= wanted


async def test_a_store_that_is_killed_meanwhile_forgets_nothing_it_has_acknowledged(
    own_nats_server: NatsServer,
) -> None:
    """FLOW-178: every answer that was given holds, and who was not answered has written once or not at all."""
    config = config_for(own_nats_server.url)
    link = await open_link(config.nats_url, "tests", Patience(down_seconds=60.0))
    try:
        await whole_history(link, config)
        site = Site(nodes=1, processes=[], nats_url=config.nats_url)
        async with Recorder(site, config.runs_kv_bucket) as recorder:
            calls = 0

            def note(event: Read | Put) -> None:
                nonlocal calls
                calls += 1
                recorder.note(event)

            runs = RecordedRuns(runs_in(JetStreamRuns, link, config), note)
            work = asyncio.create_task(_Writers(runs, 3).work())
            await eventually(lambda: calls > 40)
            assert not work.done()
            await asyncio.to_thread(own_nats_server.restart)
            await work
            assert check(await recorder.history()) == []
    finally:
        await link.close()
