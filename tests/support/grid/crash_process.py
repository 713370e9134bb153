"""`pyoco-grid`, or a gateway, that dies by kill -9 at a named step of submit, claim, finish and the like (P30).

Started as `python -m support.grid.crash_process` in the place of `python -m pyoco_server.doors.cli.grid`, with the same
arguments; `PYOCO_TEST_DIES_AT` is one of the POINTS of `crashes.py`. Nothing else is changed.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
from collections.abc import Mapping
from typing import Any

import uvicorn

from pyoco_server.doors.cli import grid
from pyoco_server.ports.nats.puller import JetStreamDelivery
from pyoco_server.ports.program_events.jetstream import JetStreamEvents
from pyoco_server.ports.program_queue.jetstream import JetStreamProgramQueue
from pyoco_server.ports.queue.jetstream import JetStreamQueue
from pyoco_server.ports.runs.jetstream import JetStreamRuns
from pyoco_server.ports.slots.jetstream import JetStreamSlots
from pyoco_server.ports.wakeups.nats import NatsWakeups
from support.grid.crashes import dying, step_of

__all__ = ["VARIABLE", "main"]

VARIABLE = "PYOCO_TEST_DIES_AT"
_ADAPTERS: Mapping[str, type] = {
    "runs": JetStreamRuns,
    "queue": JetStreamQueue,
    "delivery": JetStreamDelivery,
    "programs.queue": JetStreamProgramQueue,
    "programs.slots": JetStreamSlots,
    "programs.events": JetStreamEvents,
    "programs.wakeups": NatsWakeups,
}


def main() -> None:
    _die_at(os.environ.pop(VARIABLE))
    run = grid.main if sys.argv[1] in ("leader", "nworker") else uvicorn.main
    run()


def _die_at(point: str) -> None:
    step = step_of(point)
    adapter = _ADAPTERS[step.port]
    real = getattr(adapter, step.method)

    async def call(self: Any, *args: Any, **more: Any) -> Any:
        return await dying(step, functools.partial(real, self), _die)(*args, **more)

    setattr(adapter, step.method, call)


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
