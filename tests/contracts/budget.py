"""What every budget promises, in the ledger's tables or elsewhere."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any
from uuid import uuid4

import pytest

from pyoco_server.core.priced.constants import MAX_AMOUNT_USD_MICROS
from pyoco_server.core.priced.journal import Closing
from pyoco_server.core.priced.money import AmountError
from pyoco_server.core.states.priced import Actor
from pyoco_server.ports.budget.port import (
    AlreadyApplied,
    AlreadyReserved,
    Budget,
    Closed,
    Credited,
    Insufficient,
    NoReserve,
    NotReserved,
    Open,
    Refunded,
    Reserved,
    Settled,
    TenantMismatch,
)
from pyoco_server.ports.ledger.port import Ledger, LedgerTx
from support.waiting import eventually

__all__ = ["AT_US", "BY", "BudgetContract", "JoinedBudgetContract", "a_run"]

AT_US = 1_900_000_000_000_000
BY = Closing(actor=Actor.WORKER)

#: Invalid tenant ids: every operation refuses them (PRICED-40).
NEVER: list[Any] = [-1, MAX_AMOUNT_USD_MICROS + 1, 2**63, True, 1.0, "1", None, b"1"]


def a_run() -> str:
    return str(uuid4())


class BudgetContract:
    """An adapter passes all of it or does not ship. Fixtures: `budget`, and `other`, the same one seen by another
    process."""

    async def test_a_tenant_nobody_has_heard_of_has_nothing(self, budget: Budget) -> None:
        run = a_run()
        assert await budget.balance("t") == 0
        assert await budget.reserve("t", run, 1, AT_US) == Insufficient(0)
        assert await budget.outcome(run) == NotReserved()
        assert await budget.settle("t", run, 0, BY) == NoReserve()
        assert await budget.refund_full("t", run, BY) == NoReserve()

    async def test_a_credit_is_given_once_per_reference_whatever_the_amount(
        self, budget: Budget, other: Budget
    ) -> None:
        """PRICED-58, PRICED-190"""
        assert await budget.credit("t", 10_000_000, "r1") == Credited(10_000_000)
        assert await other.credit("t", 5, "r2") == Credited(10_000_005)
        assert await other.credit("t", 10_000_000, "r1") == AlreadyApplied()
        assert await budget.credit("t", 7, "r1") == AlreadyApplied()
        assert await budget.credit("u", 7, "r1") == AlreadyApplied()
        assert await budget.balance("t") == 10_000_005
        assert await budget.balance("u") == 0

    async def test_one_of_many_credits_with_one_reference_counts(self, budget: Budget, other: Budget) -> None:
        """PRICED-189"""
        both = [budget, other] * 8
        answers = await asyncio.gather(*(each.credit("t", 100, "r") for each in both))
        assert sorted(map(str, answers)) == sorted([str(Credited(100)), *[str(AlreadyApplied())] * 15])
        assert await budget.balance("t") == 100

    async def test_a_reservation_takes_what_it_can_and_only_once(self, budget: Budget) -> None:
        """PRICED-220: every return code of reserve, at its edges"""
        await budget.credit("t", 1000, "r")
        first, second, third = a_run(), a_run(), a_run()
        assert await budget.reserve("t", first, 1001, AT_US) == Insufficient(1000)
        assert await budget.outcome(first) == NotReserved()
        assert await budget.reserve("t", first, 400, AT_US) == Reserved(600)
        assert await budget.reserve("t", first, 400, AT_US) == AlreadyReserved()
        assert await budget.reserve("t", first, 9999, AT_US) == AlreadyReserved()
        assert await budget.reserve("t", second, 600, AT_US) == Reserved(0)
        assert await budget.reserve("t", third, 1, AT_US) == Insufficient(0)
        assert await budget.outcome(first) == Open(400)
        assert await budget.balance("t") == 0

    async def test_a_charge_is_capped_and_the_rest_goes_back(self, budget: Budget) -> None:
        """PRICED-220: every return code of settle"""
        balance = 10_000_000
        await budget.credit("t", balance, "r")
        for asked in (0, 1, 249_999, 250_000, 250_001, MAX_AMOUNT_USD_MICROS):
            run, charged = a_run(), min(asked, 250_000)
            balance, back = balance - charged, 250_000 - charged
            await budget.reserve("t", run, 250_000, AT_US)
            assert await budget.settle("t", run, asked, BY) == Closed(charged, back, balance)
            assert await budget.outcome(run) == Settled(charged, back)
            assert await budget.settle("t", run, asked, BY) == NoReserve()
            assert await budget.refund_full("t", run, BY) == NoReserve()
            assert await budget.outcome(run) == Settled(charged, back)
            assert await budget.balance("t") == balance

    async def test_a_refund_gives_everything_back_once(self, budget: Budget) -> None:
        """PRICED-220: every return code of refund_full"""
        await budget.credit("t", 300, "r")
        run = a_run()
        await budget.reserve("t", run, 250, AT_US)
        assert await budget.refund_full("t", run, BY) == Closed(0, 250, 300)
        assert await budget.outcome(run) == Refunded(250)
        assert await budget.refund_full("t", run, BY) == NoReserve()
        assert await budget.settle("t", run, 5, BY) == NoReserve()
        assert await budget.balance("t") == 300

    async def test_a_closed_run_is_never_reserved_again(self, budget: Budget, other: Budget) -> None:
        """PRICED-49"""
        await budget.credit("t", 1000, "r")
        settled, refunded = a_run(), a_run()
        for run in (settled, refunded):
            await budget.reserve("t", run, 100, AT_US)
        await budget.settle("t", settled, 1, BY)
        await budget.refund_full("t", refunded, BY)
        for run in (settled, refunded):
            assert await other.reserve("t", run, 100, AT_US) == AlreadyReserved()
            assert await other.reserve("t", run, 10**12, AT_US) == AlreadyReserved()
        assert await budget.balance("t") == 999

    async def test_of_many_closings_one_counts(self, budget: Budget, other: Budget) -> None:
        """PRICED-49, PRICED-192"""
        await budget.credit("t", 1000, "r")
        run = a_run()
        await budget.reserve("t", run, 500, AT_US)
        both = [budget, other]
        answers = await asyncio.gather(
            *(both[n % 2].settle("t", run, n, BY) for n in range(8)),
            *(both[n % 2].refund_full("t", run, BY) for n in range(8)),
            *(both[n % 2].reserve("t", run, 500, AT_US) for n in range(4)),
        )
        [closed] = [answer for answer in answers if isinstance(answer, Closed)]
        assert not [answer for answer in answers if isinstance(answer, Reserved)]
        assert await budget.balance("t") == closed.balance_usd_micros == 500 + closed.refund_usd_micros
        assert await other.outcome(run) in (
            Settled(closed.charge_usd_micros, closed.refund_usd_micros),
            Refunded(closed.refund_usd_micros),
        )

    async def test_an_almost_empty_budget_is_never_overdrawn(self, budget: Budget, other: Budget) -> None:
        """PRICED-191"""
        await budget.credit("t", 59, "r")
        both = [budget, other] * 8
        runs = [a_run() for _ in both]
        answers = await asyncio.gather(
            *(each.reserve("t", run, 10, AT_US) for each, run in zip(both, runs, strict=True))
        )
        assert sorted(answer.balance_usd_micros for answer in answers if isinstance(answer, Reserved)) == [
            9, 19, 29, 39, 49,
        ]  # fmt: skip
        assert [answer for answer in answers if not isinstance(answer, Reserved)] == [Insufficient(9)] * 11
        assert await budget.balance("t") == 9

    async def test_what_was_broken_off_can_be_repeated(self, budget: Budget, other: Budget) -> None:
        """PRICED-189, PRICED-193: stopped in the middle it leaves all or nothing, and a repetition adds nothing"""
        await budget.credit("t", 1000, "r")
        runs = [a_run() for _ in range(8)]
        for turns, run in enumerate(runs):
            await _broken_off(budget.reserve("t", run, 100, AT_US), turns)
            assert isinstance(await other.reserve("t", run, 100, AT_US), Reserved | AlreadyReserved)
            await eventually(lambda turns=turns: _has(other, 1000 - 100 * (turns + 1)))  # type: ignore[misc]
        for turns, run in enumerate(runs):
            await _broken_off(budget.settle("t", run, 30, BY), turns)
            assert await other.settle("t", run, 30, BY) in (
                NoReserve(),
                Closed(30, 70, 200 + 70 * (turns + 1)),
            )
            assert await other.outcome(run) == Settled(30, 70)
        assert await other.balance("t") == 1000 - 8 * 30

    async def test_tenants_are_apart(self, budget: Budget) -> None:
        """PRICED-194"""
        await budget.credit("t", 1000, "r1")
        await budget.credit("t-2", 2000, "r2")
        one, two = a_run(), a_run()
        assert await budget.reserve("t", one, 100, AT_US) == Reserved(900)
        assert await budget.reserve("t-2", two, 300, AT_US) == Reserved(1700)
        assert await budget.settle("t", one, 40, BY) == Closed(40, 60, 960)
        assert await budget.balance("t-2") == 1700
        assert await budget.refund_full("t-2", two, BY) == Closed(0, 300, 2000)
        assert await budget.balance("t") == 960

    async def test_another_tenants_reservation_is_not_touched(self, budget: Budget) -> None:
        """PRICED-46"""
        await budget.credit("t", 1000, "r1")
        await budget.credit("u", 1000, "r2")
        run = a_run()
        await budget.reserve("t", run, 100, AT_US)
        for stranger in ("u", "nobody"):
            with pytest.raises(TenantMismatch):
                await budget.settle(stranger, run, 1, BY)
            with pytest.raises(TenantMismatch):
                await budget.refund_full(stranger, run, BY)
        assert await budget.reserve("u", run, 100, AT_US) == AlreadyReserved()
        assert (await budget.balance("t"), await budget.balance("u")) == (900, 1000)
        assert await budget.outcome(run) == Open(100)
        assert await budget.settle("t", run, 100, BY) == Closed(100, 0, 900)
        assert await budget.settle("u", run, 100, BY) == NoReserve()  # closed: it belongs to no run any more

    async def test_the_largest_amounts_are_exact(self, budget: Budget) -> None:
        """PRICED-44, PRICED-184, PRICED-195"""
        most = MAX_AMOUNT_USD_MICROS
        run, odd = a_run(), a_run()
        assert await budget.credit("t", most, "r1") == Credited(most)
        assert await budget.reserve("t", run, most, AT_US) == Reserved(0)
        assert await budget.outcome(run) == Open(most)
        assert await budget.settle("t", run, most - 1, BY) == Closed(most - 1, 1, 1)
        assert await budget.outcome(run) == Settled(most - 1, 1)
        assert await budget.credit("t", 123_456_789_012_345, "r2") == Credited(123_456_789_012_346)
        assert await budget.reserve("t", odd, 123_456_789_012_344, AT_US) == Reserved(2)
        assert await budget.refund_full("t", odd, BY) == Closed(0, 123_456_789_012_344, 123_456_789_012_346)

    async def test_a_balance_above_every_amount_is_exact(self, budget: Budget) -> None:
        """PRICED-44: beyond 2^53, where a double is off by one"""
        most, run, large = MAX_AMOUNT_USD_MICROS, a_run(), a_run()
        await budget.credit("t", most, "r1")
        assert await budget.credit("t", most - 1, "r2") == Credited(2 * most - 1)
        assert await budget.reserve("t", run, 2, AT_US) == Reserved(2 * most - 3)
        assert await budget.reserve("t", large, most, AT_US) == Reserved(most - 3)
        assert await budget.settle("t", run, 1, BY) == Closed(1, 1, most - 2)
        assert await budget.refund_full("t", large, BY) == Closed(0, most, 2 * most - 2)

    async def test_an_amount_that_cannot_be_is_refused_and_changes_nothing(self, budget: Budget) -> None:
        """PRICED-40, PRICED-198"""
        await budget.credit("t", 1000, "r")
        run, new = a_run(), a_run()
        await budget.reserve("t", run, 100, AT_US)
        for amount in [0, *NEVER]:
            with pytest.raises(AmountError):
                await budget.reserve("t", new, amount, AT_US)
            with pytest.raises(AmountError):
                await budget.credit("t", amount, "r3")
        for charge in NEVER:
            with pytest.raises(AmountError):
                await budget.settle("t", run, charge, BY)
        assert await budget.balance("t") == 900
        assert await budget.outcome(run) == Open(100)
        assert await budget.outcome(new) == NotReserved()
        assert await budget.credit("t", 1, "r3") == Credited(901)

    async def test_open_reservations_are_told_by_their_age(self, budget: Budget) -> None:
        """PRICED-163"""
        await budget.credit("t", 1000, "r")
        runs = [a_run() for _ in range(3)]
        for run in runs:
            await budget.reserve("t", run, 100, AT_US)
        await budget.settle("t", runs[1], 0, BY)
        far = 2 * AT_US
        found = {each.run_id: each async for each in budget.open_reservations(far)}
        assert set(found) == {runs[0], runs[2]}
        one = found[runs[0]]
        assert (one.tenant_id, one.reserved_usd_micros) == ("t", 100)
        at_us = one.created_at_ms * 1000
        assert [each async for each in budget.open_reservations(at_us)] == []
        assert {each.run_id async for each in budget.open_reservations(at_us + 10_000_000)} == {runs[0], runs[2]}

    async def test_it_answers_a_ping(self, budget: Budget) -> None:
        await budget.ping()


class _Undone(Exception):
    pass


class JoinedBudgetContract(BudgetContract):
    """What a budget promises that lives in the ledger. Fixture: `ledger`."""

    async def test_it_says_where_it_lives(self, budget: Budget) -> None:
        assert budget.joins_ledger

    async def test_a_transaction_that_is_undone_leaves_no_trace(self, budget: Budget, ledger: Ledger) -> None:
        """PRICED-52, PRICED-183, PRICED-197"""
        kept, undone = a_run(), a_run()
        await budget.credit("t", 1000, "r")
        await budget.reserve("t", kept, 100, AT_US)
        before = await ledger.read(lambda tx: (tx.journal.balances("t"), tx.journal.lines(None, None, 100)))

        def everything(tx: LedgerTx) -> None:
            assert tx.money.credit("t", 50, "r2") == Credited(950)
            assert tx.money.credit("new", 50, "r3") == Credited(50)
            assert tx.money.reserve("t", undone, 200) == Reserved(750)
            assert tx.money.settle("t", kept, 60, BY) == Closed(60, 40, 790)
            assert tx.money.refund_full("t", undone, BY) == Closed(0, 200, 990)
            assert tx.money.adjust("t", -5) == 985
            raise _Undone

        with pytest.raises(_Undone):
            await ledger.transact(everything)
        assert await budget.balance("t") == 900
        assert await budget.balance("new") == 0
        assert await budget.outcome(kept) == Open(100)
        assert await budget.outcome(undone) == NotReserved()
        assert await ledger.read(lambda tx: (tx.journal.balances("t"), tx.journal.lines(None, None, 100))) == before
        assert await ledger.read(lambda tx: tx.tenants.get("new")) is None

    async def test_open_reservations_are_told_in_looks_that_grow(
        self, budget: Budget, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("pyoco_server.ports.budget.sql._PAGE", 2)
        await budget.credit("t", 1000, "r")
        runs = [a_run() for _ in range(9)]
        for run in runs:
            await budget.reserve("t", run, 1, AT_US)
        assert [each.run_id async for each in budget.open_reservations(2 * AT_US)] == runs  # the oldest first

    async def test_a_refusal_inside_a_transaction_leaves_the_rest_of_it_alone(
        self, budget: Budget, ledger: Ledger
    ) -> None:
        """PRICED-57: a fact that is there already does not spoil the transaction it was found in"""
        await budget.credit("t", 1000, "r")

        def mixed(tx: LedgerTx) -> None:
            assert tx.money.credit("t", 5, "r") == AlreadyApplied()
            assert tx.money.reserve("t", a_run(), 2000) == Insufficient(1000)
            with pytest.raises(AmountError):
                tx.money.adjust("t", -1001)
            assert tx.money.credit("t", 5, "r2") == Credited(1005)

        await ledger.transact(mixed)
        assert await budget.balance("t") == 1005

    async def test_a_balance_has_room_for_64_bits_and_no_more(self, budget: Budget, ledger: Ledger) -> None:
        """PRICED-198: an overflow is refused, and does not become a rounded number"""
        most = MAX_AMOUNT_USD_MICROS
        given = await ledger.transact(lambda tx: [tx.money.adjust("t", most) for _ in range(1024)][-1])
        assert given == 1024 * most
        with pytest.raises(AmountError):
            await budget.credit("t", most, "too much")
        with pytest.raises(AmountError):
            await ledger.transact(lambda tx: tx.money.adjust("t", most))
        assert await budget.balance("t") == given
        assert await budget.credit("t", 1, "too much") == Credited(given + 1)

    async def test_an_operator_may_close_and_correct(self, budget: Budget, ledger: Ledger) -> None:
        """T18: without an entry of its own, for the caller writes what was decided"""
        await budget.credit("t", 1000, "r")
        charged, refunded = a_run(), a_run()
        for run in (charged, refunded):
            await budget.reserve("t", run, 100, AT_US)
        lines = await ledger.read(lambda tx: tx.journal.lines("t", None, 100))
        with pytest.raises(AmountError):
            await ledger.transact(lambda tx: tx.money.force_close(charged, 101))
        assert await ledger.transact(lambda tx: tx.money.force_close(charged, 30))
        assert await ledger.transact(lambda tx: tx.money.force_close(refunded, 0))
        assert not await ledger.transact(lambda tx: tx.money.force_close(charged, 30))
        assert not await ledger.transact(lambda tx: tx.money.force_close(a_run(), 30))
        assert await budget.outcome(charged) == Settled(30, 70)
        assert await budget.outcome(refunded) == Refunded(100)
        assert await budget.balance("t") == 800
        assert await ledger.transact(lambda tx: tx.money.adjust("t", 170)) == 970
        assert await ledger.transact(lambda tx: tx.money.adjust("new", 5)) == 5
        assert await ledger.read(lambda tx: tx.journal.lines("t", None, 100)) == lines


async def _broken_off(call: Any, turns: int) -> None:
    """Cancelled after so many turns of the loop: before it began, in the middle, or too late."""
    task = asyncio.ensure_future(call)
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def _has(budget: Budget, balance_usd_micros: int) -> bool:
    return await budget.balance("t") == balance_usd_micros
