"""A process dies at any step of a job; others find what it left, and the job goes exactly as if it had not (P30)."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from pyoco_server.actions.programs.cancel import cancel_job
from pyoco_server.actions.programs.finish import finish_job
from pyoco_server.actions.programs.reattach import reattach
from pyoco_server.actions.programs.slots import clear_abandoned
from pyoco_server.actions.programs.submit import Inline, submit_job
from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.programs.job import JobAsk
from pyoco_server.core.programs.report import Report
from pyoco_server.core.run import Caller, Run
from pyoco_server.core.states import RunState
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.nats.link import Link
from support.backends import dead_letters
from support.grid.acts import (
    BROKEN,
    DONE,
    FAILED,
    QUICK,
    an_ask,
    claimed,
    recovered,
    run_of,
    together,
)
from support.grid.crashes import POINTS, Crash, crashing_at
from support.grid.program_stage import a_store
from support.grid.story import assert_exact
from support.servers import unique
from support.waiting import eventually

#: What has to happen to a job so that a point is passed at all; else it just completes.
_ENDS: dict[str, Report] = {"finish.buried": FAILED, "finish.noted": FAILED}


@pytest.fixture
async def stores(link: Link, config: NatsBackendConfig) -> AsyncIterator[tuple[Backend, Backend]]:
    """Two processes of one group, whose ack timer is a second."""
    quick = replace(config, consumer_ack_wait_sec=1.0, ack_progress_interval_sec=0.3)
    group = unique("g")
    async with a_store(quick, group, **QUICK) as victim, a_store(quick, group, **QUICK) as rescuer:
        yield victim, rescuer


async def _submitted(victim: Backend, rescuer: Backend, ask: JobAsk) -> Run:
    """Who gets no answer asks again, elsewhere: always safe (GRID-49)."""
    files = {"in.txt": b"x" * 20_000}
    try:
        return (await submit_job(victim, Caller(), ask, Inline(files))).run
    except Crash:
        return (await submit_job(rescuer, Caller(), ask, Inline(files))).run


async def _live(victim: Backend, rescuer: Backend, point: str, client_id: str) -> str:
    """The life of one job, up to the death of its process. Returns its run id."""
    ask = an_ask(rescuer, {"in.txt": b"x" * 20_000}, client_id=client_id)
    run = await _submitted(victim, rescuer, ask)
    with contextlib.suppress(Crash):
        await _act(victim, rescuer, run, point)
    return run.run_id


async def _act(victim: Backend, rescuer: Backend, run: Run, point: str) -> None:
    if point.startswith("cancel"):
        await cancel_job(victim, run.run_id, "key-1", "no more")
    elif point.startswith("reattach"):
        attempt = await claimed(rescuer, run, holder="gone")
        await reattach(victim, run.run_id, attempt.attempt_id, worker_id="w1", holder="heir")
    elif point.startswith("put_back"):
        await finish_job(victim, await claimed(victim, run), BROKEN, ())
    elif not point.startswith("submit"):
        await finish_job(victim, await claimed(victim, run), _ENDS.get(point, DONE), ())


async def test_whatever_step_a_process_dies_at_the_job_ends_exactly(
    link: Link, stores: tuple[Backend, Backend], config: NatsBackendConfig
) -> None:
    """GRID-48, GRID-53, GRID-54, GRID-57, GRID-74, GRID-86, GRID-174 (P30, in one process)"""
    victim, rescuer = stores
    runs: dict[str, str] = {}

    async def die_and_recover(point: str) -> None:
        client_id = point.replace(".", "_")
        dying, seen = crashing_at(victim, point)
        run_id = runs[point] = await _live(dying, rescuer, point, client_id)
        assert point in seen, f"{point} was never reached"
        assert seen[-1] == point, f"{point} did not stop it"
        await recovered(rescuer, run_id, _ENDS.get(point, DONE))
        group = rescuer.programs.config.exec_group if rescuer.programs else ""

        async def no_slot_is_left() -> bool:
            await clear_abandoned(rescuer, group, client_id)
            return not rescuer.programs or not rescuer.programs.slots.held(group, client_id)

        await eventually(no_slot_is_left, 10)

    await together([lambda point=point: die_and_recover(point) for point in POINTS])  # type: ignore[misc]
    letters = [letter["body"] for letter in await dead_letters(link, config)]
    await assert_exact(rescuer, runs.values(), letters=letters)
    for point, run_id in runs.items():
        status = (await run_of(rescuer, run_id)).status
        expected = RunState.CANCELLED if point.startswith("cancel") else _ENDS.get(point, DONE).status
        assert status is expected, f"{point}: {status}"
