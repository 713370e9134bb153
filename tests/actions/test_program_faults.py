"""Any call of any store fails, before it took effect or after: asked again, the job goes exactly all the same."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from pyoco_server.actions.programs.beat import beat
from pyoco_server.actions.programs.claim import free_slot
from pyoco_server.actions.programs.finish import finish_job
from pyoco_server.actions.programs.slots import clear_abandoned
from pyoco_server.actions.programs.submit import Inline, submit_job
from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.run import Caller
from pyoco_server.core.states import RunState
from pyoco_server.errors import Unavailable
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.nats.link import Link
from support.backends import dead_letters
from support.faulty_ports import AFTER, BEFORE, Trouble
from support.grid.acts import FAILED, QUICK, an_ask, claimed, recovered, run_of, together, troubled
from support.grid.program_stage import a_store
from support.grid.story import assert_exact
from support.servers import unique
from support.waiting import eventually

_TRIES = 5


@pytest.fixture
async def stores(config: NatsBackendConfig) -> AsyncIterator[tuple[Backend, Backend]]:
    quick = replace(config, consumer_ack_wait_sec=1.0, ack_progress_interval_sec=0.3)
    group = unique("g")
    async with a_store(quick, group, **QUICK) as one, a_store(quick, group, **QUICK) as other:
        yield one, other


async def _live(backend: Backend, client_id: str) -> str:
    """The life of a job that fails, by a process that asks again when it gets no answer."""
    ask = an_ask(backend, client_id=client_id)
    for _ in range(_TRIES):
        try:
            run = (await submit_job(backend, Caller(), ask, Inline({}))).run
            break
        except Unavailable:
            continue
    try:
        attempt = await claimed(backend, run)
    except Unavailable:
        return run.run_id  # the job is redelivered, to any worker
    with contextlib.suppress(Unavailable):
        await beat(backend, attempt)
    for _ in range(_TRIES):
        try:
            await finish_job(backend, attempt, FAILED, ())
            break
        except Unavailable:
            continue
    if attempt.slot is not None:
        await free_slot(backend, attempt.slot)
    return run.run_id


async def test_whatever_call_fails_the_job_ends_exactly(
    link: Link, stores: tuple[Backend, Backend], config: NatsBackendConfig
) -> None:
    """GRID-11, GRID-47, GRID-49, GRID-86, GRID-179"""
    one, other = stores
    calls = Trouble()
    await _live(troubled(one, calls), "clean")
    seen: Counter[str] = Counter()
    plans: list[tuple[str, list[str]]] = []
    for name in calls.calls:
        # What the ports promise never to raise is not asked to.
        if not name.endswith((".tell", ".client_queues", ".held")):
            plans += [(name, [""] * seen[name] + [fate]) for fate in (BEFORE, AFTER)]
        seen[name] += 1
    assert len(plans) > 20, calls.calls
    runs: dict[str, str] = {}

    async def live(number: int) -> None:
        name, fates = plans[number]
        client_id = f"c{number}"
        trouble = Trouble({name: list(fates)})
        label = f"{name} {fates}"
        run_id = runs[label] = await _live(troubled(one, trouble), client_id)
        assert not trouble.plan[name], f"{label} did not happen"
        run = await recovered(other, run_id, FAILED)
        assert run.status is RunState.FAILED, label
        group = run.program.group if run.program else ""

        async def no_slot_is_left() -> bool:
            await clear_abandoned(other, group, client_id)
            return not other.programs or not other.programs.slots.held(group, client_id)

        await eventually(no_slot_is_left, 10)

    await together([lambda number=number: live(number) for number in range(len(plans))])  # type: ignore[misc]
    letters = [letter["body"] for letter in await dead_letters(link, config)]
    await assert_exact(other, runs.values(), letters=letters)
    for run_id in runs.values():
        assert (await run_of(other, run_id)).attempt >= 1
