"""A worker as a small program. Its flows are ordinary Python objects of this process.

    PYOCO_NATS_URL=nats://127.0.0.1:4222 python -m examples.run_worker

It takes one run at a time and executes it in a thread: easy to debug and to embed. The command `pyoco-worker` runs
several at once, each in a process of its own, and can stop a task that does not want to stop.
"""

from __future__ import annotations

import asyncio
import signal
import sys

from examples.flows import resolve
from pyoco_server import NatsBackendConfig, PyocoNatsWorker, configure_logging


async def work(config: NatsBackendConfig, stop: asyncio.Event, worker_id: str = "example") -> int:
    """Handle jobs until `stop` is set. Returns how many there were."""
    worker = await PyocoNatsWorker.connect(config, flow_resolver=resolve, worker_id=worker_id)
    handled = 0
    try:
        while not stop.is_set():
            if await worker.run_once(timeout=1.0) is not None:
                handled += 1
    finally:
        await worker.close()
    return handled


async def main() -> int:
    configure_logging("run_worker")
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await work(NatsBackendConfig.from_env(), stop)
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
