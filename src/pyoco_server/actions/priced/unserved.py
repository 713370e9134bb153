"""Refuse a submission that no worker can execute, because all of them lack something (SAFE-3)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from pyoco_server.core.packs.ability import shortfall
from pyoco_server.core.priced.run import NewRun
from pyoco_server.core.worker_record import WorkerRecord
from pyoco_server.errors import Problem, Refused, Unavailable
from pyoco_server.logs import get_logger
from pyoco_server.ports.priced import Priced

__all__ = ["living", "unserved"]

log = get_logger(__name__)

#: The registry is in memory; if it is not up to date yet, a submission waits this long for it.
_SECONDS_MAX: Final = 1


async def unserved(priced: Priced, ask: NewRun) -> Refused | None:
    """Return the error, with what is missing. O(workers), no round trip.

    Returns None if some worker can execute it, if no worker takes priced runs yet, or if the workers are not known.
    Then the run waits for a worker, and is refunded if none comes.
    """
    spec = priced.packs.get(ask.pack_type)
    workers = await living(priced)
    found = shortfall(spec, ask.inputs, workers) if spec is not None and workers else None
    if found is None:
        return None
    place = ("pack_type",) if found.member is None else ("inputs", found.member)
    log.info("refused a submission that no worker can execute", pack=ask.pack_type, why=found.text)
    return Refused(found.text, problems=(Problem(place, found.text, "unavailable"),))


async def living(priced: Priced) -> Sequence[WorkerRecord]:
    """Return the live workers; empty if they are not known at this moment."""
    if priced.living_workers is None:
        return ()
    try:
        async with asyncio.timeout(_SECONDS_MAX):
            return await priced.living_workers()
    except (Unavailable, TimeoutError) as error:
        log.debug("worker registry did not answer", cause=error)
        return ()
