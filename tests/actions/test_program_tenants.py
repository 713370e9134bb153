"""Two tenants use one client id: their lanes, slots and caps are apart (SAFE-4)."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from pyoco_server.actions.programs.claim import Passed, claim_job, take_slot
from pyoco_server.actions.programs.reach import programs_of
from pyoco_server.actions.programs.set_cap import set_cap
from pyoco_server.actions.programs.show_cap import show_cap
from pyoco_server.actions.programs.slots import cap_of
from pyoco_server.actions.programs.submit import Inline, submit_job
from pyoco_server.core.programs.job import ProgramJob
from pyoco_server.core.programs.message import read_job
from pyoco_server.core.programs.moves import program_of
from pyoco_server.core.programs.names import client_id_of, client_key, shown_clients, tenant_token_of
from pyoco_server.core.run import Caller, Run
from pyoco_server.core.states import RunState
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.program_queue.port import ClientQueue
from support.grid.acts import an_ask, claimed, run_of, taken

ANNA, BERT = Caller("team-a", "k1"), Caller("team-b", "k2")


def group_of(backend: Backend) -> str:
    return programs_of(backend).config.exec_group


async def submitted(backend: Backend, caller: Caller, **more: Any) -> Run:
    return (await submit_job(backend, caller, an_ask(backend, **more), Inline({}))).run


@pytest.mark.parametrize("tenant", ["team-a", "A_b-9", "x" * 128])
def test_a_client_key_is_taken_apart_again(tenant: str) -> None:
    key = client_key("clientA", tenant)
    assert (client_id_of(key), tenant_token_of(key)) == ("clientA", tenant)
    assert (client_id_of("clientA"), tenant_token_of("clientA")) == ("clientA", None)


@pytest.mark.parametrize("tenant", ["a.b", "a=b", "*", ">", "a b", "ü"])
def test_a_tenant_of_another_form_cannot_break_a_subject(tenant: str) -> None:
    token = tenant_token_of(client_key("clientA", tenant))
    assert token is not None
    assert len(token) == 64
    assert token.isalnum()


def test_a_client_is_shown_by_its_id_unless_two_tenants_use_it() -> None:
    assert shown_clients(["a", "b=t1"]) == {"a": "a", "b=t1": "b"}
    assert shown_clients(["a", "a=t1", "b=t1", "b=t2"]) == {each: each for each in ("a", "a=t1", "b=t1", "b=t2")}


async def test_the_cap_of_one_tenant_is_not_that_of_another(grid: Backend) -> None:
    """SAFE-4"""
    group = group_of(grid)
    for tenant, cap in ((None, 1), ("team-a", 2), ("team-b", 3)):
        await set_cap(grid, group, client_key("clientA", tenant), cap, "http")
    for tenant, cap in ((None, 1), ("team-a", 2), ("team-b", 3), ("team-c", 4)):
        client = client_key("clientA", tenant)
        assert cap_of(programs_of(grid), group, client) == cap
        assert show_cap(programs_of(grid), group, client).client_id == "clientA"


async def test_a_tenant_at_its_cap_delays_no_other(grid: Backend) -> None:
    """SAFE-4"""
    group = group_of(grid)
    await set_cap(grid, group, client_key("clientA", "team-a"), 1, "http")
    mine, more, other = [await submitted(grid, caller) for caller in (ANNA, ANNA, BERT)]
    attempt = await claimed(grid, mine)
    assert attempt.slot is not None
    assert attempt.slot.client == "clientA=team-a"
    assert await take_slot(grid, group, client_key("clientA", "team-a"), "me") is None
    assert (await claimed(grid, other)).run.tenant_id == "team-b"
    assert (await run_of(grid, more.run_id)).status is RunState.PENDING


async def test_a_message_of_a_version_without_tenants_is_moved_to_its_tenants_lane(grid: Backend) -> None:
    """SAFE-4: it is not assigned meanwhile, and it is run once"""
    run = await submitted(grid, ANNA)
    old, delivery = await _queued_as_before(grid, run)
    slot = await take_slot(grid, old.group, "clientA", "me")
    assert slot is not None
    passed = await claim_job(grid, delivery, slot, worker_id="w1", holder="me")
    assert isinstance(passed, Passed)
    assert (await run_of(grid, run.run_id)).attempt == 0
    assert not await programs_of(grid).queue.take(_old_client_queue(old))
    attempt = await claimed(grid, run)
    assert (attempt.run.status, attempt.run.attempt) == (RunState.RUNNING, 1)


async def test_such_a_message_of_a_run_that_has_ended_leaves_the_queue(grid: Backend) -> None:
    run = await submitted(grid, ANNA)
    old, delivery = await _queued_as_before(grid, run)
    await grid.runs.replace(dataclasses.replace(run, status=RunState.CANCELLED), (await _found(grid, run)))
    slot = await take_slot(grid, old.group, "clientA", "me")
    assert slot is not None
    assert isinstance(await claim_job(grid, delivery, slot, worker_id="w1", holder="me"), Passed)
    assert run.run_id not in [run_id for _, run_id in await programs_of(grid).queue.listed()]


async def _found(backend: Backend, run: Run) -> int:
    return (await backend.runs.find(run.run_id)).revision


def _old_client_queue(job: ProgramJob) -> ClientQueue:
    return ClientQueue(job.group, job.exec_name, job.client_id)


class _Old(ProgramJob):
    @property
    def subject_tokens(self) -> tuple[str, str, str, str]:
        return self.old_subject_tokens


async def _queued_as_before(backend: Backend, run: Run) -> tuple[ProgramJob, Any]:
    """Its message under the subject of its client id alone; and that message in hand."""
    queue = programs_of(backend).queue
    job = read_job(program_of(run).job or {})
    assert await queue.remove(job)
    old = _Old(**vars(job))
    await queue.add_client_queue(_old_client_queue(old))
    await queue.put(old)
    without_tenant = dataclasses.replace(run, tenant_id=None)
    return old, await taken(backend, without_tenant)
