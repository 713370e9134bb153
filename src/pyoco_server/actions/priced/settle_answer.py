"""Interpret the budget's answer for a run that is being ended: the table of contract 5.4, shared by all callers."""

from __future__ import annotations

from dataclasses import dataclass

from pyoco_server.core.priced.run import Intent, MoneyOp, PricedRun
from pyoco_server.core.states.priced import Money
from pyoco_server.ports.budget.port import Closed, NoReserve, NotReserved, Open, Outcome, Refunded, Settled

__all__ = ["AGAIN", "Again", "Charged", "Contradiction", "expected_charge", "judge"]


@dataclass(frozen=True)
class Charged:
    """The money is as the intent requires. Commit with this."""

    charge_usd_micros: int
    refund_usd_micros: int
    #: False: no reservation was recorded in the row, so the journal has nothing to close (PRICED-58).
    is_journalled: bool = True


@dataclass(frozen=True)
class Contradiction:
    """The money facts contradict each other: T17, and an operator."""

    why: str


class Again:
    """A reservation appeared between the two calls, because the submit was slow. Repeat the closing."""


AGAIN = Again()


def expected_charge(run: PricedRun, intent: Intent) -> int:
    return min(intent.charge_usd_micros, run.reserved_usd_micros)


def judge(run: PricedRun, answer: Closed | NoReserve, outcome: Outcome | None) -> Charged | Contradiction | Again:
    """Apply PRICED-24. `outcome` is the reservation's outcome, read after the budget returned NoReserve; None after
    Closed."""
    is_journalled = run.money is not Money.NONE
    match answer, outcome:
        case Closed(charge, back, _), _:
            if charge + back == run.reserved_usd_micros:
                return Charged(charge, back, is_journalled)
            why = "the budget held another amount than the run"  # the journal would not balance
        case _, (Settled() | Refunded()) if _is_intended(run, outcome):
            charge = outcome.charge_usd_micros if isinstance(outcome, Settled) else 0
            return Charged(charge, outcome.refund_usd_micros, is_journalled)
        case _, Settled() | Refunded():
            why = "the reservation was closed in another way than intended"
        case _, NotReserved() if run.money is Money.NONE:
            return Charged(0, 0, is_journalled=False)
        case _, Open():
            return AGAIN
        case _:
            why = "the run is reserved, and the budget knows nothing of it"
    return Contradiction(why)


def _is_intended(run: PricedRun, closed: Settled | Refunded) -> bool:
    intent = run.intent
    assert intent is not None, "only a claimed run is ended"
    if isinstance(closed, Refunded):
        return intent.money_op is MoneyOp.REFUND and closed.refund_usd_micros == run.reserved_usd_micros
    due = expected_charge(run, intent)
    left = run.reserved_usd_micros - due
    return intent.money_op is MoneyOp.SETTLE and closed == Settled(due, left)
