"""Read a run for its owner, and its stored envelope: shared by all that show either."""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import dataclass

from pyoco_server.actions.priced import facts
from pyoco_server.core.priced.run import PricedRun, ResultPointer
from pyoco_server.core.states.priced import Status
from pyoco_server.errors import DependencyUnavailable, RunExpired, RunNotFound
from pyoco_server.logs import get_logger
from pyoco_server.ports.ledger.port import LedgerTx
from pyoco_server.ports.priced import Priced

__all__ = ["Owned", "find_envelope", "find_owned", "stored_envelope"]

log = get_logger(__name__)

#: Age after which a result must be stored: a lagging node of a cluster may not have what was stored a moment ago.
_SURELY_STORED_US = 10_000_000
#: A node that was suspended while another took its place learns of that within this time.
_SECOND_LOOK_SECONDS = 2


@dataclass(frozen=True)
class Owned:
    run: PricedRun
    #: By the ledger's clock, when the row was read.
    now_us: int
    #: The tenant's available money, read after the row: a charge that is visible in the row is deducted here.
    balance_usd_micros: int

    @property
    def result(self) -> ResultPointer | None:
        """The result of a COMPLETED run, otherwise None (PRICED-12)."""
        return self.run.result if self.run.status is Status.COMPLETED else None


async def find_owned(priced: Priced, run_id: str, tenant_id: str) -> Owned:
    """Read the run by id and owner in one query (PRICED-78).

    Raises RunNotFound for an unknown, malformed or foreign id, without telling them apart; RunExpired for the owner's
    run past retention, whatever the row contains (PRICED-80); DependencyUnavailable.
    """

    def query(tx: LedgerTx) -> tuple[PricedRun | None, int, int]:
        row, now_us = tx.runs.get_owned(run_id, tenant_id), tx.now_us()
        return row, now_us, tx.money.balance(tenant_id) if row is not None and priced.budget.joins_ledger else 0

    row, now_us, balance = await priced.ledger.read(query)
    if row is None:
        raise RunNotFound
    if not priced.budget.joins_ledger:
        balance = await priced.budget.balance(tenant_id)
    if row.retention_until <= now_us or row.status is Status.EXPIRED:
        raise _expired(row)
    return Owned(row, now_us, balance)


def _expired(run: PricedRun) -> RunExpired:
    """Return the error with the money facts, which stay (PRICED-83)."""
    return RunExpired(
        run.run_id,
        reserved_usd_micros=run.reserved_usd_micros,
        used_usd_micros=run.used_usd_micros,
        tokens_consumed=run.tokens_consumed,
    )


async def stored_envelope(priced: Priced, run: PricedRun, result: ResultPointer, now_us: int) -> bytes:
    """Return exactly the bytes that were published.

    One round trip to the store; if the envelope is missing, a second one two seconds later, since the answer "gone" is
    final. Raises RunExpired if the store has lost it, so that a retry is pointless; DependencyUnavailable if the store
    does not answer, or has other bytes than the row names.
    """
    found = await find_envelope(priced, run, result)
    is_old = now_us - run.updated_at > _SURELY_STORED_US
    if found is None and is_old:
        await asyncio.sleep(_SECOND_LOOK_SECONDS)
        found = await find_envelope(priced, run, result)
    if found is not None:
        return found
    log.error("stored result is missing", **facts.about(run))
    if is_old:
        raise _expired(run)
    raise DependencyUnavailable("a stored result is missing")


async def find_envelope(priced: Priced, run: PricedRun, result: ResultPointer) -> bytes | None:
    """Read the envelope once. Returns None if the node that answered does not have it. Raises DependencyUnavailable
    as `stored_envelope` does."""
    found = await priced.results.get(result.key)
    if found is None:
        return None
    if hashlib.sha256(found[0]).hexdigest() != result.sha256:
        log.error("stored result is not the one that was published", **facts.about(run))
        raise DependencyUnavailable("a stored result is not the one that was published")
    return found[0]
