"""Anything that can happen to priced runs, in any order, against what must always hold.

Submits, replays, starts, heartbeats, ends, keepers, crashes at any point, calls that fail before or after they took
effect, pauses, duplicate deliveries. After each of them money is conserved; in the end every run has one end.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from pyoco_server.actions.priced import submit as submitting
from pyoco_server.actions.priced.beat import beat
from pyoco_server.actions.priced.patience import NO_PATIENCE
from pyoco_server.actions.priced.start import Skip, Started, start_run
from pyoco_server.actions.priced.submit import submit
from pyoco_server.core.priced.run import PricedRun
from pyoco_server.core.states.priced import Money, Stage, Status
from pyoco_server.errors import DependencyUnavailable, KeyBusy, KeyReused, OverBudget, SendFailed
from pyoco_server.loops.priced.duty import Duty
from pyoco_server.loops.priced.reaper import Reaper
from pyoco_server.loops.priced.reconciler import Reconciler
from pyoco_server.loops.priced.retainer import Retainer
from pyoco_server.loops.priced.sweeper import Sweeper
from pyoco_server.ports.budget.port import Open, Settled
from pyoco_server.ports.pack_queue.port import Delivery
from support.priced.faults import AFTER, BEFORE, Trouble, with_trouble
from support.priced.stacks import BOTH_MODES, Killed, Stack, an_ask, message_of, open_stack
from support.servers import unique

T = TypeVar("T")

SUBMIT_POINTS = ("submit.after_insert", "submit.after_reserve", "submit.after_mark_reserved", "submit.after_send")
END_POINTS = ("worker.after_upload", "finalize.after_claim", "finalize.after_money", "finalize.after_commit")
DUTIES = (Reaper, Sweeper, Reconciler, Retainer)
PAUSES = (1, 61, 121, 301, 3601)

crashes_in_submit = st.none() | st.sampled_from(SUBMIT_POINTS)
crashes_in_end = st.none() | st.sampled_from(END_POINTS)
#: Which of those there are. Not drawn from a list of runs: that would depend on ids and on the clock.
numbers = st.integers(0, 99)
faults = st.none() | st.tuples(st.integers(0, 10), st.sampled_from([BEFORE, AFTER]))


@dataclass
class World:
    """One stack for all examples; each example has a tenant of its own."""

    stack: Stack
    run: Callable[[Coroutine[Any, Any, Any]], Any]


@dataclass
class Known:
    """What the model knows of a run."""

    key: str
    payload: int
    versions: list[int] = field(default_factory=list)
    end: PricedRun | None = None
    #: By whom it was started, as that worker knows it.
    started: PricedRun | None = None


class PricedRuns(RuleBasedStateMachine):
    def __init__(self, world: World) -> None:
        super().__init__()
        self._stack, self._run = world.stack, world.run
        self._tenant = unique("t")
        self._credited = 0
        self._runs: dict[str, Known] = {}

    @initialize(usd_micros=st.sampled_from([100_000, 1_000_000]))
    def begins_with_some_money(self, usd_micros: int) -> None:
        self._credit(usd_micros)

    @rule(usd_micros=st.sampled_from([1, 50_000]))
    def credit(self, usd_micros: int) -> None:
        self._credit(usd_micros)

    @rule(
        key=st.sampled_from(["key-aaaa", "key-bbbb", "key-cccc"]),
        payload=st.sampled_from([60_000, 60_000, 60_000, 10_000]),
        crash=crashes_in_submit,
        fault=faults,
        queue_fails=st.sampled_from([False, False, False, True]),
    )
    def submit(
        self, key: str, payload: int, crash: str | None, fault: tuple[int, str] | None, queue_fails: bool
    ) -> None:
        # Reserved for one page: the worker of this model charges more, and the tenant pays what was reserved.
        ask = an_ask(key, payload, self._tenant, pack_type="ocr")
        trouble = Trouble(
            {"queue.send": [BEFORE]} if queue_fails else {}, at=fault and fault[0], fate=fault[1] if fault else ""
        )
        self._runs[ask.run_id] = Known(key, payload)
        balance = self._run(self._stack.balance(self._tenant))
        try:
            with self._dying_at(crash):
                accepted = self._run(submit(with_trouble(self._stack.priced, trouble), ask))
        except OverBudget:
            assert balance < payload
        except KeyReused:
            assert any((run.key, run.payload != payload) == (key, True) for run in self._runs.values())
        except (KeyBusy, SendFailed, DependencyUnavailable, Killed):
            pass
        else:
            assert accepted.replayed == (accepted.run.run_id != ask.run_id)
            known = self._runs[accepted.run.run_id]
            assert (known.key, known.payload) == (key, payload)

    @rule(number=numbers)
    def deliver(self, number: int) -> None:
        """A first message, or one more of a run that was delivered before."""
        rows = list(self._rows().values())
        if not rows:
            return
        row = rows[number % len(rows)]
        got = self._run(start_run(self._stack.priced, message_of(row), Delivery(b"", 1, None)))
        assert isinstance(got, Started | Skip)
        if isinstance(got, Started):
            assert self._runs[row.run_id].started is None, "a run is started at most once"
            self._runs[row.run_id].started = got.run

    @rule(number=numbers)
    def heartbeat(self, number: int) -> None:
        run = self._working(number)
        if run is None:
            return
        row = self._rows()[run.run_id]
        is_alive = self._run(beat(self._stack.priced, run, run.lease_token or ""))
        assert not is_alive or row.at == run.at

    @rule(number=numbers, fails=st.booleans(), crash=crashes_in_end, fault=faults)
    def end(self, number: int, fails: bool, crash: str | None, fault: tuple[int, str] | None) -> None:
        run = self._working(number)
        if run is None:
            return
        trouble = Trouble(at=fault and fault[0], fate=fault[1] if fault else "")
        worker = replace(self._stack, priced=with_trouble(self._stack.priced, trouble))
        with contextlib.suppress(Killed, DependencyUnavailable), self._dying_at(crash):
            self._run(worker.end(run, fails=fails, patience=NO_PATIENCE))

    @rule(duty=st.sampled_from(DUTIES), crash=crashes_in_end)
    def keeper(self, duty: type[Reaper], crash: str | None) -> None:
        with contextlib.suppress(Killed), self._dying_at(crash):
            self._run(self._turn(duty(self._stack.priced)))

    @rule(seconds=st.sampled_from(PAUSES))
    def pause(self, seconds: int) -> None:
        self._stack.skew.move(seconds)

    @invariant()
    def every_row_is_where_it_may_be(self) -> None:
        """PRICED-8, PRICED-9, PRICED-10, PRICED-11, PRICED-13, PRICED-15"""
        rows = self._rows()
        keys = [row.idempotency_key for row in rows.values() if row.idempotency_key is not None]
        assert len(keys) == len(set(keys))
        for run_id, row in rows.items():
            known = self._runs[run_id]
            assert row.has_ended == (row.stage is Stage.COMMITTED)
            assert not known.versions or row.version >= known.versions[-1]
            known.versions.append(row.version)
            if known.end is not None:
                assert row == known.end, "nothing leaves an end"
            if row.has_ended:
                known.end = row
                self._check_end(row, known)

    @invariant()
    def no_money_is_lost_or_made(self) -> None:
        """PRICED-16, PRICED-49"""
        sums = self._run(self._stack.balances(self._tenant))
        assert sums.credited_usd_micros == self._credited
        assert sums.available_usd_micros + sums.held_usd_micros + sums.charged_usd_micros == self._credited
        assert self._run(self._budget_total()) == self._credited

    def teardown(self) -> None:
        """Whatever was left half-way, keepers bring to its end."""
        self._stack.points.kill_at = None
        for seconds in (61, 301, 3601, 301, 601):
            self._stack.skew.move(seconds)
            self._run(self._stack.keep())
        self.every_row_is_where_it_may_be()
        rows = self._rows().values()
        assert all(row.has_ended for row in rows), [row.at for row in rows]
        charged = sum(row.actual_cost_usd_micros or 0 for row in rows)
        assert self._run(self._stack.balance(self._tenant)) == self._credited - charged
        self._run(self._stack.check_money(self._tenant))

    def _check_end(self, row: PricedRun, known: Known) -> None:
        charge = row.actual_cost_usd_micros
        match row.status, row.money:
            case Status.COMPLETED, Money.SETTLED:
                assert charge == min(50_000, row.reserved_usd_micros)
                assert row.result is not None
            case Status.FAILED, Money.SETTLED:
                assert charge == min(row.minimum_fee_usd_micros, row.reserved_usd_micros)
            case Status.FAILED, Money.REFUNDED:
                assert charge == 0
                assert known.started is None, "the packs of this model lack nothing, so a refunded run never started"
            case _:
                raise AssertionError(row.at)

    def _credit(self, usd_micros: int) -> None:
        self._run(self._stack.credit(usd_micros, self._tenant))
        self._credited += usd_micros

    def _rows(self) -> dict[str, PricedRun]:
        ids = list(self._runs)
        rows = self._run(self._stack.priced.ledger.read(lambda tx: [tx.runs.get(run_id) for run_id in ids]))
        return {row.run_id: row for row in rows if row is not None}

    def _working(self, number: int) -> PricedRun | None:
        """One of the runs that some worker believes to have."""
        runs = [known.started for known in self._runs.values() if known.started is not None and known.end is None]
        return runs[number % len(runs)] if runs else None

    async def _turn(self, duty: Duty) -> None:
        """What died with one row leaves the others of its batch at work; the model is compared after they are done."""
        before = asyncio.all_tasks()
        try:
            await duty.turn()
        finally:
            await asyncio.gather(*asyncio.all_tasks() - before, return_exceptions=True)

    async def _budget_total(self) -> int:
        """By the budget alone: what can be spent, is set aside, and was charged."""
        budget = self._stack.priced.budget
        total = await budget.balance(self._tenant)
        for outcome in await asyncio.gather(*(budget.outcome(run_id) for run_id in self._runs)):
            if isinstance(outcome, Open):
                total += outcome.reserved_usd_micros
            elif isinstance(outcome, Settled):
                total += outcome.charge_usd_micros
        return total

    @contextlib.contextmanager
    def _dying_at(self, point: str | None) -> Iterator[None]:
        self._stack.points.kill_at = point
        try:
            yield
        finally:
            self._stack.points.kill_at = None


@pytest.mark.parametrize("mode", BOTH_MODES)
def test_whatever_happens_money_is_conserved_and_every_run_ends_once(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """PRICED-7, PRICED-16, PRICED-104, PRICED-108, PRICED-229"""
    monkeypatch.setattr(submitting, "BRIEF", NO_PATIENCE)
    with asyncio.Runner() as runner:
        opened = contextlib.AsyncExitStack()
        stack = runner.run(opened.enter_async_context(open_stack(mode, request)))
        try:
            run_state_machine_as_test(
                partial(PricedRuns, World(stack, runner.run)),  # type: ignore[arg-type]  # anything that makes one
                settings=settings(
                    max_examples=20,
                    stateful_step_count=30,
                    deadline=None,
                    phases=[Phase.explicit, Phase.generate, Phase.shrink],
                    suppress_health_check=list(HealthCheck),
                ),
            )
        finally:
            runner.run(opened.aclose())
