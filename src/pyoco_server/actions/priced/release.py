"""Send a delayed priced run whose time has come. Its record is only a projection: the row in the ledger decides."""

from __future__ import annotations

from pyoco_server.actions.priced.sweep import send_due, start_early
from pyoco_server.errors import Unavailable
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.ledger.port import Lost
from pyoco_server.ports.priced import Priced
from pyoco_server.ports.runs.port import Stored

__all__ = ["release_due_pack", "release_pack"]


async def release_due_pack(backend: Backend, run_id: str) -> int:
    """Return the microseconds until the run is due; 0: it is sent, or needs no sending. Raises Unavailable."""
    return await send_due(_priced(backend), run_id)


async def release_pack(backend: Backend, found: Stored) -> bool:
    """Start a delayed run before its time. False: it does not wait any more. Raises Unavailable."""
    return not isinstance(await start_early(_priced(backend), found.run.run_id), Lost)


def _priced(backend: Backend) -> Priced:
    if backend.priced is None:  # another keeper, or gateway, opens the ledger
        raise Unavailable("this process does not handle priced runs")
    return backend.priced
