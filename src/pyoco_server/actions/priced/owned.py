"""A run as its owner may see it, and the envelope it left: what everybody shares who shows either."""

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

#: A node that lags behind its cluster may not have what was stored a moment ago.
_SURELY_STORED_US = 10_000_000
#: A node that stood still while another took its place learns of that within this time.
_SECOND_LOOK_SECONDS = 2


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
        raise _gone(row)
    return Owned(row, now_us, balance)


def _gone(run: PricedRun) -> RunExpired:
    """The money facts stay (PRICED-83)."""
    return RunExpired(
        run.run_id,
        reserved_usd_micros=run.reserved_usd_micros,
        used_usd_micros=run.used_usd_micros,
        tokens_consumed=run.tokens_consumed,
    )


async def stored_envelope(priced: Priced, run: PricedRun, result: ResultPointer, now_us: int) -> bytes:
    """The bytes that were published, and no others. One round trip to the store, wherever it is; where they are
    missing, a second one two seconds later, since the answer "gone" ends all asking.

    Raises RunExpired: the store has lost them, and to try again is in vain. DependencyUnavailable: the store does not
    answer, or what lies there is not what the row names.
    """
    found = await find_envelope(priced, run, result)
    is_old = now_us - run.updated_at > _SURELY_STORED_US
    if found is None and is_old:
        await asyncio.sleep(_SECOND_LOOK_SECONDS)
        found = await find_envelope(priced, run, result)
    if found is not None:
        return found
    log.error("a stored result is missing", **facts.about(run))
    if is_old:
        raise _gone(run)
    raise DependencyUnavailable("a stored result is missing")


async def find_envelope(priced: Priced, run: PricedRun, result: ResultPointer) -> bytes | None:
    """One look. None: nothing lies there, as far as the node says that was asked. Raises DependencyUnavailable, as
    above."""
    found = await priced.results.get(result.key)
    if found is None:
        return None
    if hashlib.sha256(found[0]).hexdigest() != result.sha256:
        log.error("a stored result is not the one that was published", **facts.about(run))
        raise DependencyUnavailable("a stored result is not the one that was published")
    return found[0]
