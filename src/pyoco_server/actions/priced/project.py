"""Show a priced run among all others, as the ledger has it."""

from __future__ import annotations

from pyoco_server.core.priced.projection import project, version_of
from pyoco_server.core.priced.run import PricedRun
from pyoco_server.logs import get_logger
from pyoco_server.ports.runs.port import Lost, Runs, Stored

__all__ = ["show_row"]

log = get_logger(__name__)

#: Others show newer versions of the same row meanwhile; each of them makes ours needless.
_ROUNDS_MAX = 8


async def show_row(runs: Runs, row: PricedRun) -> bool:
    """Write the projection of this version of the row, unless a newer one is shown. One or two round trips.

    False: nothing was written, because it was there already. Raises Unavailable.
    """
    shown = project(row)
    for _ in range(_ROUNDS_MAX):
        found = await runs.find(row.run_id)
        if isinstance(found, Stored) and version_of(found.run) >= row.version:
            return False
        if shown is None:
            if not isinstance(found, Stored):
                return False
            if await runs.withdraw(row.run_id, found.revision):
                return True
            continue
        written = await runs.replace(shown, found.revision)
        if not isinstance(written, Lost):
            return True
    log.warning("a priced run changes too fast to be shown", run_id=row.run_id)
    return False
