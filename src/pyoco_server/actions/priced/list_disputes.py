"""List the runs that wait for an operator's decision."""

from __future__ import annotations

from pyoco_server.core.priced.run import PricedRun
from pyoco_server.ports.ledger.port import Scan
from pyoco_server.ports.priced import Priced

__all__ = ["list_disputes"]

#: There should be none; use a query to see more than this.
_SHOWN_MAX = 1000


async def list_disputes(priced: Priced) -> list[PricedRun]:
    """Return the oldest first, a thousand at most. Raises DependencyUnavailable."""
    return await priced.ledger.read(lambda tx: tx.runs.scan(Scan.DISPUTED, _SHOWN_MAX))
