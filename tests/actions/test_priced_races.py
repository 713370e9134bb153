"""The race gate (contract 23.3): the second of two processes has no effect."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio

from pyoco_server.actions.priced import intents
from pyoco_server.actions.priced.beat import beat
from pyoco_server.actions.priced.credit import credit
from pyoco_server.actions.priced.enter import enter
from pyoco_server.actions.priced.finalize import Finished, claim_end, finish
from pyoco_server.actions.priced.reap import reap
from pyoco_server.actions.priced.reconcile import reconcile
from pyoco_server.actions.priced.submit import Accepted, submit
from pyoco_server.core.priced import journal
from pyoco_server.core.priced.reasons import Reason
from pyoco_server.core.priced.run import PricedRun
from pyoco_server.core.states.priced import Actor, Basis, Money, Status
from pyoco_server.errors import KeyBusy, OverBudget
from pyoco_server.ports.ledger.port import LedgerTx, Lost
from pyoco_server.ports.ledger.sql import SqlLedger
from support.priced.faults import Trouble, with_trouble
from support.priced.ledgers import open_ledger
from support.priced.points import watched
from support.priced.stacks import EACH_STACK, Stack, an_ask, open_stack, spans_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

ROUNDS = 1000
EACH = 10_000


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=EACH_STACK)
async def stack(request: pytest.FixtureRequest) -> AsyncIterator[Stack]:
    async with open_stack(request.param, request) as stack:
        yield stack


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def other(stack: Stack) -> AsyncIterator[Stack]:
    """Another process on the same stores: its ledger has threads and connections of its own."""
    assert isinstance(stack.bare.ledger, SqlLedger)
    async with open_ledger(stack.bare.ledger._url, stack.skew, spans_of(stack.priced.config)) as ledger:
        bare = replace(stack.bare, ledger=ledger)
        yield replace(stack, bare=bare, priced=watched(bare, stack.points))


async def made(stack: Stack, count: int, *, is_started: bool = True) -> list[PricedRun]:
    """Runs of new tenants with their money, fifty a transaction: nothing of this is what is tested here."""
    sizes = [min(50, count - done) for done in range(0, count, 50)]
    return [run for some in await asyncio.gather(*(_made(stack, size, is_started) for size in sizes)) for run in some]


async def _made(stack: Stack, count: int, is_started: bool) -> list[PricedRun]:
    tenant_id = await stack.tenant(count * EACH)

    def make(tx: LedgerTx) -> PricedRun:
        ask = an_ask(usd_micros=EACH, tenant_id=tenant_id)
        row = tx.runs.create(ask)
        assert isinstance(row, PricedRun)
        if stack.is_split:
            tx.journal.post(journal.reserve(tenant_id, ask.run_id, EACH, Actor.API))
        else:
            tx.money.reserve(tenant_id, ask.run_id, EACH)
        run = tx.runs.mark_reserved(row.run_id, row.version)
        assert isinstance(run, PricedRun)
        if is_started:
            run = tx.leases.start(run.run_id, run.version, ask.run_id)
        assert isinstance(run, PricedRun)
        return run

    runs = await stack.priced.ledger.transact(lambda tx: [make(tx) for _ in range(count)])
    if stack.is_split:
        await asyncio.gather(
            *(stack.priced.budget.reserve(tenant_id, run.run_id, EACH, run.created_at) for run in runs)
        )
    return runs


async def left(stack: Stack, runs: list[PricedRun]) -> int:
    """What their tenants can spend."""
    tenants = sorted({run.tenant_id for run in runs})
    for tenant_id in tenants[:1]:  # the audit looks at all of them
        await stack.check_money(tenant_id)
    return sum([await stack.balance(tenant_id) for tenant_id in tenants])


async def all_at_once(*doings: Any) -> list[Any]:
    """Begun in any order."""
    order = list(range(len(doings)))
    random.shuffle(order)
    tasks = {index: asyncio.ensure_future(doings[index]) for index in order}
    await asyncio.wait(tasks.values())
    return [tasks[index].exception() or tasks[index].result() for index in range(len(doings))]


async def test_worker_and_reaper_end_a_run_at_the_same_moment(stack: Stack, other: Stack) -> None:
    """PRICED-223, PRICED-18, PRICED-179: one COMMITTED, one settle, and the loser makes no money call"""
    runs = await made(stack, ROUNDS)
    stack.skew.move(121)
    worker, keeper = Trouble(), Trouble()
    worker_stack = replace(stack, priced=with_trouble(stack.priced, worker))
    keeper_priced = with_trouble(other.priced, keeper)
    stack.points.reached.clear()
    pairs: list[tuple[object, object]] = []
    for some in (runs[start : start + 100] for start in range(0, ROUNDS, 100)):
        ends = await all_at_once(
            *(worker_stack.end(run, fails=True) for run in some), *(reap(keeper_priced, run) for run in some)
        )
        pairs += zip(ends[:100], ends[100:], strict=True)
    won: Counter[str] = Counter()
    for (by_worker, by_reaper), run in zip(pairs, runs, strict=True):
        assert isinstance(by_worker, Finished | Lost), by_worker
        assert isinstance(by_reaper, Finished | Lost), by_reaper
        assert isinstance(by_worker, Finished) != isinstance(by_reaper, Finished)
        winner = by_worker if isinstance(by_worker, Finished) else by_reaper
        assert isinstance(winner, Finished)
        reason = "PACK_FAILED" if winner is by_worker else "WORKER_TIMEOUT"
        assert (winner.run.reason_code, winner.run.version) == (reason, run.version + 2)
        won[reason] += 1
    assert min(won["PACK_FAILED"], won["WORKER_TIMEOUT"]) > 0, won
    assert stack.points.reached.count("finalize.after_claim") == ROUNDS
    assert stack.points.reached.count("finalize.after_commit") == ROUNDS
    settles = worker.calls.count("budget.settle"), keeper.calls.count("budget.settle")
    assert settles == ((won["PACK_FAILED"], won["WORKER_TIMEOUT"]) if stack.is_split else (0, 0))
    assert await left(stack, runs) == ROUNDS * (EACH - 5_000)


async def test_a_heartbeat_against_a_claim(stack: Stack, other: Stack) -> None:
    """PRICED-224, PRICED-123, PRICED-153: the lease runs out while both are on their way"""
    for before_us in (20_000, 500_000, 3_000_000, 30_000_000):  # on a slow machine all may come too late at first
        runs = [run for _ in range(10) for run in await made(stack, 10)]
        outcomes = await _beats_against_claims(stack, other, runs, before_us)
        assert outcomes[True, True] == 0, outcomes
        if outcomes[True, False]:
            break
    assert outcomes[True, False] > 0, outcomes
    assert not await beat(stack.priced, runs[0], "another's"), "only the holder renews"
    stack.skew.move(1000)
    assert not await beat(stack.priced, runs[-1], runs[-1].run_id), "a heartbeat cannot revive a lease"
    await stack.keep()


async def _beats_against_claims(
    stack: Stack, other: Stack, runs: list[PricedRun], before_us: int
) -> Counter[tuple[bool, bool]]:
    """All at once, so long before the lease of the middle one ends: whether each lives, and whether it is claimed."""
    now_us = await stack.priced.ledger.read(lambda tx: tx.now_us())
    middle = runs[50].lease_expires_at
    assert middle is not None
    stack.skew.move(us=middle - now_us - before_us)
    intent = intents.failure(runs[0], Reason.WORKER_TIMEOUT)
    ends = await all_at_once(
        *(beat(stack.priced, run, run.run_id) for run in runs),
        *(claim_end(other.priced, run, Basis.LEASE_EXPIRED, Actor.REAPER, intent) for run in runs),
    )
    pairs = zip(ends[: len(runs)], ends[len(runs) :], strict=True)
    return Counter((is_alive, isinstance(claimed, PricedRun)) for is_alive, claimed in pairs)


async def test_a_failed_send_against_a_start(stack: Stack, other: Stack) -> None:
    """PRICED-225: never a refunded run that executes"""
    runs = await made(stack, 200, is_started=False)
    intent = intents.refund(Reason.QUEUE_ENQUEUE_FAILED)

    async def take_back(run: PricedRun) -> object:
        claimed = await claim_end(other.priced, run, Basis.SEND_FAILED, Actor.API, intent)
        return claimed if isinstance(claimed, Lost) else await finish(other.priced, claimed, Actor.API)

    def start(run: PricedRun) -> Any:
        return stack.priced.ledger.transact(lambda tx: tx.leases.start(run.run_id, run.version, run.run_id))

    ends = await all_at_once(*(start(run) for run in runs), *(take_back(run) for run in runs))
    for started, refunded in zip(ends[:200], ends[200:], strict=True):
        assert isinstance(started, PricedRun) != isinstance(refunded, Finished), (started, refunded)
    started_too_late = await made(stack, 1, is_started=False)
    stack.skew.move(3600)
    late = await start(started_too_late[0])
    assert isinstance(late, Lost), "the sweeper may have it from this age on"
    await stack.keep()
    assert (await stack.row(started_too_late[0].run_id)).money is Money.REFUNDED
    await stack.check_money(runs[0].tenant_id)


async def test_a_holder_that_slept_too_long_against_reconcile(stack: Stack, other: Stack) -> None:
    """PRICED-226, PRICED-25: one commit, one close"""
    runs = await made(stack, 100)
    claims: list[PricedRun] = []
    intent = intents.failure(runs[0], Reason.PACK_FAILED)
    for claimed in await asyncio.gather(
        *(claim_end(stack.priced, run, Basis.LEASE, Actor.WORKER, intent, run.run_id) for run in runs)
    ):
        assert isinstance(claimed, PricedRun)
        claims.append(claimed)
    stack.skew.move(301)
    ends = await all_at_once(
        *(finish(stack.priced, run, Actor.WORKER) for run in claims),
        *(reconcile(other.priced, run) for run in claims),
    )
    for slow, quick in zip(ends[:100], ends[100:], strict=True):
        assert isinstance(slow, Finished) != isinstance(quick, Finished), (slow, quick)
    assert await left(stack, runs) == 100 * (EACH - 5_000)


class _NoLock:
    """A lock that has always just expired."""

    def __init__(self, idempotency_locks: Any) -> None:
        self._idempotency_locks = idempotency_locks

    def __getattr__(self, name: str) -> Any:
        return getattr(self._idempotency_locks, name)

    async def lock(self, *_: object) -> bool:
        return True


@pytest.mark.parametrize("has_lock", [True, False])
async def test_many_submits_of_one_key_make_one_run(stack: Stack, other: Stack, has_lock: bool) -> None:
    """PRICED-227, PRICED-104, PRICED-182: 64 at once, from two processes; also when the lock expires in the middle"""
    if not has_lock and not stack.is_split:
        return
    tenant_id = await stack.tenant()
    sides = [stack.priced, other.priced]
    if not has_lock:
        sides = [replace(priced, idempotency_locks=_NoLock(priced.idempotency_locks)) for priced in sides]
    ends = await all_at_once(
        *(submit(sides[number % 2], an_ask("one-key-", tenant_id=tenant_id)) for number in range(64))
    )
    assert {type(end) for end in ends} <= {Accepted, KeyBusy}, ends
    accepted = [end for end in ends if isinstance(end, Accepted)]
    assert len({end.run.run_id for end in accepted}) == 1
    assert [end.replayed for end in accepted].count(False) == 1
    assert (await stack.balances(tenant_id)).held_usd_micros == 250_000
    assert await stack.balance(tenant_id) == 750_000
    again = await submit(stack.priced, an_ask("one-key-", tenant_id=tenant_id))
    assert (again.replayed, again.run.run_id) == (True, accepted[0].run.run_id)
    assert len(await stack.deliveries(10)) == 1
    await stack.check_money(tenant_id)


async def test_a_nearly_empty_budget_is_never_overdrawn(stack: Stack, other: Stack) -> None:
    """PRICED-228, PRICED-191: 64 at once with money for ten"""
    tenant_id = await stack.tenant(10 * EACH + EACH // 2)
    asks = [an_ask(usd_micros=EACH, tenant_id=tenant_id, pack_type="ocr") for _ in range(64)]
    sides = [stack.priced, other.priced] * 32
    ends = await all_at_once(*(submit(side, ask) for side, ask in zip(sides, asks, strict=True)))
    assert Counter(type(end) for end in ends) == {Accepted: 10, OverBudget: 54}, ends
    assert min(end.balance_usd_micros for end in ends) == await stack.balance(tenant_id) == EACH // 2
    rows = [row for row in await stack.rows() if row.tenant_id == tenant_id]
    assert [(row.status, row.money) for row in rows] == [(Status.QUEUED, Money.RESERVED)] * 10
    await stack.check_money(tenant_id)


async def test_the_first_requests_of_an_unknown_tenant_come_at_once(stack: Stack, other: Stack) -> None:
    """The ledger creates a tenant once, whichever process is first."""
    sides = [stack.priced, other.priced] * 4
    ends = await all_at_once(*(submit(side, an_ask(tenant_id="newcomer")) for side in sides))
    assert {type(end) for end in ends} == {OverBudget}, ends
    entries = await all_at_once(*(enter(side, "newcomer2", "post") for side in sides))
    assert all(entry.rate.allowed for entry in entries), entries
    given = await all_at_once(*(credit(side, "newcomer3", EACH, "one-ref") for side in sides))
    assert [each.is_new for each in given].count(True) >= 1, given
    assert await stack.balance("newcomer3") == EACH
    await stack.check_money("newcomer3")


async def test_several_keepers_at_once_are_harmless(stack: Stack, other: Stack) -> None:
    """PRICED-4"""
    runs = await made(stack, 40)
    stack.skew.move(121)
    await all_at_once(stack.keep(), other.keep(), stack.keep(), other.keep())
    assert {(await stack.row(run.run_id)).status for run in runs} == {Status.FAILED}
    assert await left(stack, runs) == 40 * (EACH - 5_000)
