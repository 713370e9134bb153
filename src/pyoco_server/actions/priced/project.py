"""Write the projection of a priced run, so that it appears among all other runs."""

from __future__ import annotations

from pyoco_server.core.priced.projection import is_over, project, version_of
from pyoco_server.core.priced.run import PricedRun
from pyoco_server.logs import get_logger
from pyoco_server.ports.runs.port import Absent, Runs, Stored, Withdrawn

__all__ = ["show_row"]

log = get_logger(__name__)

#: Other processes may project newer versions of the same row meanwhile, which makes this write unnecessary.
_ROUNDS_MAX = 8


async def show_row(runs: Runs, row: PricedRun) -> bool:
    """Write the projection of this version of the row, unless a newer one is stored. One or two round trips.

    A record that was withdrawn is not written again: the version that ends a row's retention is its last, so any other
    version is outdated. Returns False if nothing was written. Raises Unavailable; and Corrupt if the stored record
    cannot be read.
    """
    shown = project(row)
    for _ in range(_ROUNDS_MAX):
        found = await runs.find(row.run_id)
        if not _is_older(found, row) or (shown is None and not is_over(row)):
            return False
        if shown is not None:
            written = isinstance(await runs.replace(shown, found.revision), Stored)
        elif isinstance(found, Stored):
            written = await runs.withdraw(row.run_id, found.revision)
        else:
            return False
        if written:
            return True
    log.warning("priced run changes too fast to be projected", run_id=row.run_id)
    return False


def _is_older(found: Stored | Withdrawn | Absent, row: PricedRun) -> bool:
    """Whether the row is newer than what is stored."""
    if not isinstance(found, Stored):
        return not isinstance(found, Withdrawn)
    if not found.run.is_pack:
        log.error("a run of another kind has the id of a priced run", run_id=row.run_id, kind=found.run.kind)
        return False
    return version_of(found.run) < row.version
