"""Ending priced runs: claim, money, commit. One end, one closing, and losers without a trace."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from pyoco_server.actions.priced import intents
from pyoco_server.actions.priced.finalize import Disputed, Finished, Unfinished, claim_end, finish
from pyoco_server.actions.priced.patience import NO_PATIENCE, RetryLimit
from pyoco_server.actions.priced.settle_answer import AGAIN, Again, Charged, Contradiction, judge
from pyoco_server.core.priced import journal
from pyoco_server.core.priced.journal import Closing
from pyoco_server.core.priced.projection import project
from pyoco_server.core.priced.reasons import Reason
from pyoco_server.core.priced.run import Intent, MoneyOp, PricedRun
from pyoco_server.core.states.priced import Actor, Basis, Money, Stage, Status
from pyoco_server.ports.budget.port import Closed, NoReserve, NotReserved, Open, Outcome, Refunded, Settled
from pyoco_server.ports.budget.redis import RedisBudget
from pyoco_server.ports.ledger.port import LOST, Lost
from support.priced.faults import AFTER, BEFORE, Trouble, with_trouble
from support.priced.redis_stock import drop_reservation
from support.priced.stacks import ACME, BOTH_MODES, QUICK_SPLIT, SQLITE, Killed, Stack, an_ask, open_stack

DOLLAR = 1_000_000
#: Some tries, and no time lost.
QUICK = RetryLimit(total=timedelta(milliseconds=200), first_pause=timedelta(milliseconds=1))
#: Long enough to succeed on a busy machine.
LONG = replace(QUICK, total=timedelta(seconds=60))

SETTLE_5000 = Intent(status=Status.FAILED, money_op=MoneyOp.SETTLE, charge_usd_micros=5_000, reason_code="PACK_FAILED")
SETTLE_MORE = replace(SETTLE_5000, charge_usd_micros=999_999)
REFUND = intents.refund(Reason.RESERVATION_EXPIRED)


@pytest.fixture(params=BOTH_MODES)
async def stack(request: pytest.FixtureRequest) -> AsyncIterator[Stack]:
    async with open_stack(request.param, request) as stack:
        await stack.credit(DOLLAR)
        yield stack


@pytest.fixture
async def joint(request: pytest.FixtureRequest) -> AsyncIterator[Stack]:
    async with open_stack(SQLITE, request) as stack:
        await stack.credit(DOLLAR)
        yield stack


@pytest.fixture
async def split(request: pytest.FixtureRequest) -> AsyncIterator[Stack]:
    async with open_stack(QUICK_SPLIT, request) as stack:
        await stack.credit(DOLLAR)
        yield stack


def a_row(intent: Intent, money: Money = Money.RESERVED) -> PricedRun:
    """Claimed, with 250 000 reserved."""
    return PricedRun(
        run_id="r",
        tenant_id=ACME,
        pack_type="decision",
        profile_version="p",
        status=Status.PROCESSING,
        money=money,
        stage=Stage.CLAIMED,
        idempotency_key="k",
        payload_hash="h",
        version=3,
        reserved_usd_micros=250_000,
        actual_cost_usd_micros=None,
        minimum_fee_usd_micros=5_000,
        timebox_sec=90,
        min_reliability_e4=8000,
        inline=0,
        artifacts={},
        result=None,
        tokens_consumed=0,
        retention_until=1,
        lease_token=None,
        lease_expires_at=None,
        finalize_token="t",
        finalize_claimed_at=1,
        finalize_actor=Actor.WORKER,
        intent=intent,
        enqueued_at=None,
        reason_code=None,
        error_detail=None,
        trace_id=None,
        created_at=0,
        updated_at=0,
    )


OPPOSED = Contradiction("the reservation was closed in another way than intended")
UNKNOWN = Contradiction("the run is reserved, and the budget knows nothing of it")
UNEQUAL = Contradiction("the budget held another amount than the run")


@pytest.mark.parametrize(
    ("intent", "money", "answer", "outcome", "verdict"),
    [
        pytest.param(
            SETTLE_5000, Money.RESERVED, Closed(5_000, 245_000, 1), None, Charged(5_000, 245_000), id="settled now"
        ),
        pytest.param(REFUND, Money.RESERVED, Closed(0, 250_000, 1), None, Charged(0, 250_000), id="refunded now"),
        pytest.param(
            REFUND, Money.NONE, Closed(0, 250_000, 1), None, Charged(0, 250_000, False), id="refunded before T2"
        ),
        pytest.param(SETTLE_5000, Money.RESERVED, Closed(5_000, 1, 1), None, UNEQUAL, id="another amount was held"),
        pytest.param(
            SETTLE_5000, Money.RESERVED, NoReserve(), Settled(5_000, 245_000), Charged(5_000, 245_000), id="adopted"
        ),
        pytest.param(
            SETTLE_MORE, Money.RESERVED, NoReserve(), Settled(250_000, 0), Charged(250_000, 0), id="adopted capped"
        ),
        pytest.param(REFUND, Money.RESERVED, NoReserve(), Refunded(250_000), Charged(0, 250_000), id="refund adopted"),
        pytest.param(
            REFUND, Money.NONE, NoReserve(), Refunded(250_000), Charged(0, 250_000, False), id="refund adopted, NONE"
        ),
        pytest.param(SETTLE_5000, Money.RESERVED, NoReserve(), Settled(5_001, 244_999), OPPOSED, id="another charge"),
        pytest.param(
            SETTLE_5000, Money.RESERVED, NoReserve(), Settled(5_000, 5_000), OPPOSED, id="another reservation"
        ),
        pytest.param(SETTLE_5000, Money.RESERVED, NoReserve(), Refunded(250_000), OPPOSED, id="refunded instead"),
        pytest.param(REFUND, Money.RESERVED, NoReserve(), Settled(5_000, 245_000), OPPOSED, id="settled instead"),
        pytest.param(REFUND, Money.RESERVED, NoReserve(), Refunded(1), OPPOSED, id="another refund"),
        pytest.param(REFUND, Money.NONE, NoReserve(), NotReserved(), Charged(0, 0, False), id="nothing was reserved"),
        pytest.param(REFUND, Money.RESERVED, NoReserve(), NotReserved(), UNKNOWN, id="the reservation is gone"),
        pytest.param(SETTLE_5000, Money.RESERVED, NoReserve(), NotReserved(), UNKNOWN, id="gone before a settle"),
        pytest.param(REFUND, Money.NONE, NoReserve(), Open(250_000), AGAIN, id="reserved just now"),
    ],
)
def test_each_answer_of_the_budget_has_one_meaning(
    intent: Intent,
    money: Money,
    answer: Closed | NoReserve,
    outcome: Outcome | None,
    verdict: Charged | Contradiction | Again,
) -> None:
    """PRICED-24: the table of 5.4"""
    assert judge(a_row(intent, money), answer, outcome) == verdict


async def claimed_by_worker(stack: Stack, **ask: Any) -> PricedRun:
    run = await stack.started(await stack.submitted(an_ask(**ask)))
    intent = intents.success(run, 50_000, await stack.upload(run), tokens_consumed=7)
    claimed = await claim_end(stack.priced, run, Basis.LEASE, Actor.WORKER, intent, run.lease_token)
    assert isinstance(claimed, PricedRun)
    return claimed


async def test_a_success_is_charged_its_cost_and_published(stack: Stack) -> None:
    """PRICED-17, PRICED-19, PRICED-20, PRICED-38: T6, T7"""
    claimed = await claimed_by_worker(stack)
    assert (claimed.status, claimed.money, claimed.stage) == (Status.PROCESSING, Money.RESERVED, Stage.CLAIMED)
    assert await stack.balance() == 750_000
    ended = await finish(stack.priced, claimed, Actor.WORKER)
    assert isinstance(ended, Finished)
    run = ended.run
    assert (run.status, run.money, run.stage) == (Status.COMPLETED, Money.SETTLED, Stage.COMMITTED)
    assert (run.actual_cost_usd_micros, run.tokens_consumed) == (50_000, 7)
    assert run.result is not None
    assert await stack.balance() == 950_000
    assert stack.shown[-1] == run
    await stack.check_money()


async def test_a_cost_above_the_reservation_is_capped(stack: Stack) -> None:
    """PRICED-8, PRICED-38"""
    ended = await finish(stack.priced, await claimed_by_worker(stack, usd_micros=10_000, pack_type="ocr"), Actor.WORKER)
    assert isinstance(ended, Finished)
    assert ended.run.actual_cost_usd_micros == 10_000
    await stack.check_money()


async def test_a_failure_is_charged_the_minimum_fee(stack: Stack) -> None:
    """PRICED-13, PRICED-38, PRICED-118: T8"""
    run = await stack.started(await stack.submitted())
    ended = await stack.end(run, fails=True)
    assert isinstance(ended, Finished)
    assert (ended.run.status, ended.run.money) == (Status.FAILED, Money.SETTLED)
    assert (ended.run.actual_cost_usd_micros, ended.run.reason_code) == (5_000, "PACK_FAILED")
    assert ended.run.result is None
    assert await stack.balance() == 995_000
    await stack.check_money()


async def test_a_failure_by_the_operators_fault_is_refunded(stack: Stack) -> None:
    """SAFE-3: T14 of a run that was started, in both modes; what is shown of it agrees"""
    run = await stack.started(await stack.submitted())
    intent = intents.unavailable("NO_OCR_ENGINE: it is gone")
    claimed = await claim_end(stack.priced, run, Basis.LEASE, Actor.WORKER, intent, run.lease_token)
    assert isinstance(claimed, PricedRun)
    ended = await finish(stack.priced, claimed, Actor.WORKER)
    assert isinstance(ended, Finished)
    assert (ended.run.status, ended.run.money) == (Status.FAILED, Money.REFUNDED)
    assert (ended.run.actual_cost_usd_micros, ended.run.reason_code) == (0, "PACK_UNAVAILABLE")
    assert await stack.balance() == 1_000_000
    shown = project(ended.run)
    assert shown is not None
    assert shown.error == "PACK_UNAVAILABLE: NO_OCR_ENGINE: it is gone"
    assert (shown.extra["money_state"], shown.extra["cost"]["used_usd"]) == ("REFUNDED", "0.0000")
    await stack.check_money()


async def test_who_loses_the_claim_does_nothing(stack: Stack) -> None:
    """PRICED-18, PRICED-26, PRICED-220"""
    claimed = await claimed_by_worker(stack)
    before = await stack.row(claimed.run_id)
    trouble = Trouble()
    intent = intents.failure(claimed, Reason.PACK_FAILED)
    lost = await claim_end(
        with_trouble(stack.priced, trouble), replace(claimed, version=2), Basis.LEASE, Actor.WORKER, intent, "lease"
    )
    assert lost is LOST
    assert trouble.calls == ["ledger.transact"]
    assert await stack.row(claimed.run_id) == before
    assert await stack.balance() == 750_000


async def test_who_loses_the_commit_leaves_the_money_as_it_must(stack: Stack) -> None:
    """PRICED-21, PRICED-23, PRICED-25, PRICED-221: fenced by a take-over between money and commit"""
    claimed = await claimed_by_worker(stack)

    async def take_over() -> None:
        stack.skew.move(301)
        taken = await stack.priced.ledger.transact(
            lambda tx: tx.ends.take_over(claimed.run_id, claimed.version, "another", Actor.RECONCILE)
        )
        assert isinstance(taken, PricedRun)

    stack.points.meanwhile["finalize.after_money"] = take_over
    assert await finish(stack.priced, claimed, Actor.WORKER) is LOST
    row = await stack.row(claimed.run_id)
    assert (row.stage, row.result, row.actual_cost_usd_micros) == (Stage.CLAIMED, None, None)
    assert await stack.balance() == (950_000 if stack.is_split else 750_000)
    stack.skew.move(301)
    await stack.keep()
    row = await stack.row(claimed.run_id)
    assert (row.status, row.actual_cost_usd_micros) == (Status.COMPLETED, 50_000)
    assert await stack.balance() == 950_000
    await stack.check_money()


async def test_a_commit_whose_answer_is_lost_counts_once(stack: Stack) -> None:
    """PRICED-22: read back by the token; the budget is not called again"""
    claimed = await claimed_by_worker(stack)
    trouble = Trouble({"ledger.transact": [AFTER]})
    ended = await finish(with_trouble(stack.priced, trouble), claimed, Actor.WORKER, LONG)
    assert isinstance(ended, Finished)
    assert trouble.calls.count("budget.settle") == stack.is_split
    assert await stack.balance() == 950_000
    await stack.check_money()


async def test_a_commit_is_tried_again_and_then_left_to_reconcile(stack: Stack) -> None:
    """PRICED-22"""
    claimed = await claimed_by_worker(stack)
    trouble = Trouble({"ledger.transact": [BEFORE] * 2})
    ended = await finish(with_trouble(stack.priced, trouble), claimed, Actor.WORKER, LONG)
    assert isinstance(ended, Finished)
    other = await claimed_by_worker(stack)
    away = Trouble({"ledger.transact": [BEFORE] * 99})
    assert isinstance(await finish(with_trouble(stack.priced, away), other, Actor.WORKER, QUICK), Unfinished)
    assert away.calls.count("budget.settle") == stack.is_split
    stack.skew.move(301)
    await stack.keep()
    assert (await stack.row(other.run_id)).status is Status.COMPLETED
    await stack.check_money()


async def test_a_claim_whose_answer_is_lost_is_still_mine(stack: Stack) -> None:
    run = await stack.started(await stack.submitted())
    intent = intents.failure(run, Reason.PACK_FAILED)
    trouble = Trouble({"ledger.transact": [AFTER]})
    claimed = await claim_end(
        with_trouble(stack.priced, trouble), run, Basis.LEASE, Actor.WORKER, intent, run.lease_token, LONG
    )
    assert isinstance(claimed, PricedRun)
    assert isinstance(await finish(stack.priced, claimed, Actor.WORKER), Finished)


async def test_a_budget_that_is_away_is_asked_again_and_then_left(split: Stack) -> None:
    """PRICED-24, last line"""
    claimed = await claimed_by_worker(split)
    trouble = Trouble({"budget.settle": [AFTER, BEFORE]})
    assert isinstance(await finish(with_trouble(split.priced, trouble), claimed, Actor.WORKER, LONG), Finished)
    assert await split.balance() == 950_000
    other = await claimed_by_worker(split)
    away = Trouble({"budget.settle": [BEFORE] * 99})
    assert isinstance(await finish(with_trouble(split.priced, away), other, Actor.WORKER, QUICK), Unfinished)
    assert (await split.row(other.run_id)).stage is Stage.CLAIMED
    await split.check_money()


async def test_a_journal_that_has_closed_the_run_makes_the_commit_lose(split: Stack) -> None:
    """PRICED-57: the unique fact rolls the commit back"""
    claimed = await claimed_by_worker(split)
    fact = journal.settle(ACME, claimed.run_id, 250_000, 1, Closing(actor=Actor.OPERATOR))
    await split.priced.ledger.transact(lambda tx: tx.journal.post(fact))
    assert await finish(split.priced, claimed, Actor.WORKER) is LOST
    assert (await split.row(claimed.run_id)).stage is Stage.CLAIMED


async def test_a_reservation_that_vanished_is_disputed(split: Stack) -> None:
    """PRICED-24, D-7: T17; no further money effect, and no keeper touches it"""
    claimed = await claimed_by_worker(split)
    assert isinstance(split.priced.budget, RedisBudget)
    await drop_reservation(split.priced.budget, claimed.run_id)
    ended = await finish(split.priced, claimed, Actor.WORKER)
    assert isinstance(ended, Disputed)
    assert (ended.run.money, ended.run.stage) == (Money.DISPUTED, Stage.CLAIMED)
    assert await split.balance() == 750_000
    split.skew.move(4000)
    await split.keep()
    assert await split.row(claimed.run_id) == ended.run


async def test_a_run_that_was_closed_otherwise_is_disputed(stack: Stack) -> None:
    """PRICED-24: closed, but different from the intent"""
    claimed = await claimed_by_worker(stack)
    await stack.priced.budget.refund_full(ACME, claimed.run_id, Closing(actor=Actor.OPERATOR))
    ended = await finish(stack.priced, claimed, Actor.WORKER)
    assert isinstance(ended, Disputed)
    assert await stack.balance() == DOLLAR


async def test_a_slow_holder_meets_a_closed_reservation(split: Stack) -> None:
    """PRICED-25, PRICED-226: it wakes up after reconcile has ended the run"""
    claimed = await claimed_by_worker(split)
    split.skew.move(301)
    await split.keep()
    assert (await split.row(claimed.run_id)).status is Status.COMPLETED
    assert await finish(split.priced, claimed, Actor.WORKER) is LOST
    assert await split.balance() == 950_000
    await split.check_money()


@pytest.mark.parametrize("fate", [BEFORE, AFTER])
async def test_every_call_of_an_end_may_fail(stack: Stack, fate: str) -> None:
    """PRICED-22, PRICED-193, PRICED-229: each call in turn; keepers repair what is left; charged once"""
    watch = Trouble()
    run = await stack.started(await stack.submitted(an_ask(usd_micros=60_000)))
    await replace(stack, priced=with_trouble(stack.priced, watch)).end(run)
    runs = [run]
    for number, name in enumerate(watch.calls):
        run = await stack.started(await stack.submitted(an_ask(usd_micros=60_000)))
        runs.append(run)
        trouble = Trouble(at=number, fate=fate)
        ended: object = None
        try:
            ended = await replace(stack, priced=with_trouble(stack.priced, trouble)).end(run, patience=NO_PATIENCE)
        except Exception as error:  # noqa: BLE001  (a port that is away, here or in the test's own upload)
            ended = error
        assert trouble.calls[number] == name
        assert not isinstance(ended, Lost)
    for _ in range(2):
        stack.skew.move(301)
        await stack.keep()
    charges = [(await stack.row(run.run_id)).actual_cost_usd_micros for run in runs]
    assert set(charges) <= {50_000, 5_000}
    assert charges[0] == 50_000
    assert await stack.balance() == DOLLAR - sum(charge or 0 for charge in charges)
    await stack.check_money()


async def test_a_reservation_that_appears_late_is_closed_too(split: Stack) -> None:
    """PRICED-157: a slow submit reserves between the sweeper's two questions"""
    split.points.kill_at = "submit.after_insert"
    ask = an_ask()
    with pytest.raises(Killed):
        await split.submitted(ask)
    row = await split.row(ask.run_id)

    async def reserve() -> None:
        await split.priced.budget.reserve(ACME, row.run_id, row.reserved_usd_micros, row.created_at)

    split.skew.move(61)
    claimed = await claim_end(
        split.priced, row, Basis.ABANDONED, Actor.SWEEPER, intents.refund(Reason.SUBMIT_ABANDONED)
    )
    assert isinstance(claimed, PricedRun)
    trouble = Trouble(meanwhile={"budget.refund_full": reserve})
    ended = await finish(with_trouble(split.priced, trouble), claimed, Actor.SWEEPER)
    assert isinstance(ended, Finished)
    assert trouble.calls.count("budget.refund_full") == 2
    assert await split.balance() == DOLLAR
    await split.check_money()
