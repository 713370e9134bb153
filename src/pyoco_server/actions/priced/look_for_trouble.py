"""Look for what an operator of priced runs should know: one look for everybody who asks."""

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

#: There should be none; of more it is only told that there are so many.
DISPUTES_MAX: Final = 100
_SECONDS: Final = 1


@dataclass(frozen=True, kw_only=True)
class Trouble:
    """What was found, of all tenants. What could not be found out is empty, and `silent` says whose it was."""

    #: Runs that wait for an operator's word, the oldest first.
    disputed: tuple[PricedRun, ...] = ()
    audit: AuditNote | None = None
    #: Dead letters of the queue; roughly.
    letters: int = 0
    #: Of ledger, budget, queue and results, those that do not answer.
    silent: tuple[str, ...] = ()


async def look_for_trouble(priced: Priced) -> Trouble:
    """One call to each store, all at once, each within a second. Never raises an outage: that is the answer."""
    ledger, queue, budget, results = await asyncio.gather(
        _within(priced.ledger.read(_look)),
        _within(priced.queue.depth()),
        _within(_nothing() if priced.budget.joins_ledger else priced.budget.ping()),
        _within(asyncio.gather(priced.results.ping(), priced.inputs.ping())),
    )
    answers = {"ledger": ledger, "budget": budget, "queue": queue, "results": results}
    disputed, audit = ledger[0] if ledger else ((), None)
    return Trouble(
        disputed=disputed,
        audit=audit,
        letters=queue[0][1] if queue else 0,
        silent=tuple(name for name, answer in answers.items() if answer is None),
    )


async def _within(asking: Awaitable[T]) -> tuple[T] | None:
    """None: no answer in time."""
    try:
        async with asyncio.timeout(_SECONDS):
            return (await asking,)
    except (PyocoError, TimeoutError):
        return None


async def _nothing() -> None:
    """A budget in the ledger answers as the ledger does."""


def _look(tx: LedgerTx) -> tuple[tuple[PricedRun, ...], AuditNote | None]:
    return tuple(tx.runs.scan(Scan.DISPUTED, DISPUTES_MAX)), last_audit(tx)
