"""Starting priced runs and keeping their lease."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from sqlalchemy import create_engine, text

from pyoco_server.actions.priced import beat as beat_module
from pyoco_server.actions.priced import start as start_module
from pyoco_server.actions.priced.beat import beat, keep_hidden
from pyoco_server.actions.priced.start import PutBack, Skip, Started, start_run
from pyoco_server.core.states.priced import Money, Stage, Status
from pyoco_server.errors import DependencyUnavailable
from pyoco_server.ports.ledger.sql import SqlLedger
from pyoco_server.ports.pack_queue.port import Delivery
from support.priced.faults import AFTER, BEFORE, Trouble, with_trouble
from support.priced.ledgers import an_id
from support.priced.stacks import BOTH_MODES, QUICK_SPLIT, SQLITE, Stack, an_ask, message_of, open_stack

IN_HAND = Delivery(b"", 1, None)


@pytest.fixture(params=BOTH_MODES)
async def stack(request: pytest.FixtureRequest) -> AsyncIterator[Stack]:
    async with open_stack(request.param, request) as stack:
        await stack.credit(1_000_000)
        yield stack


@pytest.fixture
async def joint(request: pytest.FixtureRequest) -> AsyncIterator[Stack]:
    async with open_stack(SQLITE, request) as stack:
        await stack.credit(1_000_000)
        yield stack


@pytest.fixture
async def split(request: pytest.FixtureRequest) -> AsyncIterator[Stack]:
    async with open_stack(QUICK_SPLIT, request) as stack:
        await stack.credit(1_000_000)
        yield stack


async def test_a_run_is_started_once_with_its_inputs(stack: Stack) -> None:
    """PRICED-32, PRICED-108, PRICED-111, PRICED-112, PRICED-121: T4"""
    run = await stack.submitted(an_ask(inputs={"question": "why?"}))
    started = await start_run(stack.priced, message_of(run), IN_HAND)
    assert isinstance(started, Started)
    assert started.inputs == {"question": "why?"}
    assert (started.run.status, started.run.money, started.run.stage) == (
        Status.PROCESSING,
        Money.RESERVED,
        Stage.OPEN,
    )
    assert started.run.lease_token is not None
    assert isinstance(await start_run(stack.priced, message_of(run), IN_HAND), Skip)
    assert stack.shown[-1] == started.run


async def test_a_message_that_does_not_fit_is_not_acknowledged(joint: Stack) -> None:
    """PRICED-106"""
    run = await joint.submitted()
    message = message_of(run)
    strange = (replace(message, run_id=an_id()), replace(message, tenant_id="other"), replace(message, pack_type="ocr"))
    for each in strange:
        got = await start_run(joint.priced, each, IN_HAND)
        assert isinstance(got, PutBack)
        assert not got.is_outage
    assert (await joint.row(run.run_id)).status is Status.QUEUED


async def test_a_run_without_inputs_is_not_started(joint: Stack) -> None:
    """What was begun is rolled back, so that its money comes back in time."""
    run = await joint.submitted()
    assert isinstance(joint.bare.ledger, SqlLedger)
    for change in ("UPDATE run_inputs SET inputs_json = '{'", "DELETE FROM run_inputs"):
        engine = create_engine(joint.bare.ledger._url)
        with engine.begin() as connection:
            connection.execute(text(change))
        engine.dispose()
        got = await start_run(joint.priced, message_of(run), IN_HAND)
        assert isinstance(got, PutBack)
        assert not got.is_outage
    assert (await joint.row(run.run_id)).status is Status.QUEUED


async def test_a_run_that_waited_too_long_is_not_started(joint: Stack) -> None:
    """PRICED-50, D-2: the sweeper may have it"""
    run = await joint.submitted()
    joint.skew.move(3600)
    assert isinstance(await start_run(joint.priced, message_of(run), IN_HAND), Skip)


async def test_a_ledger_that_is_away_puts_the_message_back(joint: Stack) -> None:
    """PRICED-112"""
    run = await joint.submitted()
    away = with_trouble(joint.priced, Trouble({"ledger.transact": [BEFORE]}))
    assert await start_run(away, message_of(run), IN_HAND) == PutBack(30, "the ledger did not answer", is_outage=True)
    gone = with_trouble(joint.priced, Trouble({"ledger.transact": [BEFORE], "ledger.read": [BEFORE]}))
    assert isinstance(await start_run(gone, message_of(run), IN_HAND), PutBack)
    assert isinstance(await start_run(joint.priced, message_of(run), IN_HAND), Started)


async def test_a_start_whose_answer_is_lost_is_found_by_its_lease(joint: Stack) -> None:
    run = await joint.submitted(an_ask(inputs={"question": "why?"}))
    trouble = Trouble({"ledger.transact": [AFTER]})
    started = await start_run(with_trouble(joint.priced, trouble), message_of(run), IN_HAND)
    assert isinstance(started, Started)
    assert started.inputs == {"question": "why?"}
    assert await beat(joint.priced, started.run, started.run.lease_token or "")


async def test_a_lease_in_redis_decides_nothing(split: Stack) -> None:
    """PRICED-113, D-37"""
    run = await split.submitted()
    trouble = Trouble({"idempotency_locks.lease": [BEFORE], "idempotency_locks.extend_lease": [BEFORE]})
    away = with_trouble(split.priced, trouble)
    started = await start_run(away, message_of(run), IN_HAND)
    assert isinstance(started, Started)
    assert await beat(away, started.run, started.run.lease_token or "")


async def test_a_heartbeat_renews_the_lease_and_the_message(stack: Stack) -> None:
    """PRICED-122: T5; the version stays"""
    run = await stack.submitted()
    [delivery] = await stack.deliveries()
    started = await stack.started(run)
    token = started.lease_token or ""
    for _ in range(3):
        stack.skew.move(100)
        assert await beat(stack.priced, started, token)
        await keep_hidden(stack.priced, started, token, delivery)
    row = await stack.row(run.run_id)
    assert row.version == started.version
    assert started.lease_expires_at is not None
    assert row.lease_expires_at is not None
    assert row.lease_expires_at >= started.lease_expires_at + 300_000_000
    assert not await beat(stack.priced, started, "another's")


async def test_a_lost_lease_cannot_be_had_again(stack: Stack) -> None:
    """PRICED-123, PRICED-27"""
    started = await stack.started(await stack.submitted())
    stack.skew.move(121)
    trouble = Trouble()
    assert not await beat(with_trouble(stack.priced, trouble), started, started.lease_token or "")
    assert trouble.calls == ["ledger.transact_softly"]


async def test_a_heartbeat_that_got_no_answer_says_so(joint: Stack) -> None:
    """PRICED-123: the worker beats again until its lease would have ended"""
    started = await joint.started(await joint.submitted())
    away = with_trouble(joint.priced, Trouble({"ledger.transact_softly": [BEFORE]}))
    with pytest.raises(DependencyUnavailable):
        await beat(away, started, started.lease_token or "")


@pytest.mark.parametrize("name", ["queue.extend", "idempotency_locks.extend_lease"])
async def test_whoever_is_away_does_not_keep_the_other_from_hiding_the_message(split: Stack, name: str) -> None:
    """PRICED-122"""
    run = await split.submitted()
    [delivery] = await split.deliveries()
    started = await split.started(run)
    trouble = Trouble({name: [BEFORE]})
    await keep_hidden(with_trouble(split.priced, trouble), started, started.lease_token or "", delivery)
    assert sorted(trouble.calls) == ["idempotency_locks.extend_lease", "queue.extend"]


async def test_a_queue_that_does_not_answer_is_not_waited_for(joint: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """PRICED-122"""
    monkeypatch.setattr(beat_module, "_HIDE_SECONDS", 0.05)
    run = await joint.submitted()
    [delivery] = await joint.deliveries()
    started = await joint.started(run)
    trouble = Trouble(meanwhile={"queue.extend": asyncio.Event().wait})
    async with asyncio.timeout(200):
        await keep_hidden(with_trouble(joint.priced, trouble), started, started.lease_token or "", delivery)


async def test_redis_that_does_not_answer_does_not_delay_a_start(split: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """PRICED-113"""
    monkeypatch.setattr(start_module, "_SHOW_LEASE_SECONDS", 0.05)
    trouble = Trouble(meanwhile={"idempotency_locks.lease": asyncio.Event().wait})
    run = await split.submitted()
    async with asyncio.timeout(200):
        assert isinstance(await start_run(with_trouble(split.priced, trouble), message_of(run), IN_HAND), Started)
