"""A run as its owner may see it, and the envelope it left: what everybody shares who shows either."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from pyoco_server.actions.priced import facts
from pyoco_server.core.priced.run import PricedRun, ResultPointer
from pyoco_server.core.priced.states import Status
from pyoco_server.errors import DependencyUnavailable, RunExpired, RunNotFound
from pyoco_server.logs import get_logger
from pyoco_server.ports.ledger.port import LedgerTx
from pyoco_server.ports.priced import Priced

__all__ = ["Owned", "find_owned", "stored_envelope"]

log = get_logger(__name__)


@dataclass(frozen=True)
class Owned:
    run: PricedRun
    #: By the ledger's clock, when the row was read.
    now_us: int
    #: The tenant's available money, read after the row: where a charge shows, it is taken off here.
    balance_usd_micros: int

    @property
    def result(self) -> ResultPointer | None:
        """For COMPLETED alone (PRICED-12)."""
        return self.run.result if self.run.status is Status.COMPLETED else None


async def find_owned(priced: Priced, run_id: str, tenant_id: str) -> Owned:
    """One query by id and owner (PRICED-78).

    Raises RunNotFound: unknown, malformed or foreign, which nobody can tell apart. RunExpired: the owner's, past
    retention, whatever the row says (PRICED-80). DependencyUnavailable.
    """

    def look(tx: LedgerTx) -> tuple[PricedRun | None, int, int]:
        row, now_us = tx.runs.get_owned(run_id, tenant_id), tx.now_us()
        return row, now_us, tx.money.balance(tenant_id) if row is not None and priced.budget.joins_ledger else 0

    row, now_us, balance = await priced.ledger.read(look)
    if row is None:
        raise RunNotFound
    if not priced.budget.joins_ledger:
        balance = await priced.budget.balance(tenant_id)
    if row.retention_until <= now_us or row.status is Status.EXPIRED:
        raise RunExpired(
            row.run_id,
            reserved_usd_micros=row.reserved_usd_micros,
            used_usd_micros=row.used_usd_micros,
            tokens_consumed=row.tokens_consumed,
        )
    return Owned(row, now_us, balance)


async def stored_envelope(priced: Priced, run: PricedRun, result: ResultPointer) -> bytes:
    """The bytes that were published, and no others. One round trip to the store, wherever it is.

    Raises DependencyUnavailable: the store does not answer, or what lies there is not what the row names.
    """
    found = await priced.results.get(result.key)
    if found is None or hashlib.sha256(found[0]).hexdigest() != result.sha256:
        log.error("a stored result is missing or not the one that was published", **facts.about(run))
        raise DependencyUnavailable("a stored result is missing or not the one that was published")
    return found[0]
