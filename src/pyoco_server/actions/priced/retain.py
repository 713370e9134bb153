"""Expire runs whose retention has passed: content goes, money facts stay."""

from __future__ import annotations

from collections.abc import Sequence

from pyoco_server.actions.priced import facts
from pyoco_server.core.priced.run import PricedRun
from pyoco_server.logs import get_logger
from pyoco_server.ports.ledger.port import LedgerTx, Lost
from pyoco_server.ports.priced import Priced

__all__ = ["expire_all"]

log = get_logger(__name__)


async def expire_all(priced: Priced, runs: Sequence[PricedRun]) -> list[PricedRun]:
    """T16 for each, in one transaction; those that somebody else expired first are left out (PRICED-164).

    Readers do not wait for it: they go by the clock (PRICED-80). Raises DependencyUnavailable: all of them, or none.
    """

    def work(tx: LedgerTx) -> list[PricedRun | Lost]:
        return [tx.ends.expire(run.run_id, run.version) for run in runs]

    expired = [run for run in await priced.ledger.transact(work) if isinstance(run, PricedRun)]
    for run in expired:
        log.info("a run is past its retention", **facts.step(run, run.version - 1))
        priced.show(run)
    return expired
