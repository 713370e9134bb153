"""What every ledger promises of the steps of a run."""

from __future__ import annotations

from contracts.ledger_places import CLAIM, LEASE, WAYS, WHEN, Raw, attempt, row_at, rows_at
from pyoco_server.core.priced.instants import SECOND_US
from pyoco_server.core.priced.run import PricedRun
from pyoco_server.core.states.priced import STEPS, Actor, At, Basis, Money, Stage, Status
from pyoco_server.ports.ledger.port import LOST, Final, Ledger, LedgerTx, Lost
from support.priced.ledgers import COMPLETES, FAILS, POINTER, REFUNDS, SPANS, Skew

__all__ = ["LedgerSteps"]

_ROWS = "SELECT CAST(run_id AS TEXT), r.* FROM runs r"


def is_refused(answer: PricedRun | Lost | bool) -> bool:
    return answer is LOST or answer is False


class LedgerSteps:
    async def test_a_step_is_taken_from_its_places_and_from_no_other(
        self, ledger: Ledger, skew: Skew, raw: Raw
    ) -> None:
        """PRICED-6, PRICED-15, PRICED-188, PRICED-220"""
        tried = [(step, place) for step in STEPS for place in WAYS]
        runs = await rows_at(ledger, skew, [place for _, place in tried], [step for step, _ in tried])
        before = {row[0]: row for row in raw(_ROWS)}
        start, answers = skew.us, []
        for step in STEPS:
            skew.us = start + WHEN.get(step, 0) * SECOND_US
            mine = [run for run, (of, _) in zip(runs, tried, strict=True) if of == step]
            answers += await ledger.transact(lambda tx, s=step, m=mine: [attempt(tx, s, run) for run in m])  # type: ignore[misc]
        after = {row[0]: row for row in raw(_ROWS)}
        now = await ledger.read(lambda tx: [tx.runs.get(run.run_id) for run in runs])
        for (step, place), run, answer, read in zip(tried, runs, answers, now, strict=True):
            if run.at not in STEPS[step].sources:
                assert is_refused(answer), f"{step} was taken at {place}"
                assert after[run.run_id] == before[run.run_id], f"{step} left a trace at {place}"
            elif step == "T3":
                assert (answer, read) == (True, None)
            else:
                assert read is not None
                assert answer is True or answer == read
                assert read.version == run.version + STEPS[step].counts
                assert read.at in {to for source, to in STEPS[step].arrivals() if source == run.at}

    async def test_a_step_needs_the_version_it_was_decided_on(self, ledger: Ledger, skew: Skew, raw: Raw) -> None:
        """PRICED-15, PRICED-25, PRICED-188"""
        steps = [step for step in STEPS if step != "T3"]
        runs = await rows_at(ledger, skew, [_source(step) for step in steps], steps)
        before, start = sorted(raw(_ROWS)), skew.us
        for step, run in zip(steps, runs, strict=True):
            skew.us = start + WHEN.get(step, 0) * SECOND_US

            def guess(tx: LedgerTx, step: str = step, run: PricedRun = run) -> bool:
                wrong = (run.version - 1, run.version + 1)
                return all(is_refused(attempt(tx, step, run, version=version)) for version in wrong)

            assert await ledger.transact(guess), step
        assert sorted(raw(_ROWS)) == before

    async def test_a_step_of_a_holder_needs_its_token(self, ledger: Ledger, skew: Skew, raw: Raw) -> None:
        """PRICED-20, PRICED-25, PRICED-188"""
        tokens = {"T5": "lease", "T6": "lease"} | dict.fromkeys(("T7", "T8", "T10", "T14", "T17", "T19"), "claim")
        runs = await rows_at(ledger, skew, [_source(step) for step in tokens])
        before = sorted(raw(_ROWS))

        def guess(tx: LedgerTx) -> list[str]:
            tried = zip(tokens.items(), runs, strict=True)
            return [step for (step, name), run in tried if not is_refused(attempt(tx, step, run, **{name: "another"}))]

        assert await ledger.transact(guess) == []
        assert sorted(raw(_ROWS)) == before

    async def test_a_step_is_measured_by_the_ledgers_clock_when_it_is_taken(self, ledger: Ledger, skew: Skew) -> None:
        """PRICED-27, PRICED-180"""
        #: Seconds after the row was made: not then, and then.
        measured = {
            "T4": (3_600, 3_590),
            "T5": (121, 110),
            "T9": (110, 121),
            "T11": (3_590, 3_600),
            "T12": (50, 61),
            "T15": (290, 301),
            "T16": (SPANS.retention_seconds - 10, SPANS.retention_seconds),
        }
        places = {step: _source(step) for step in measured} | {"T15": "PROCESSING/RESERVED/CLAIMED"}
        runs = await rows_at(ledger, skew, [places[step] for step in measured])
        start = skew.us
        for (step, (no, yes)), run in zip(measured.items(), runs, strict=True):
            for seconds, is_taken in ((no, False), (yes, True)):
                skew.us = start + seconds * SECOND_US
                answer = await ledger.transact(lambda tx, s=step, r=run: attempt(tx, s, r))  # type: ignore[misc]
                assert is_refused(answer) != is_taken, f"{step} after {seconds} s"
        skew.us = start

    async def test_a_claim_writes_who_holds_it_and_what_was_decided(self, ledger: Ledger, skew: Skew) -> None:
        """PRICED-17"""
        run = await row_at(ledger, skew, "PROCESSING/RESERVED/OPEN")
        claimed = await ledger.transact(
            lambda tx: tx.ends.claim(run.run_id, run.version, Basis.LEASE, CLAIM, Actor.WORKER, COMPLETES, LEASE)
        )
        assert isinstance(claimed, PricedRun)
        assert (claimed.finalize_token, claimed.finalize_actor, claimed.intent) == (CLAIM, Actor.WORKER, COMPLETES)
        assert claimed.finalize_claimed_at is not None
        assert (claimed.result, claimed.actual_cost_usd_micros) == (None, None)

    async def test_who_takes_a_stale_claim_over_keeps_the_intent_and_fences_the_old_holder(
        self, ledger: Ledger, skew: Skew
    ) -> None:
        """PRICED-25"""
        run = await row_at(ledger, skew, "PROCESSING/RESERVED/CLAIMED")
        skew.move(301)
        taken = await ledger.transact(lambda tx: tx.ends.take_over(run.run_id, run.version, "claim-2", Actor.RECONCILE))
        assert isinstance(taken, PricedRun)
        assert (taken.finalize_token, taken.finalize_actor) == ("claim-2", Actor.RECONCILE)
        assert taken.intent == run.intent == COMPLETES
        assert taken.finalize_claimed_at is not None
        assert run.finalize_claimed_at is not None
        assert taken.finalize_claimed_at > run.finalize_claimed_at
        old = await ledger.transact(lambda tx: attempt(tx, "T7", taken))
        assert old is LOST

    async def test_only_an_intent_to_complete_is_replaced(self, ledger: Ledger, skew: Skew) -> None:
        """PRICED-6"""
        run = await row_at(ledger, skew, "PROCESSING/RESERVED/CLAIMED")
        changed = await ledger.transact(lambda tx: tx.ends.replace_intent(run.run_id, run.version, CLAIM, FAILS))
        assert isinstance(changed, PricedRun)
        assert changed.intent == FAILS
        again = await ledger.transact(lambda tx: tx.ends.replace_intent(run.run_id, changed.version, CLAIM, REFUNDS))
        assert again is LOST

    async def test_a_success_publishes_the_pointer_and_a_failure_does_not(self, ledger: Ledger, skew: Skew) -> None:
        """PRICED-8, PRICED-12, PRICED-20"""
        good, bad = await rows_at(ledger, skew, ["COMPLETED/SETTLED/COMMITTED", "FAILED/SETTLED/COMMITTED"])
        assert (good.result, good.actual_cost_usd_micros, good.reason_code) == (POINTER, 50_000, None)
        assert (bad.result, bad.actual_cost_usd_micros, bad.reason_code) == (None, 5_000, "WORKER_TIMEOUT")

    async def test_an_operator_decides_any_end(self, ledger: Ledger, skew: Skew) -> None:
        """PRICED-7"""
        decisions = {
            (Status.COMPLETED, Money.SETTLED): (COMPLETES, 0),
            (Status.FAILED, Money.SETTLED): (FAILS, 123),
            (Status.FAILED, Money.REFUNDED): (REFUNDS, 0),
        }
        for place in ("QUEUED/DISPUTED/CLAIMED", "PROCESSING/DISPUTED/CLAIMED"):
            for (status, money), (intent, charge) in decisions.items():
                run = await row_at(ledger, skew, place)
                final = Final(step="T18", intent=intent, charge_usd_micros=charge)
                ended = await ledger.transact(
                    lambda tx, run=run, final=final: tx.ends.resolve(run.run_id, run.version, final)  # type: ignore[misc]
                )
                assert isinstance(ended, PricedRun)
                assert ended.at == At(status, money, Stage.COMMITTED)
                assert (ended.actual_cost_usd_micros, ended.finalize_actor) == (charge, Actor.OPERATOR)

    async def test_what_has_expired_has_lost_its_content_and_keeps_its_money(
        self, ledger: Ledger, skew: Skew, raw: Raw
    ) -> None:
        """PRICED-12, PRICED-31, PRICED-32"""
        run = await row_at(ledger, skew, "EXPIRED/SETTLED/COMMITTED")
        assert (run.result, run.error_detail, run.idempotency_key, run.intent) == (None, None, None, None)
        assert (run.reserved_usd_micros, run.actual_cost_usd_micros) == (250_000, 50_000)
        assert await ledger.read(lambda tx: tx.runs.inputs(run.run_id)) is None
        assert POINTER.key not in str(raw("SELECT * FROM runs"))


def _source(step: str) -> str:
    """A place the step can be taken from."""
    return str(min(STEPS[step].sources, key=str))
