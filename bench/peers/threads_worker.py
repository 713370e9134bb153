"""A worker with flows in threads of this process, made of the parts of ours: `python -m bench.peers.threads_worker`.

Our command has no such worker: a task could not be stopped there, and one that falls would take the others with it.
"""

from __future__ import annotations

import argparse
import asyncio
import signal

import uvloop

from bench.peers.flows import resolve
from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.run import Owner
from pyoco_server.core.worker_description import WorkerDescription
from pyoco_server.loops.flow_lane import FlowLane
from pyoco_server.loops.worker import Worker
from pyoco_server.wiring import backend as wiring

_TAGS = ["default"]
_THREADS = 8


async def _work(worker_id: str, slots: int) -> None:
    config = NatsBackendConfig.from_env()
    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
    async with wiring.open_backend(config, worker_id) as backend:
        executor = wiring.thread_executor(config, resolve)
        me = Owner(worker_id, backend.new_id())
        description = WorkerDescription(me=me, tags=tuple(_TAGS), versions=wiring.versions())
        worker = Worker(backend, description, [FlowLane(backend, executor, me, _TAGS, slots)])
        await worker.start()
        await told.wait()
        await worker.stop("sigterm", 5.0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--flow-resolver")
    parser.add_argument("--worker-id", required=True)
    parser.add_argument("--slots", type=int, default=_THREADS)
    asked = parser.parse_args()
    uvloop.run(_work(asked.worker_id, asked.slots))
