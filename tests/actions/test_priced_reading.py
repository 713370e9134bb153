"""Showing priced runs to their owners only."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from pyoco_server.actions.priced import intents
from pyoco_server.actions.priced.finalize import claim_end, finish
from pyoco_server.actions.priced.read_run import InlineResult, read_run
from pyoco_server.core.priced.constants import INLINE_MAX_BYTES
from pyoco_server.core.priced.instants import SECOND_US
from pyoco_server.core.priced.run import PricedRun, ResultPointer
from pyoco_server.core.states.priced import Actor, Basis, Status
from pyoco_server.errors import RunExpired, RunNotFound
from support.priced.faults import BEFORE, Trouble, with_trouble
from support.priced.ledgers import an_id
from support.priced.stacks import ACME, SQLITE, Stack, an_ask, open_stack


@pytest.fixture
async def stack(request: pytest.FixtureRequest) -> AsyncIterator[Stack]:
    async with open_stack(SQLITE, request) as stack:
        await stack.credit(1_000_000)
        yield stack


async def completed(
    stack: Stack, pointer: ResultPointer | None = None, data: object = "yes", inline: int = 0
) -> PricedRun:
    run = await stack.started(await stack.submitted(an_ask(inline=inline)))
    intent = intents.success(run, 50_000, pointer or await stack.upload(run, data))
    claimed = await claim_end(stack.priced, run, Basis.LEASE, Actor.WORKER, intent, run.lease_token)
    assert isinstance(claimed, PricedRun)
    await finish(stack.priced, claimed, Actor.WORKER)
    return await stack.row(run.run_id)


async def test_a_run_that_has_not_ended_has_no_result(stack: Stack) -> None:
    """PRICED-12, PRICED-75"""
    run = await stack.submitted()
    reading = await read_run(stack.priced, run.run_id, ACME)
    assert (reading.run.status, reading.result, reading.run.used_usd_micros) == (Status.QUEUED, None, 0)


async def test_a_failed_run_has_no_address(stack: Stack) -> None:
    """PRICED-12"""
    run = await stack.started(await stack.submitted())
    await stack.end(run, fails=True)
    reading = await read_run(stack.priced, run.run_id, ACME)
    assert (reading.run.status, reading.result, reading.run.used_usd_micros) == (Status.FAILED, None, 5_000)


async def test_a_result_is_signed_for_ten_minutes(stack: Stack) -> None:
    """PRICED-77, PRICED-168"""
    run = await completed(stack)
    reading = await read_run(stack.priced, run.run_id, ACME)
    result = reading.result
    assert result is not None
    assert run.result is not None
    assert (result.sha256, result.inline) == (run.result.sha256, None)
    assert result.expires_at == reading.now_us // SECOND_US + 600
    token = result.url.rpartition("/")[2]
    assert stack.priced.results.opens(token, reading.now_us // SECOND_US) == run.result.key


async def test_no_address_outlives_the_retention(stack: Stack) -> None:
    """PRICED-77, PRICED-167"""
    run = await completed(stack)
    stack.skew.move(stack.priced.config.priced_retention_sec - 60)
    reading = await read_run(stack.priced, run.run_id, ACME)
    assert reading.result is not None
    assert reading.result.expires_at == run.retention_until // SECOND_US


async def test_every_artifact_has_an_address_of_its_own(stack: Stack) -> None:
    run = await stack.started(await stack.submitted())
    one = {"name": "a.md", "key": "dpp/a.md", "sha256": "1" * 64, "bytes": 3, "content_type": "text/markdown"}
    pointer = replace(await stack.upload(run), artifacts=(one, one | {"name": "b.md", "key": "dpp/b.md"}))
    done = await completed(stack, pointer)
    reading = await read_run(stack.priced, done.run_id, ACME)
    assert reading.result is not None
    assert [(each.name, each.size_bytes) for each in reading.result.artifacts] == [("a.md", 3), ("b.md", 3)]
    assert len({each.url for each in reading.result.artifacts}) == 2


async def test_what_is_foreign_unknown_or_malformed_is_not_found(stack: Stack) -> None:
    """PRICED-78, PRICED-79, PRICED-187: before and after retention"""
    run = await stack.submitted()
    for _ in range(2):
        for run_id, tenant_id in (
            (run.run_id, "other"),
            (an_id(), ACME),
            ("no-uuid", ACME),
            (run.run_id.upper(), ACME),
        ):
            with pytest.raises(RunNotFound):
                await read_run(stack.priced, run_id, tenant_id)
        stack.skew.move(stack.priced.config.priced_retention_sec + 1)


async def test_after_retention_the_owner_is_told_so_with_the_money_facts(stack: Stack) -> None:
    """PRICED-80, PRICED-83: by the clock, not by the row; and still when the row is expired"""
    run = await completed(stack)
    stack.skew.move(stack.priced.config.priced_retention_sec)
    for _ in range(2):
        with pytest.raises(RunExpired) as expired:
            await read_run(stack.priced, run.run_id, ACME)
        told = expired.value
        assert (told.reserved_usd_micros, told.used_usd_micros, told.run_id) == (250_000, 50_000, run.run_id)
        await stack.keep()
    assert (await stack.row(run.run_id)).status is Status.EXPIRED


async def test_a_result_can_be_shown_inline(stack: Stack) -> None:
    """PRICED-76"""
    run = await completed(stack, data={"answer_text": "yes"}, inline=1)
    reading = await read_run(stack.priced, run.run_id, ACME)
    assert reading.result is not None
    assert reading.result.inline == InlineResult({"answer_text": "yes"})


async def test_a_large_result_is_not_shown_inline(stack: Stack) -> None:
    """PRICED-76: the stored envelope decides, to the byte"""
    room = INLINE_MAX_BYTES - len(json.dumps({"data": ""}))
    fits = await completed(stack, data="x" * room, inline=1)
    large = await completed(stack, data="x" * (room + 1), inline=1)
    shown = [(await read_run(stack.priced, run.run_id, ACME)).result for run in (fits, large)]
    assert [result.inline.omitted for result in shown if result and result.inline] == [None, "TOO_LARGE"]


async def test_a_store_that_cannot_be_read_leaves_the_inline_out(stack: Stack) -> None:
    """PRICED-76"""
    run = await completed(stack, inline=1)
    away = with_trouble(stack.priced, Trouble({"results.get": [BEFORE]}))
    for priced in (away, stack.priced):
        reading = await read_run(priced, run.run_id, ACME)
        assert reading.result is not None
        assert reading.result.inline == (InlineResult(omitted="UNAVAILABLE") if priced is away else InlineResult("yes"))


async def test_a_result_that_is_missing_or_was_changed_is_not_shown_inline(stack: Stack) -> None:
    """PRICED-169"""
    run = await stack.started(await stack.submitted(an_ask(inline=1)))
    real = await stack.upload(run)
    for pointer in (replace(real, sha256="0" * 64), replace(real, key="dpp/nothing")):
        done = await completed(stack, pointer, inline=1)
        reading = await read_run(stack.priced, done.run_id, ACME)
        assert reading.result is not None
        assert reading.result.inline == InlineResult(omitted="UNAVAILABLE")
