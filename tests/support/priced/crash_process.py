"""Processes that die by kill -9 at named points of a submit or of an end (contract 23.3), as real ones might.

Run as `python -m support.priced.crash_process TENANT POINT...`. Each point gets a process of its own, forked once
everything is imported: it takes one message and works, or submits a run under the point's name, until it gets there.
Who submits comes after who works, so that nobody takes what is left behind. Settings are those of the environment. Says
how each of them ended, as JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys

from pyoco_server.actions.priced.submit import submit
from pyoco_server.config import NatsBackendConfig, priced_from_env
from pyoco_server.wiring import backend as wiring
from pyoco_server.wiring.offer import pack_lane
from support.priced.ledgers import a_new_run
from support.priced.points import watched

_PATIENCE_SECONDS = 120


async def _go_as_far_as(point: str, tenant_id: str) -> None:
    async def reached(name: str) -> None:
        if name == point:
            os.kill(os.getpid(), signal.SIGKILL)

    config = NatsBackendConfig.from_env()
    async with wiring.open_backend(config, f"dies at {point}", priced=priced_from_env()) as backend:
        assert backend.priced is not None
        await backend.priced.until_open()
        priced = watched(backend.priced, reached)
        if _submits(point):
            await submit(priced, a_new_run(tenant_id=tenant_id, idempotency_key=point))
            return
        worker = await pack_lane(priced, config)
        await worker.start()
        await asyncio.sleep(_PATIENCE_SECONDS)


def _submits(point: str) -> bool:
    return point.startswith("submit.")


def _forked(point: str, tenant_id: str) -> int:
    pid = os.fork()
    if not pid:
        try:
            asyncio.run(_go_as_far_as(point, tenant_id))
        finally:
            os._exit(1)
    return pid


def main() -> None:
    tenant_id, *points = sys.argv[1:]
    ends: dict[str, int] = {}
    for submits in (False, True):
        pids = {point: _forked(point, tenant_id) for point in points if _submits(point) == submits}
        ends |= {point: os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for point, pid in pids.items()}
    sys.stdout.write(json.dumps(ends))


if __name__ == "__main__":
    main()
