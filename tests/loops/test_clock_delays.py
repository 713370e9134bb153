"""Delayed runs: started at their time, by keepers, whatever is lost in between (section 6 of the contract)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pyoco_server.actions.cancel import cancel
from pyoco_server.actions.queue_again import submission_of
from pyoco_server.actions.release_run import release_due, start_now
from pyoco_server.actions.submit import submit
from pyoco_server.core.delays import Delay
from pyoco_server.core.job import job_of
from pyoco_server.core.run import Caller
from pyoco_server.core.states import RunState
from pyoco_server.errors import NotDelayed
from pyoco_server.ports.alarms.port import AlarmKind
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.nats.link import Link
from pyoco_server.ports.runs.port import Stored
from support.backends import a_submission, a_world, jobs_left, run_now
from support.keepers import keeping
from support.waiting import eventually

CALLER = Caller()


@pytest.fixture
async def backend(link: Link, nats_url: str) -> AsyncIterator[Backend]:
    async with a_world(link, nats_url, abandon_after_sec=0.5) as backend:
        yield backend


async def _delayed(backend: Backend, seconds: float) -> str:
    stored = await submit(backend, CALLER, a_submission(delay=Delay(seconds=seconds)))
    return stored.run.run_id


async def _queued_at(link: Link, backend: Backend, run_id: str) -> float:
    """Wait for its job, and return when it was there."""

    async def is_queued() -> bool:
        return any(each["body"]["run_id"] == run_id for each in await jobs_left(link, backend.config))

    await eventually(is_queued, 10)
    return backend.clock()


async def test_a_delayed_run_has_no_job_before_its_time_and_one_soon_after(
    link: Link, backend: Backend, tmp_path: Path
) -> None:
    """DELAY-1, DELAY-4"""
    async with keeping(backend, tmp_path, count=2):
        run_id = await _delayed(backend, 0.4)
        due = (await run_now(backend, run_id)).not_before
        assert due is not None
        assert (await run_now(backend, run_id)).waits_for == "scheduled"
        assert await _queued_at(link, backend, run_id) >= due
    run = await run_now(backend, run_id)
    assert (run.status, run.waits_for, run.not_before) == (RunState.PENDING, None, due)
    assert len(await jobs_left(link, backend.config)) == 1


async def test_alarms_that_were_purged_or_never_set_do_not_lose_a_run(
    link: Link, backend: Backend, tmp_path: Path
) -> None:
    run_ids = [await _delayed(backend, 0.2) for _ in range(3)]  # no keeper receives them
    later = await _delayed(backend, 3600)
    async with keeping(backend, tmp_path):
        for run_id in run_ids:
            await _queued_at(link, backend, run_id)

        async def is_set() -> bool:
            return later in await backend.alarms.known(AlarmKind.RUN)

        await eventually(is_set, 10)
        await link.api(f"STREAM.PURGE.{backend.config.clock_stream}", {}, dict)
        assert not await is_set()
        await start_now(backend, CALLER, later)
        await _queued_at(link, backend, later)


async def test_a_deleted_stream_of_alarms_is_filled_again(link: Link, backend: Backend, tmp_path: Path) -> None:
    """SAFE-15"""
    run_id = await _delayed(backend, 3600)
    async with keeping(backend, tmp_path):
        name = backend.config.clock_stream

        async def is_set() -> bool:
            return run_id in await backend.alarms.known(AlarmKind.RUN)

        await eventually(is_set, 10)
        await link.api(f"STREAM.DELETE.{name}", {}, dict)
        assert await backend.resources.make_again(name)
        await eventually(is_set, 15)


async def test_start_now_queues_the_job_once_and_refuses_runs_that_do_not_wait(link: Link, backend: Backend) -> None:
    """DELAY-6"""
    run_id = await _delayed(backend, 3600)
    started = await start_now(backend, CALLER, run_id)
    assert started.run.waits_for is None
    assert [each["body"]["run_id"] for each in await jobs_left(link, backend.config)] == [run_id]
    with pytest.raises(NotDelayed):
        await start_now(backend, CALLER, run_id)


async def test_an_alarm_that_is_early_is_put_off_and_one_that_is_late_changes_nothing(
    link: Link, backend: Backend
) -> None:
    early = await _delayed(backend, 100)
    assert 99 < await release_due(backend, early) <= 100
    assert await jobs_left(link, backend.config) == []
    await cancel(backend, CALLER, early, None)
    assert await release_due(backend, early) == 0
    assert (await run_now(backend, early)).status is RunState.CANCELLING
    assert await jobs_left(link, backend.config) == []


async def test_a_crash_between_record_and_job_is_repaired_by_the_next_delivery(link: Link, backend: Backend) -> None:
    run_id = await _delayed(backend, 0.05)
    await asyncio.sleep(0.06)
    found = await backend.runs.find(run_id)
    assert isinstance(found, Stored)
    put = backend.queue.put
    try:

        async def crash(*_: object) -> None:
            raise asyncio.CancelledError

        backend.queue.put = crash  # type: ignore[method-assign, assignment]
        with pytest.raises(asyncio.CancelledError):
            await release_due(backend, run_id)
    finally:
        backend.queue.put = put  # type: ignore[method-assign]
    assert await jobs_left(link, backend.config) == []
    assert await release_due(backend, run_id) == 0
    assert [each["body"]["run_id"] for each in await jobs_left(link, backend.config)] == [run_id]


async def test_a_released_run_whose_job_is_missing_is_queued_and_not_ended(
    link: Link, backend: Backend, tmp_path: Path
) -> None:
    """Its alarm was deleted, and the process that released it crashed: the Rescuer queues it."""
    run_id = await _delayed(backend, 3600)
    put = backend.queue.put

    async def lose(*_: object) -> None: ...

    backend.queue.put = lose  # type: ignore[method-assign, assignment]
    await start_now(backend, CALLER, run_id)
    backend.queue.put = put  # type: ignore[method-assign]
    async with keeping(backend, tmp_path):
        await _queued_at(link, backend, run_id)
    assert (await run_now(backend, run_id)).status is RunState.PENDING


async def test_a_job_that_an_earlier_version_queued_too_early_is_dropped_by_the_claim(
    link: Link, backend: Backend
) -> None:
    from pyoco_server.actions.claim import Spent, claim_run
    from support.backends import ANNA

    run_id = await _delayed(backend, 3600)
    found = await backend.runs.find(run_id)
    assert isinstance(found, Stored)
    early = job_of(found.run, await submission_of(backend, found.run), found.revision - 1)
    assert isinstance(await claim_run(backend, early, ANNA, first_delivery=True), Spent)
    assert (await run_now(backend, run_id)).waits_for_time
