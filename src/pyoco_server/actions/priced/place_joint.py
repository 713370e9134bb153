"""Create the row and the reservation of a submission, both in one database (contract 11.4)."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from pyoco_server.actions.priced import facts
from pyoco_server.actions.priced.placed import Placed
from pyoco_server.actions.priced.same_key import SameKey, look_at_same_key
from pyoco_server.core.priced.run import NewRun, PricedRun
from pyoco_server.errors import KeyBusy, OverBudget
from pyoco_server.logs import get_logger
from pyoco_server.ports.budget.port import Insufficient, Reserved
from pyoco_server.ports.ledger.port import Exists, LedgerTx, Lost
from pyoco_server.ports.priced import Priced

__all__ = ["place_joint"]

log = get_logger(__name__)


@contextlib.asynccontextmanager
async def place_joint(priced: Priced, ask: NewRun) -> AsyncIterator[Placed]:
    """Do T1, the reservation and T2 in one transaction (PRICED-103): a crash within it leaves nothing.

    Raises OverBudget, KeyReused, KeyBusy: nothing changed. DependencyUnavailable: either all of it happened, or
    nothing.
    """
    placed, expired = await priced.ledger.transact(lambda tx: _place(tx, ask))
    if expired is not None:
        log.info("expired run released its idempotency key", **facts.step(expired, expired.version - 1))
        priced.show(expired)
    if not placed.is_replayed:
        log.info("run accepted", **facts.step(placed.run, None), **facts.money(placed.run))
        priced.show(placed.run)
    yield placed


def _place(tx: LedgerTx, ask: NewRun) -> tuple[Placed, PricedRun | None]:
    found = tx.runs.create_reserved(ask)
    expired: PricedRun | None = None
    if isinstance(found, Exists):
        if look_at_same_key(found.run, ask, tx.now_us()) is SameKey.REPLAY:
            return Placed(found.run, tx.money.balance(ask.tenant_id), is_replayed=True), None
        freed = tx.ends.expire(found.run.run_id, found.run.version)
        if isinstance(freed, Lost):
            raise KeyBusy
        expired, found = freed, tx.runs.create_reserved(ask)
        if isinstance(found, Exists):  # another submission took the free key first
            raise KeyBusy
    answer = tx.money.reserve(ask.tenant_id, ask.run_id, ask.reserved_usd_micros, ask.trace_id)
    if isinstance(answer, Insufficient):
        raise OverBudget(answer.balance_usd_micros)
    assert isinstance(answer, Reserved), "a run that was made just now cannot have a reservation"
    return Placed(found, answer.balance_usd_micros), expired
