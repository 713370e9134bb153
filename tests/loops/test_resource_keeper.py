"""The duty that creates deleted queues again, and puts the jobs of the runs that wait."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pyoco_server.actions.rescue import rescue
from pyoco_server.config import GridConfig, NatsBackendConfig
from pyoco_server.core.flow_moves import beat, claim
from pyoco_server.core.holds import REBUILT, Holds
from pyoco_server.core.outcome import NOTHING_YET
from pyoco_server.core.run import Run
from pyoco_server.core.states import RunState
from pyoco_server.loops.feeder import IndexFeeder
from pyoco_server.loops.resource_keeper import ResourceKeeper
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.index.sqlite import SqliteIndex
from pyoco_server.ports.nats.link import Link
from pyoco_server.ports.runs.port import Stored
from pyoco_server.wiring import backend as wiring
from support.backends import ANNA, messages_of, recorded, run_now, submitted
from support.grid.acts import job_submitted


@contextlib.asynccontextmanager
async def keeper_of(backend: Backend, folder: Path, name: str = "index", **more: Any) -> AsyncIterator[ResourceKeeper]:
    """One whose turns the test takes, over an index that is true."""
    index = SqliteIndex(folder / f"{name}.sqlite")
    feeder = IndexFeeder(backend.runs, index)
    await feeder.start()
    try:
        assert await feeder.caught_up(30)
        yield ResourceKeeper(backend, index, feeder, **{"settle_seconds": 0.0, "young_seconds": 0.0} | more)
    finally:
        await feeder.stop()


@pytest.fixture
async def backend(config: NatsBackendConfig) -> AsyncIterator[Backend]:
    async with wiring.open_backend(config, "keeper") as backend:
        yield backend


async def delete(link: Link, stream: str) -> None:
    await link.api(f"STREAM.DELETE.{stream}", {}, dict[str, Any])


async def queued(link: Link, config: NatsBackendConfig) -> list[tuple[str, str]]:
    """Run id and message id of each job in the queue."""
    found = await messages_of(link, config.work_stream)
    return [(each["body"]["run_id"], each["headers"]) for each in found]


async def test_a_deleted_queue_is_created_again_and_holds_each_waiting_run_once(
    backend: Backend, link: Link, config: NatsBackendConfig, tmp_path: Path
) -> None:
    """SAFE-15: the same run ids and message ids, in the order in which the runs were submitted; whatever the number of
    keepers and turns."""
    run_ids = [await submitted(backend, "flow", name=f"n{number}") for number in range(5)]
    await delete(link, config.work_stream)
    async with keeper_of(backend, tmp_path, "a") as one, keeper_of(backend, tmp_path, "b") as other:
        for _ in range(2):
            await one.turn()
            await other.turn()
    jobs = await queued(link, config)
    assert [run_id for run_id, _ in jobs] == run_ids
    assert all(f"Nats-Msg-Id: {run_id}" in headers for run_id, headers in jobs)
    params = [each["body"]["params"] for each in await messages_of(link, config.work_stream)]
    assert params == [{"name": f"n{number}"} for number in range(5)]


async def test_a_keeper_that_starts_later_does_not_queue_them_again(
    backend: Backend, link: Link, config: NatsBackendConfig, tmp_path: Path
) -> None:
    """SAFE-15: the records are newer than the queue by then, so message ids need not be remembered."""
    await submitted(backend, "flow")
    await delete(link, config.work_stream)
    async with keeper_of(backend, tmp_path, "a") as keeper:
        await keeper.turn()
    await link.api(f"STREAM.PURGE.{config.work_stream}", {}, dict[str, Any])  # taken by a worker
    async with keeper_of(backend, tmp_path, "b") as keeper:
        await keeper.turn()
    assert await queued(link, config) == []


async def test_what_runs_or_has_ended_is_left_alone(
    backend: Backend, link: Link, config: NatsBackendConfig, tmp_path: Path
) -> None:
    """SAFE-15"""
    made, _ = await recorded(backend)
    await backend.runs.replace(claim(made.run, ANNA, "a1", backend.clock()), made.revision)
    await delete(link, config.work_stream)
    async with keeper_of(backend, tmp_path) as keeper:
        await keeper.turn()
    assert await queued(link, config) == []


async def test_a_submission_that_may_still_be_withdrawn_is_left_to_a_later_turn(
    backend: Backend, link: Link, config: NatsBackendConfig, tmp_path: Path
) -> None:
    """SAFE-14, SAFE-15: a run whose submission was just refused must not be executed."""
    made, _ = await recorded(backend)
    await delete(link, config.work_stream)
    async with keeper_of(backend, tmp_path, young_seconds=60.0) as keeper:
        await keeper.turn()
        assert await queued(link, config) == []
        assert await backend.runs.withdraw(made.run.run_id, made.revision)
        keeper._young_seconds = 0.0
        await keeper.turn()
    assert await queued(link, config) == []


async def test_it_waits_a_moment_before_it_creates_anything(
    backend: Backend, link: Link, config: NatsBackendConfig, tmp_path: Path
) -> None:
    """SAFE-15: a restore deletes a stream before it uploads the copy."""
    await delete(link, config.work_stream)
    async with keeper_of(backend, tmp_path, settle_seconds=10.0) as keeper:
        await keeper.turn()
        assert [each.name for each in await backend.resources.missing()] == [config.work_stream]
        keeper._settle_seconds = 0.0
        await keeper.turn()
    assert await backend.resources.missing() == ()


async def test_what_would_be_empty_is_reported_once_and_not_created(
    backend: Backend, link: Link, config: NatsBackendConfig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """SAFE-15"""
    wheels = f"OBJ_{config.wheel_object_store_bucket}"
    await delete(link, wheels)
    async with keeper_of(backend, tmp_path) as keeper:
        for _ in range(3):
            await keeper.turn()
            keeper.outage.settle()
    assert [each.name for each in await backend.resources.missing()] == [wheels]
    (told,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    fields = vars(told)["pyoco_fields"]
    assert (fields["resource"], fields["lost"]) == (wheels, "registered wheels")


async def test_a_run_whose_params_were_cut_off_is_not_queued_with_others(
    backend: Backend, link: Link, config: NatsBackendConfig, tmp_path: Path
) -> None:
    """SAFE-15"""
    made, _ = await recorded(backend)
    await backend.runs.replace(_cut(made), made.revision)
    await delete(link, config.work_stream)
    async with keeper_of(backend, tmp_path) as keeper:
        await keeper.turn()
    assert await queued(link, config) == []


def _cut(made: Stored) -> Run:
    return replace(beat(made.run, NOTHING_YET, made.run.updated_at), params={}, params_truncated=True)


async def test_the_rescuer_queues_such_a_run_instead_of_ending_it(
    backend: Backend, link: Link, config: NatsBackendConfig
) -> None:
    """SAFE-15: it may look before the other duty does."""
    made, _ = await recorded(backend)
    run_id = made.run.run_id
    await delete(link, config.work_stream)
    assert await backend.resources.make_again(config.work_stream)
    assert await rescue(backend, run_id, 0.0, submit_seconds=0.0) is None
    assert (await run_now(backend, run_id)).status is RunState.PENDING
    assert [each for each, _ in await queued(link, config)] == [run_id]


async def test_a_deleted_queue_of_programs_is_filled_again(
    link: Link, config: NatsBackendConfig, tmp_path: Path
) -> None:
    """SAFE-15"""
    grid = GridConfig()
    async with wiring.open_backend(config, "keeper", grid=grid) as backend:
        programs = backend.programs
        assert programs is not None
        run = (await job_submitted(backend)).run
        await delete(link, grid.exec_stream)
        async with keeper_of(backend, tmp_path) as keeper:
            for _ in range(2):
                await keeper.turn()
        assert [run_id for _, run_id in await programs.queue.listed()] == [run.run_id]


def test_only_what_is_made_of_other_records_is_created_empty() -> None:
    """SAFE-15"""
    assert {Holds.RUNS, Holds.KEYS, Holds.RECEIPTS, Holds.WHEELS, Holds.DEAD_LETTERS, Holds.SECRETS}.isdisjoint(REBUILT)
