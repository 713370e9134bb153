"""What every ledger promises. An adapter passes all of it or does not ship."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from contracts.ledger_places import CLAIM, LEASE, WAYS, WHEN, Raw, attempt, row_at, rows_at
from contracts.ledger_steps import LedgerSteps
from pyoco_server.core.priced import journal
from pyoco_server.core.priced.instants import SECOND_US
from pyoco_server.core.priced.run import PricedRun, TenantStatus
from pyoco_server.core.states.priced import Actor, At, Basis, Money, Stage, Status
from pyoco_server.errors import PyocoError
from pyoco_server.ports.ledger.port import LOST, Exists, Final, Ledger, LedgerTx, Lost, Scan
from support.priced.ledgers import COMPLETES, POINTER, REFUNDS, SPANS, Skew, a_new_run, a_reserved_run, an_id

__all__ = ["LedgerContract"]

HUGE = 9_000_000_000_000_000


@dataclass(frozen=True)
class Sought:
    """What a scan looks for, and when, in seconds after the rows were made."""

    places: set[str]
    by: Callable[[PricedRun], int]
    #: Negative: it is never too early.
    too_early: int
    in_time: int


def _lease_end(run: PricedRun) -> int:
    return run.lease_expires_at or 0


def _claimed(run: PricedRun) -> int:
    return run.finalize_claimed_at or 0


def _created(run: PricedRun) -> int:
    return run.created_at


_STALE = {"QUEUED/NONE/CLAIMED", "QUEUED/RESERVED/CLAIMED", "PROCESSING/RESERVED/CLAIMED"}
_ENDED = {"COMPLETED/SETTLED/COMMITTED", "FAILED/SETTLED/COMMITTED", "FAILED/REFUNDED/COMMITTED"}
_DISPUTED = {"QUEUED/DISPUTED/CLAIMED", "PROCESSING/DISPUTED/CLAIMED"}

SOUGHT = {
    Scan.EXPIRED_LEASES: Sought({"PROCESSING/RESERVED/OPEN"}, _lease_end, 110, 140),
    Scan.LONG_EXPIRED_LEASES: Sought({"PROCESSING/RESERVED/OPEN"}, _lease_end, 410, 440),
    Scan.AGED: Sought({"QUEUED/RESERVED/OPEN"}, _created, 3_590, 3_620),
    Scan.ABANDONED: Sought({"QUEUED/NONE/OPEN"}, _created, 50, 80),
    Scan.UNSENT: Sought({"QUEUED/RESERVED/OPEN"}, _created, 50, 80),
    Scan.STALE_CLAIMS: Sought(_STALE, _claimed, 290, 380),
    Scan.PAST_RETENTION: Sought(
        _ENDED, lambda run: run.retention_until, SPANS.retention_seconds - 10, SPANS.retention_seconds + 20
    ),
    Scan.DISPUTED: Sought(_DISPUTED, _claimed, -1, 20),
}


def _noting(text: str) -> Callable[[LedgerTx], None]:
    return lambda tx: tx.notes.put("budget_mode", text)


class Undo(Exception):
    """Raised by a transaction that shall not happen."""


class LedgerContract(LedgerSteps):
    """Fixtures: `ledger`, whose clock is `skew`; `others`, more handles on the same database, as other processes have
    them; `raw`."""

    # --- the beginning of a run ---------------------------------------------------------------------------------------

    async def test_a_new_run_is_stored_as_it_was_asked_for(self, ledger: Ledger) -> None:
        """PRICED-32"""
        inputs = {"text": "\x00 é 😀 \u2028 ' \" \\", "list": [None, True, 1.5, -3], "none": {}}
        ask = a_new_run(inputs=inputs, artifacts={"md": True}, api_key_id="k-1", inline=1)
        made = await ledger.transact(lambda tx: tx.runs.create(ask))
        assert isinstance(made, PricedRun)
        assert made.at == At(Status.QUEUED, Money.NONE, Stage.OPEN)
        assert (made.version, made.inline, made.artifacts, made.api_key_id) == (0, 1, {"md": True}, "k-1")
        assert made.created_at == made.updated_at
        assert made.retention_until == made.created_at + 30 * 86_400 * SECOND_US
        assert await ledger.read(lambda tx: tx.runs.get(ask.run_id)) == made
        assert await ledger.read(lambda tx: tx.runs.inputs(ask.run_id)) == inputs
        assert await ledger.read(lambda tx: tx.runs.find_by_key("anna", ask.idempotency_key)) == made
        assert await ledger.read(lambda tx: tx.runs.find_by_key("bert", ask.idempotency_key)) is None

    async def test_a_key_is_used_once_per_tenant(self, ledger: Ledger) -> None:
        """PRICED-30, PRICED-182"""
        ask = a_new_run()
        first = await ledger.transact(lambda tx: tx.runs.create(ask))
        again = await ledger.transact(lambda tx: tx.runs.create(replace(ask, run_id=an_id(), payload_hash="1" * 64)))
        assert again == Exists(first)  # type: ignore[arg-type]
        other = await ledger.transact(lambda tx: tx.runs.create(replace(ask, run_id=an_id(), tenant_id="bert")))
        assert isinstance(other, PricedRun)

    async def test_of_many_who_create_under_one_key_one_does(
        self, ledger: Ledger, others: list[Ledger], raw: Raw
    ) -> None:
        """PRICED-182"""
        handles = [ledger, *others]
        asks = [a_new_run(idempotency_key="the-same-key") for _ in range(16)]
        answers = await asyncio.gather(
            *(handles[n % len(handles)].transact(lambda tx, ask=ask: tx.runs.create(ask)) for n, ask in enumerate(asks))  # type: ignore[misc]
        )
        (winner,) = [answer for answer in answers if isinstance(answer, PricedRun)]
        assert [answer for answer in answers if answer is not winner] == [Exists(winner)] * 15
        assert raw("SELECT count(*) FROM runs") == raw("SELECT count(*) FROM run_inputs") == [(1,)]

    async def test_a_deleted_run_leaves_nothing_and_frees_its_key(self, ledger: Ledger, raw: Raw) -> None:
        """PRICED-31, PRICED-89"""
        ask = a_new_run()
        await ledger.transact(lambda tx: tx.runs.create(ask))
        assert await ledger.transact(lambda tx: tx.runs.delete_unreserved(ask.run_id)) is True
        assert await ledger.transact(lambda tx: tx.runs.delete_unreserved(ask.run_id)) is False
        assert raw("SELECT * FROM run_inputs") == []
        assert isinstance(await ledger.transact(lambda tx: tx.runs.create(replace(ask, run_id=an_id()))), PricedRun)

    async def test_released_keys_do_not_collide(self, ledger: Ledger, skew: Skew) -> None:
        """PRICED-30, PRICED-89"""
        for _ in range(3):
            final = Final(step="T14", intent=REFUNDS, charge_usd_micros=0, releases_key=True)

            def work(tx: LedgerTx, final: Final = final) -> PricedRun | Lost:
                run: Any = a_reserved_run(tx, idempotency_key="the-same-key")
                run = tx.ends.claim(run.run_id, run.version, Basis.SEND_FAILED, CLAIM, Actor.API, REFUNDS)
                return tx.ends.commit(run.run_id, run.version, CLAIM, final)

            ended = await ledger.transact(work)
            assert isinstance(ended, PricedRun)
            assert ended.idempotency_key is None

    async def test_being_sent_is_no_step(self, ledger: Ledger) -> None:
        """PRICED-6, PRICED-15"""
        run = await ledger.transact(a_reserved_run)
        await ledger.transact(lambda tx: tx.runs.mark_enqueued(run.run_id))
        sent = await ledger.read(lambda tx: tx.runs.get(run.run_id))
        assert sent is not None
        assert sent.enqueued_at is not None
        assert replace(sent, enqueued_at=None) == run

    # --- together -----------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize(("step", "place"), [("T4", "QUEUED/RESERVED/OPEN"), ("T9", "PROCESSING/RESERVED/OPEN")])
    async def test_of_many_with_the_same_guard_one_wins(
        self, ledger: Ledger, others: list[Ledger], skew: Skew, step: str, place: str
    ) -> None:
        """PRICED-179"""
        handles = [ledger, *others]
        run = await row_at(ledger, skew, place)
        skew.move(WHEN.get(step, 0))
        answers = await asyncio.gather(
            *(handles[n % len(handles)].transact(lambda tx: attempt(tx, step, run)) for n in range(16))
        )
        assert sum(isinstance(answer, PricedRun) for answer in answers) == 1
        assert answers.count(LOST) == 15

    async def test_a_heartbeat_between_scan_and_claim_defeats_the_claim(self, ledger: Ledger, skew: Skew) -> None:
        """PRICED-153, PRICED-180"""
        run = await row_at(ledger, skew, "PROCESSING/RESERVED/OPEN")
        skew.move(100)
        assert await ledger.transact(lambda tx: tx.leases.heartbeat(run.run_id, run.version, LEASE))
        skew.move(100)  # the lease that the scan saw has ended
        assert await ledger.transact(lambda tx: attempt(tx, "T9", run)) is LOST

    async def test_a_transaction_is_done_whole_or_not(self, ledger: Ledger, raw: Raw) -> None:
        """PRICED-183"""

        def work(tx: LedgerTx) -> None:
            a_reserved_run(tx)
            tx.money.credit("anna", 1_000_000, "a-gift")
            tx.journal.post(journal.topup("anna", "another", 5))
            raise Undo

        with pytest.raises(Undo):
            await ledger.transact(work)
        for table in ("tenants", "runs", "run_inputs", "budgets", "reservations", "ledger_txns", "ledger_entries"):
            assert raw(f"SELECT * FROM {table}") == []
        # What it learned of tenants was undone as well.
        assert await ledger.transact(a_reserved_run)

    async def test_a_read_sees_one_moment_and_waits_for_no_writer(self, ledger: Ledger) -> None:
        """PRICED-183"""
        run = await ledger.transact(a_reserved_run)
        looked, moved = threading.Event(), threading.Event()

        def look_twice(tx: LedgerTx) -> tuple[PricedRun | None, PricedRun | None]:
            before = tx.runs.get(run.run_id)
            looked.set()
            assert moved.wait(60)
            return before, tx.runs.get(run.run_id)

        reading = asyncio.create_task(ledger.read(look_twice))
        await asyncio.to_thread(looked.wait, 60)
        await ledger.transact(lambda tx: tx.leases.start(run.run_id, run.version, LEASE))
        moved.set()
        assert await reading == (run, run)

    async def test_a_read_cannot_write(self, ledger: Ledger, raw: Raw) -> None:
        with pytest.raises(PyocoError):
            await ledger.read(a_reserved_run)
        assert raw("SELECT * FROM runs") == []
        assert isinstance(await ledger.transact(a_reserved_run), PricedRun)

    async def test_numbers_of_64_bits_come_back_as_they_were(self, ledger: Ledger) -> None:
        """PRICED-184"""
        intent = replace(
            COMPLETES, charge_usd_micros=HUGE, tokens_consumed=HUGE, result=replace(POINTER, size_bytes=HUGE)
        )

        def work(tx: LedgerTx) -> PricedRun | Lost:
            run: Any = a_reserved_run(tx, reserved_usd_micros=HUGE, minimum_fee_usd_micros=HUGE)
            run = tx.leases.start(run.run_id, run.version, LEASE)
            run = tx.ends.claim(run.run_id, run.version, Basis.LEASE, CLAIM, Actor.WORKER, intent, LEASE)
            final = Final(step="T7", intent=intent, charge_usd_micros=HUGE)
            return tx.ends.commit(run.run_id, run.version, CLAIM, final)

        ended = await ledger.transact(work)
        assert isinstance(ended, PricedRun)
        read = await ledger.read(lambda tx: tx.runs.get(ended.run_id))
        assert read == ended
        assert (read.reserved_usd_micros, read.actual_cost_usd_micros, read.tokens_consumed) == (HUGE,) * 3
        assert read.intent == intent
        assert read.result is not None
        assert read.result.size_bytes == HUGE

    # --- what the tables refuse ---------------------------------------------------------------------------------------

    async def test_the_journal_cannot_be_changed(self, ledger: Ledger, raw: Raw) -> None:
        """PRICED-56, PRICED-185"""
        await ledger.transact(lambda tx: tx.money.credit("anna", 1_000_000, "a-gift"))
        for table in ("ledger_txns", "ledger_entries"):
            before = raw(f"SELECT * FROM {table}")
            assert before
            for change in (f"UPDATE {table} SET txn_id = txn_id + 100", f"DELETE FROM {table}"):
                with pytest.raises(Exception, match="append-only"):
                    raw(change)
            assert raw(f"SELECT * FROM {table}") == before

    async def test_a_row_that_must_not_be_cannot_be(self, ledger: Ledger, skew: Skew, raw: Raw) -> None:
        """PRICED-8, PRICED-9, PRICED-10, PRICED-14"""
        await row_at(ledger, skew, "PROCESSING/RESERVED/OPEN")
        for change in (
            "actual_cost_usd_micros = reservation_max_cost_usd_micros + 1",  # PRICED-8
            "actual_cost_usd_micros = -1",
            "reservation_max_cost_usd_micros = 0",
            "status = 'FAILED', finalize_stage = 'COMMITTED'",  # PRICED-9: the money is still reserved
            "status = 'FAILED', money_state = 'SETTLED'",  # PRICED-10
            "finalize_stage = 'COMMITTED'",  # PRICED-10
            "lease_token = NULL",  # PRICED-14
            "lease_expires_at = NULL",  # PRICED-14
            "status = 'RUNNING'",
            "money_state = 'LOST'",
            "timebox_sec = 91",
        ):
            with pytest.raises(Exception, match=r"(?i)constraint"):
                raw(f"UPDATE runs SET {change}")

    # --- reading ------------------------------------------------------------------------------------------------------

    async def test_a_foreign_run_is_as_a_missing_one(self, ledger: Ledger) -> None:
        """PRICED-187"""
        run = await ledger.transact(a_reserved_run)
        asked = [(run.run_id, "bert"), (an_id(), "anna"), ("no-uuid", "anna"), (run.run_id.upper(), "anna"), ("", "")]
        for run_id, tenant_id in asked:
            found = await ledger.read(lambda tx, r=run_id, t=tenant_id: tx.runs.get_owned(r, t))  # type: ignore[misc]
            assert found is None
        assert await ledger.read(lambda tx: tx.runs.get_owned(run.run_id, "anna")) == run

    async def test_a_scan_finds_what_qualifies_the_oldest_first(self, ledger: Ledger, skew: Skew) -> None:
        """PRICED-152, PRICED-156, PRICED-157, PRICED-158, PRICED-159, PRICED-164, PRICED-186"""
        start, runs = skew.us, []
        for _ in range(3):
            runs += await rows_at(ledger, skew, list(WAYS))
            skew.move(1)
        for kind, sought in SOUGHT.items():
            skew.us = start + sought.too_early * SECOND_US
            assert sought.too_early < 0 or await ledger.read(lambda tx, k=kind: tx.runs.scan(k, 100)) == [], kind  # type: ignore[misc]
            skew.us = start + sought.in_time * SECOND_US
            found = await ledger.read(lambda tx, k=kind: tx.runs.scan(k, 100))  # type: ignore[misc]
            assert {run.run_id for run in found} == {run.run_id for run in runs if str(run.at) in sought.places}, kind
            assert [sought.by(run) for run in found] == sorted(sought.by(run) for run in found), kind
            assert await ledger.read(lambda tx, k=kind: tx.runs.scan(k, 2)) == found[:2]  # type: ignore[misc]

    async def test_what_was_sent_or_is_too_old_is_not_sent_again(self, ledger: Ledger, skew: Skew) -> None:
        """PRICED-158"""
        sent, unsent = [await ledger.transact(a_reserved_run) for _ in range(2)]
        await ledger.transact(lambda tx: tx.runs.mark_enqueued(sent.run_id))
        skew.move(61)
        assert await ledger.read(lambda tx: tx.runs.scan(Scan.UNSENT, 10)) == [unsent]
        skew.move(3_540)
        assert await ledger.read(lambda tx: tx.runs.scan(Scan.UNSENT, 10)) == []
        assert len(await ledger.read(lambda tx: tx.runs.scan(Scan.AGED, 10))) == 2

    async def test_what_was_sent_to_a_queue_that_is_lost_counts_as_not_sent(self, ledger: Ledger, skew: Skew) -> None:
        """PRICED-158: runs that wait, and no others; it is no step"""
        waiting, started, later = [await ledger.transact(a_reserved_run) for _ in range(3)]
        await ledger.transact(lambda tx: tx.runs.mark_enqueued(waiting.run_id))
        await ledger.transact(lambda tx: tx.runs.mark_enqueued(started.run_id))
        await ledger.transact(lambda tx: tx.leases.start(started.run_id, started.version, LEASE))
        skew.move(61)
        lost_at = await ledger.read(lambda tx: tx.now_us())
        await ledger.transact(lambda tx: tx.runs.mark_enqueued(later.run_id))
        assert await ledger.transact(lambda tx: tx.runs.forget_sent(lost_at)) == 1
        assert await ledger.transact(lambda tx: tx.runs.forget_sent(lost_at)) == 0
        assert await ledger.read(lambda tx: tx.runs.scan(Scan.UNSENT, 10)) == [waiting]

    async def test_a_row_that_keeps_qualifying_is_found_once_older_ones_are_handled(
        self, ledger: Ledger, skew: Skew
    ) -> None:
        """PRICED-186"""
        old, young = await row_at(ledger, skew, "PROCESSING/RESERVED/OPEN"), None
        skew.move(1)
        young = await row_at(ledger, skew, "PROCESSING/RESERVED/OPEN")
        skew.move(200)
        (first,) = await ledger.read(lambda tx: tx.runs.scan(Scan.EXPIRED_LEASES, 1))
        assert first == old
        await ledger.transact(lambda tx: attempt(tx, "T9", old))
        assert await ledger.read(lambda tx: tx.runs.scan(Scan.EXPIRED_LEASES, 1)) == [young]

    async def test_changes_are_read_in_their_order_and_none_twice(self, ledger: Ledger, skew: Skew) -> None:
        runs = []
        for _ in range(5):
            runs.append(await ledger.transact(a_reserved_run))
            skew.move(1)
        oldest = await ledger.transact(lambda tx: tx.leases.start(runs[0].run_id, runs[0].version, LEASE))
        found: list[PricedRun] = []
        at, run_id = 0, ""
        while page := await ledger.read(lambda tx, at=at, run_id=run_id: tx.runs.changed_since(at, run_id, 2)):  # type: ignore[misc]
            found += page
            at, run_id = page[-1].updated_at, page[-1].run_id
        assert found == [*runs[1:], oldest]

    async def test_runs_whose_money_is_open_are_known(self, ledger: Ledger, skew: Skew) -> None:
        """PRICED-61"""
        runs = await rows_at(ledger, skew, list(WAYS))
        open_money = {Money.NONE, Money.RESERVED, Money.DISPUTED}
        found = await ledger.read(lambda tx: tx.runs.unsettled("anna"))
        assert {run.run_id for run in found} == {run.run_id for run in runs if run.money in open_money}
        assert await ledger.read(lambda tx: tx.runs.unsettled("bert")) == []

    # --- tenants and the clock ----------------------------------------------------------------------------------------

    async def test_a_tenant_is_made_once_with_a_budget_of_nothing(self, ledger: Ledger, raw: Raw) -> None:
        made = await ledger.transact(lambda tx: tx.tenants.ensure("anna", "Anna & Co"))
        assert (made.display_name, made.status, made.rate_limit_per_min) == ("Anna & Co", TenantStatus.ACTIVE, None)
        assert await ledger.transact(lambda tx: tx.tenants.ensure("anna", "another")) == made
        assert raw("SELECT tenant_id, balance_usd_micros FROM budgets") == [("anna", 0)]
        assert await ledger.read(lambda tx: tx.tenants.get("bert")) is None

    async def test_a_tenant_is_suspended_and_slowed_down(self, ledger: Ledger) -> None:
        await ledger.transact(lambda tx: [tx.tenants.ensure(name) for name in ("c", "a", "b")])
        assert await ledger.transact(lambda tx: tx.tenants.set_status("a", TenantStatus.SUSPENDED))
        assert await ledger.transact(lambda tx: tx.tenants.set_rate_limit("a", 7))
        assert not await ledger.transact(lambda tx: tx.tenants.set_status("x", TenantStatus.SUSPENDED))
        assert not await ledger.transact(lambda tx: tx.tenants.set_rate_limit("x", None))
        first = await ledger.read(lambda tx: tx.tenants.all(limit=2))
        assert [tenant.tenant_id for tenant in first] == ["a", "b"]
        assert (first[0].status, first[0].rate_limit_per_min) == (TenantStatus.SUSPENDED, 7)
        assert [tenant.tenant_id for tenant in await ledger.read(lambda tx: tx.tenants.all(after="b"))] == ["c"]

    async def test_the_clock_is_the_ledgers(self, ledger: Ledger, skew: Skew) -> None:
        """PRICED-27"""
        before = await ledger.read(lambda tx: tx.now_us())
        skew.move(1_000)
        run = await ledger.transact(a_reserved_run)
        after = await ledger.read(lambda tx: tx.now_us())
        assert before + 1_000 * SECOND_US <= run.created_at <= run.updated_at <= after

    async def test_a_note_is_there_for_others_until_another_takes_its_place(self, ledger: Ledger) -> None:
        """Whatever its name: it never meets what all have to agree on"""
        mode = await ledger.read(lambda tx: tx.modes.get())
        assert await ledger.read(lambda tx: tx.notes.get("budget_mode")) is None
        for text in ("first", "second ü"):
            await ledger.transact(_noting(text))
            assert await ledger.read(lambda tx: tx.notes.get("budget_mode")) == text
        assert await ledger.read(lambda tx: tx.modes.get()) is mode

    async def test_its_id_is_given_when_it_is_created_and_never_changes(self, ledger: Ledger) -> None:
        """SAFE-12"""
        given = await ledger.stored_id()
        assert given is not None
        assert str(uuid.UUID(given)) == given
        assert await ledger.transact(lambda tx: tx.identity.give("another")) == given
        assert await ledger.read(lambda tx: tx.identity.get()) == given == await ledger.stored_id()

    async def test_it_says_that_it_is_there(self, ledger: Ledger) -> None:
        await ledger.ping()
