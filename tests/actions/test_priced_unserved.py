"""Submissions that no worker can execute: refused before anything happens, unless the run was accepted before."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import pytest

from pyoco_server.actions.priced.submit import submit
from pyoco_server.core.worker_record import WorkerRecord
from pyoco_server.errors import Problem, Refused, Unavailable
from pyoco_server.ports.priced import Priced
from support.doctor_commands import a_worker
from support.priced.faults import Trouble, with_trouble
from support.priced.stacks import BOTH_MODES, Stack, an_ask, open_stack

DOLLAR = 1_000_000
LACKING = a_worker(packs=("ocr",), packs_missing={"decision": "the model cannot be reached"})
ABLE = a_worker(packs=("decision",))


@pytest.fixture(params=BOTH_MODES)
async def stack(request: pytest.FixtureRequest) -> AsyncIterator[Stack]:
    async with open_stack(request.param, request) as stack:
        await stack.credit(DOLLAR)
        yield stack


def among(priced: Priced, *workers: WorkerRecord) -> Priced:
    async def living() -> Sequence[WorkerRecord]:
        return workers

    return replace(priced, living_workers=living)


async def test_a_submission_that_no_worker_can_execute_is_refused_before_anything_is_written(stack: Stack) -> None:
    """SAFE-3: one read of the ledger, and no other call; the key is free afterwards"""
    trouble = Trouble()
    with pytest.raises(Refused) as refused:
        await submit(with_trouble(among(stack.priced, LACKING), trouble), an_ask("one-key-"))
    message = "decision cannot be executed now: the model cannot be reached"
    assert refused.value.problems == (Problem(("pack_type",), message, "unavailable"),)
    assert trouble.calls == ["ledger.read"]
    assert await stack.rows() == []
    assert await stack.balance() == DOLLAR
    assert not (await submit(among(stack.priced, LACKING, ABLE), an_ask("one-key-"))).replayed


async def test_what_was_accepted_while_a_worker_was_able_is_answered_with_its_receipt(stack: Stack) -> None:
    """SAFE-3, PRICED-73"""
    first = await submit(among(stack.priced, ABLE), an_ask("one-key-"))
    again = await submit(among(stack.priced, LACKING), an_ask("one-key-"))
    assert again.replayed
    assert again.run.run_id == first.run.run_id


async def test_a_submission_is_accepted_without_workers_and_without_their_registry(stack: Stack) -> None:
    """SAFE-3: a worker may start later; unknown abilities are no reason to refuse"""
    assert not (await submit(among(stack.priced), an_ask("one-key-"))).replayed

    async def silent() -> Sequence[WorkerRecord]:
        raise Unavailable("the registry does not answer")

    assert not (await submit(replace(stack.priced, living_workers=silent), an_ask("two-key-"))).replayed
