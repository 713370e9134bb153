"""Expire runs and files whose retention has passed: content goes, money facts stay."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from pyoco_server.actions.priced import facts
from pyoco_server.core.priced.run import PricedRun
from pyoco_server.core.priced.upload import Upload
from pyoco_server.errors import DependencyUnavailable
from pyoco_server.logs import get_logger
from pyoco_server.ports.ledger.port import LedgerTx, Lost
from pyoco_server.ports.priced import Priced

__all__ = ["expire_all", "remove_inputs"]

log = get_logger(__name__)

_AT_ONCE = 8


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


async def remove_inputs(priced: Priced, uploads: Sequence[Upload]) -> int:
    """The objects of uploads that are over, then their rows; how many are gone. Several may do it at once.

    What the store does not delete keeps its row, and is found again. Raises DependencyUnavailable for the ledger's.
    """
    gone: list[Upload] = []
    for start in range(0, len(uploads), _AT_ONCE):
        some = uploads[start : start + _AT_ONCE]
        were_deleted = await asyncio.gather(*(_delete(priced, upload) for upload in some))
        gone += [upload for upload, was_deleted in zip(some, were_deleted, strict=True) if was_deleted]
        if not any(were_deleted):
            break  # the store is away
    if gone:
        await priced.ledger.transact(lambda tx: [tx.uploads.remove(upload.upload_id) for upload in gone])
    return len(gone)


async def _delete(priced: Priced, upload: Upload) -> bool:
    try:
        await priced.inputs.delete(upload.key)
    except DependencyUnavailable as error:
        log.warning("an input was not deleted; it is tried again", upload_id=upload.upload_id, cause=error)
        return False
    return True
