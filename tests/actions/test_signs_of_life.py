"""A keeper ends nothing over a live worker's head: what counts as a sign of life."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from pyoco_server.actions.beat import beat_run
from pyoco_server.actions.cancel import cancel
from pyoco_server.actions.claim import FlowAttempt, claim_run
from pyoco_server.actions.put_back import put_back_run
from pyoco_server.actions.read import worker_facts, worker_of
from pyoco_server.actions.rescue import end_cancelled, life_seconds, rescue
from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.run import Caller, Owner
from pyoco_server.core.states import RunState, WorkerState
from pyoco_server.core.worker_record import WorkerRecord, stopped
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.runs.port import Stored
from support.backends import ANNA, BERT, Clock, opened_backend, recorded, run_now

DISCONNECT = 20.0


@pytest.fixture
def clock() -> Clock:
    """As the store's: a keeper compares the two."""
    return Clock(time.time())


@pytest.fixture
async def backend(config: NatsBackendConfig, clock: Clock) -> AsyncIterator[Backend]:
    quick = replace(config, worker_disconnect_timeout_sec=DISCONNECT, run_heartbeat_interval_sec=1.0)
    async with opened_backend(quick) as backend:
        yield replace(backend, clock=clock)


def a_worker(clock: Clock, owner: Owner, *running: str) -> WorkerRecord:
    return WorkerRecord(
        worker_id=owner.worker_id,
        instance_id=owner.instance_id,
        state=WorkerState.RUNNING,
        tags=("default",),
        last_seen_at=clock.now,
        last_heartbeat_at=clock.now,
        running=running,
    )


async def held_by_anna(backend: Backend) -> FlowAttempt:
    _, job = await recorded(backend)
    held = await claim_run(backend, job, ANNA, first_delivery=True)
    assert isinstance(held, FlowAttempt)
    return held


async def found(backend: Backend, run_id: str) -> Stored:
    stored = await backend.runs.find(run_id)
    assert isinstance(stored, Stored)
    return stored


class TestACancelledRunIsLeftToItsWorker:
    async def test_while_its_record_was_written_a_moment_ago_whatever_the_heartbeat_says(
        self, backend: Backend, clock: Clock
    ) -> None:
        """A worker with a clock of its own, a minute behind: its heartbeats look old the moment they are written."""
        behind = replace(backend, clock=lambda: clock.now - 60)
        held = await held_by_anna(behind)
        await cancel(backend, Caller(), held.run.run_id, None)
        assert (await found(backend, held.run.run_id)).run.heartbeat_at < clock.now - 50
        clock.now += DISCONNECT - 5
        assert await end_cancelled(backend, held.run.run_id, 2.0) is None
        assert (await run_now(backend, held.run.run_id)).status is RunState.CANCELLING
        clock.now += 100
        assert await end_cancelled(backend, held.run.run_id, 2.0) is not None

    async def test_while_the_worker_says_that_it_executes_it(self, backend: Backend, clock: Clock) -> None:
        """One whose PYOCO_RUN_HEARTBEAT_INTERVAL_SEC is longer than a keeper's patience."""
        held = await held_by_anna(backend)
        run_id = held.run.run_id
        await cancel(backend, Caller(), run_id, None)
        clock.now += 300
        await backend.registry.announce(a_worker(clock, ANNA, "other", run_id))
        assert await end_cancelled(backend, run_id, 2.0) is None
        assert await rescue(backend, run_id, 2.0) is None
        await beat_run(backend, held, None)  # it sees the request at its next check
        clock.now += DISCONNECT + 15
        assert await end_cancelled(backend, run_id, 2.0) is not None  # and now it says nothing at all

    @pytest.mark.parametrize("sign", ["other process", "not listed", "stopped", "silent", "nobody"])
    async def test_and_to_nobody_else(self, backend: Backend, clock: Clock, sign: str) -> None:
        held = await held_by_anna(backend)
        run_id = held.run.run_id
        await cancel(backend, Caller(), run_id, None)
        clock.now += 300
        alive = a_worker(clock, ANNA, run_id)
        if sign == "other process":
            await backend.registry.announce(replace(alive, instance_id="another"))
        elif sign == "not listed":
            await backend.registry.announce(a_worker(clock, ANNA, "other"))
        elif sign == "stopped":
            await backend.registry.announce(replace(stopped(alive, "sigterm", clock.now), running=(run_id,)))
        elif sign == "silent":
            await backend.registry.announce(replace(alive, last_seen_at=clock.now - DISCONNECT - 1))
        ended = await end_cancelled(backend, run_id, 2.0)
        assert ended is not None
        assert ended.status is RunState.CANCELLED

    async def test_only_if_it_has_one(self, backend: Backend, clock: Clock) -> None:
        """Put back: it has no owner, so the request needs no grace period."""
        held = await held_by_anna(backend)
        assert await put_back_run(backend, held)
        await cancel(backend, Caller(), held.run.run_id, None)
        clock.now += 60
        assert await life_seconds(backend, await found(backend, held.run.run_id)) == 0.0
        assert await end_cancelled(backend, held.run.run_id, 2.0) is not None


async def test_a_run_without_a_job_is_left_to_a_worker_that_executes_it(backend: Backend, clock: Clock) -> None:
    """Its heartbeats are rarer than `abandon_after_sec`."""
    held = await held_by_anna(backend)
    clock.now += 300
    await backend.registry.announce(a_worker(clock, ANNA, held.run.run_id))
    assert await rescue(backend, held.run.run_id, 60.0) is None
    clock.now += DISCONNECT + 1
    ended = await rescue(backend, held.run.run_id, 60.0)
    assert ended is not None
    assert ended.reason == "abandoned"


@pytest.mark.parametrize("odd", [">", "*", "x y", "a.*", ".", "x\r\n", "", "w" * 201], ids=ascii)
async def test_a_worker_with_an_odd_name_is_nobody(backend: Backend, clock: Clock, odd: str) -> None:
    """A stranger's record may hold any text there: it must not be answered with whatever fits it."""
    await backend.registry.announce(a_worker(clock, BERT))
    held = await held_by_anna(backend)
    run = replace(held.run, worker_id=odd)
    assert await worker_of(backend, run) is None
    facts = await worker_facts(backend, run)
    assert facts is not None
    assert (facts.alive, facts.tags) == (False, None)
