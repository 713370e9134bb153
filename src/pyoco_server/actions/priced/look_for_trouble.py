"""Check the stores of priced runs for problems that an operator should know: one check serves all callers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Final, TypeVar

from pyoco_server.actions.priced.note_audit import last_audit
from pyoco_server.core.priced.audit_note import AuditNote
from pyoco_server.core.priced.run import PricedRun
from pyoco_server.errors import PyocoError
from pyoco_server.ports.ledger.port import LedgerTx, Scan
from pyoco_server.ports.priced import Priced

__all__ = ["DISPUTES_MAX", "Trouble", "look_for_trouble"]

T = TypeVar("T")

#: There should be none; more than this are reported as "at least this many".
DISPUTES_MAX: Final = 100
_SECONDS: Final = 1


@dataclass(frozen=True, kw_only=True)
class Trouble:
    """The problems found, over all tenants. Facts that could not be read are empty, and `silent` names their stores."""

    #: Runs that wait for an operator's decision, oldest first.
    disputed: tuple[PricedRun, ...] = ()
    audit: AuditNote | None = None
    #: Dead letters of the queue; approximate.
    dead_letters: int = 0
    #: The stores (ledger, budget, queue, results) that do not answer.
    silent: tuple[str, ...] = ()


async def look_for_trouble(priced: Priced) -> Trouble:
    """Make one call to each store, all concurrently, each within a second. Never raises for an outage: it returns
    it."""
    ledger, queue, budget, results = await asyncio.gather(
        _within(priced.ledger.read(_read)),
        _within(priced.queue.depth()),
        _within(_no_op() if priced.budget.joins_ledger else priced.budget.ping()),
        _within(asyncio.gather(priced.results.ping(), priced.inputs.ping())),
    )
    answers = {"ledger": ledger, "budget": budget, "queue": queue, "results": results}
    disputed, audit = ledger[0] if ledger else ((), None)
    return Trouble(
        disputed=disputed,
        audit=audit,
        dead_letters=queue[0][1] if queue else 0,
        silent=tuple(name for name, answer in answers.items() if answer is None),
    )


async def _within(call: Awaitable[T]) -> tuple[T] | None:
    """Returns None if there was no answer in time."""
    try:
        async with asyncio.timeout(_SECONDS):
            return (await call,)
    except (PyocoError, TimeoutError):
        return None


async def _no_op() -> None:
    """A budget in the ledger answers if the ledger does."""


def _read(tx: LedgerTx) -> tuple[tuple[PricedRun, ...], AuditNote | None]:
    return tuple(tx.runs.scan(Scan.DISPUTED, DISPUTES_MAX)), last_audit(tx)
