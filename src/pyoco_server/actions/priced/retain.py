"""Expire runs and files past their retention: content is deleted, money facts stay."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from pyoco_server.actions.priced import facts
from pyoco_server.core.priced.constants import JANITOR_BATCH
from pyoco_server.core.priced.run import PricedRun
from pyoco_server.core.priced.upload import Upload
from pyoco_server.errors import DependencyUnavailable
from pyoco_server.logs import get_logger
from pyoco_server.ports.ledger.port import LedgerTx, Lost
from pyoco_server.ports.priced import Priced

__all__ = ["expire_all", "remove_inputs"]

log = get_logger(__name__)

_AT_ONCE: Final = 8
#: Failures per turn: a store that times out on every deletion still leaves time for the rest of the turn.
_FAILURES_MAX: Final = 200


async def expire_all(priced: Priced, runs: Sequence[PricedRun]) -> list[PricedRun]:
    """Do T16 for each run, in one transaction; runs that another process expired first are left out (PRICED-164).

    Readers do not depend on it: they compare the retention with the clock (PRICED-80). Raises DependencyUnavailable:
    all of them happened, or none.
    """

    def work(tx: LedgerTx) -> list[PricedRun | Lost]:
        return [tx.ends.expire(run.run_id, run.version) for run in runs]

    expired = [run for run in await priced.ledger.transact(work) if isinstance(run, PricedRun)]
    for run in expired:
        log.info("run is past its retention", **facts.step(run, run.version - 1))
        priced.show(run)
    return expired


async def remove_inputs(priced: Priced, is_stopping: Callable[[], bool]) -> int:
    """Delete the objects of all expired uploads, then their rows, batch by batch, and return how many were deleted.

    Several processes may do this concurrently. If the store does not delete an object, its row stays and moves behind
    all other expired ones: it does not block them, and is found again. If the store is down, the pass stops; if it
    answers and deletes nothing, the pass stops after a few hundred failures. Raises DependencyUnavailable if the ledger
    does not answer.
    """
    deleted = 0
    failed: dict[str, DependencyUnavailable] = {}
    while len(failed) < _FAILURES_MAX and not is_stopping():
        found = await priced.ledger.read(lambda tx: tx.uploads.expired(JANITOR_BATCH))
        fresh = [upload for upload in found if upload.upload_id not in failed]
        if not fresh:
            break
        batch = await _delete_all(priced, fresh)
        await priced.ledger.transact(batch.write_down)
        deleted += len(batch.deleted)
        failed |= batch.failed
        if batch.is_away or len(found) < JANITOR_BATCH:
            break
    if failed:
        upload_id, error = next(iter(failed.items()))
        log.warning("inputs were not deleted; will retry", count=len(failed), upload_id=upload_id, cause=error)
    return deleted


@dataclass
class _Batch:
    deleted: list[str] = field(default_factory=list)
    failed: dict[str, DependencyUnavailable] = field(default_factory=dict)
    #: The store did not answer at all, and the rest was not tried.
    is_away: bool = False

    def write_down(self, tx: LedgerTx) -> None:
        for upload_id in self.deleted:
            tx.uploads.remove(upload_id)
        for upload_id in self.failed:
            tx.uploads.defer(upload_id)


async def _delete_all(priced: Priced, uploads: Sequence[Upload]) -> _Batch:
    batch = _Batch()
    for start in range(0, len(uploads), _AT_ONCE):
        some = uploads[start : start + _AT_ONCE]
        errors = await asyncio.gather(*(_delete(priced, upload) for upload in some))
        for upload, error in zip(some, errors, strict=True):
            if error is None:
                batch.deleted.append(upload.upload_id)
            else:
                batch.failed[upload.upload_id] = error
        # Every deletion failed: either these objects are damaged, or the store is down.
        if None not in errors and not await _answers(priced):
            batch.is_away = True
            break
    return batch


async def _delete(priced: Priced, upload: Upload) -> DependencyUnavailable | None:
    try:
        await priced.inputs.delete(upload.key)
    except DependencyUnavailable as error:
        return error
    return None


async def _answers(priced: Priced) -> bool:
    try:
        await priced.inputs.ping()
    except DependencyUnavailable:
        return False
    return True
