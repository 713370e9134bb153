"""Store a submitted flow.yaml, so that its run can be run again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

from pyoco_server.errors import ObjectNotFound, Unavailable
from pyoco_server.logs import get_logger
from pyoco_server.ports.backend import GatewayBackend
from pyoco_server.ports.objects.kept import Sight

__all__ = ["keep_workflow"]

log = get_logger(__name__)

#: After this time the cache is not trusted and the store is checked: the file may have been deleted.
_TRUST_SECONDS = 600.0
#: An election takes 4 to 9 s. Storing the same bytes under their own digest is safe to repeat.
_UNANSWERED_SECONDS = 15.0


async def keep_workflow(backend: GatewayBackend, sha256: str, text: str) -> None:
    """Ensure that the file is in the object store under its sha256 and stays there as long as a run recorded now.

    Costs nothing for a file seen recently, one round trip for a known one, four for a new one; of concurrent calls with
    the same new file, one stores it. The store removes files after twice the retention of runs, so a file older than
    the retention is stored anew. A crash leaves the file, which takes up space until then. Raises Unavailable.
    """
    if _is_known(backend, sha256):
        return
    async with backend.kept_workflows.alone(sha256):
        if _is_known(backend, sha256):
            return
        stored_at = await _stored_at(backend, sha256)
        if stored_at is None or not _outlives_new_runs(backend, stored_at):
            await _store(backend, sha256, text.encode())
            stored_at = backend.clock()
        backend.kept_workflows.saw(sha256, Sight(stored_at, seen_at=backend.clock()))


def _is_known(backend: GatewayBackend, sha256: str) -> bool:
    sight = backend.kept_workflows.find(sha256)
    return (
        sight is not None
        and backend.clock() - sight.seen_at < _TRUST_SECONDS
        and _outlives_new_runs(backend, sight.stored_at)
    )


def _outlives_new_runs(backend: GatewayBackend, stored_at: float) -> bool:
    """Whether the file stays for as long as a run that is recorded now."""
    retention_seconds = backend.config.runs_retention_sec
    return not retention_seconds or backend.clock() - stored_at < retention_seconds


async def _stored_at(backend: GatewayBackend, sha256: str) -> float | None:
    try:
        info = await backend.workflows.info(sha256)
    except ObjectNotFound:
        return None
    # The object under this name has other content: treat it as missing and replace it.
    return info.modified if info.sha256_hex == sha256 else None


async def _store(backend: GatewayBackend, sha256: str, data: bytes) -> None:
    """Store the bytes. Retries while NATS is connected but does not answer, as every other write of a submission
    does."""
    deadline = time.monotonic() + _UNANSWERED_SECONDS
    while True:
        try:
            await backend.workflows.put(sha256, _once(data), len(data))
        except Unavailable as error:
            if not backend.is_up() or time.monotonic() > deadline:
                raise
            log.info("retrying to store a flow.yaml", workflow_yaml_sha256=sha256, error=error)
        else:
            return
        await asyncio.sleep(0.25)


async def _once(data: bytes) -> AsyncIterator[bytes]:
    yield data
