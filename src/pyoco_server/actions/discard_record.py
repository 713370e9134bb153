"""Remove a run record that cannot be decoded (SAFE-16)."""

from __future__ import annotations

from dataclasses import dataclass

from pyoco_server.core.names import is_run_id
from pyoco_server.errors import NotOfThisKind, RecordUnreadable, RunNotFound, Unavailable
from pyoco_server.logs import get_logger
from pyoco_server.ports.runs.port import Runs, Stored

__all__ = ["Discarded", "discard_record"]

log = get_logger(__name__)


@dataclass(frozen=True)
class Discarded:
    """What was removed, and why it could not be read."""

    run_id: str
    revision: int
    reason: str


async def discard_record(runs: Runs, run_id: str) -> Discarded:
    """Remove exactly the revision that was found unreadable. Two round trips.

    Leaves the same mark as a withdrawn run, for as long, so that a job of the run that is still queued is dropped.
    Raises RunNotFound; NotOfThisKind for a record that can be read; Unavailable, also if the record has changed
    meanwhile.
    """
    if not is_run_id(run_id):
        raise RunNotFound
    try:
        found = await runs.find(run_id)
    except RecordUnreadable as error:
        if not await runs.withdraw(run_id, error.revision):
            raise Unavailable(f"the record {run_id} has changed meanwhile; look again") from error
        log.warning("discarded an unreadable run record", run_id=run_id, revision=error.revision, reason=error.reason)
        return Discarded(run_id, error.revision, error.reason)
    if isinstance(found, Stored):
        raise NotOfThisKind(f"the record of run {run_id} can be read: only an unreadable one is discarded")
    raise RunNotFound
