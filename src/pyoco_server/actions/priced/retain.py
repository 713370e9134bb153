"""Expire runs and files whose retention has passed: content goes, money facts stay."""

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
#: In one go: a store that lets each of them wait still leaves time for the rest of a turn.
_FAILURES_MAX: Final = 200


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


async def remove_inputs(priced: Priced, is_stopping: Callable[[], bool]) -> int:
    """The objects of all uploads that are over, then their rows, batch after batch; how many are gone. Several may do
    it at once.

    What the store does not delete keeps its row and goes behind all others that are over: it is in nobody's way, and
    found again. A store that is away is left alone; one that answers and deletes nothing is asked for a few hundred,
    and then no more. Raises DependencyUnavailable for the ledger's.
    """
    gone = 0
    failed: dict[str, DependencyUnavailable] = {}
    while len(failed) < _FAILURES_MAX and not is_stopping():
        found = await priced.ledger.read(lambda tx: tx.uploads.expired(JANITOR_BATCH))
        fresh = [upload for upload in found if upload.upload_id not in failed]
        if not fresh:
            break
        batch = await _delete_all(priced, fresh)
        await priced.ledger.transact(batch.write_down)
        gone += len(batch.deleted)
        failed |= batch.failed
        if batch.is_away or len(found) < JANITOR_BATCH:
            break
    if failed:
        upload_id, error = next(iter(failed.items()))
        log.warning(
            "inputs were not deleted; they are tried again", count=len(failed), upload_id=upload_id, cause=error
        )
    return gone


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
        # Not one: either these are damaged, or the store is away.
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
