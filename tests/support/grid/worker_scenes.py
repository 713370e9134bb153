"""A worker over TCP with pretended programs, at a door by hand."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Protocol

from pyoco_server.config.grid import GridConfig
from pyoco_server.executors.program.port import ProgramExecutor
from pyoco_server.frames.addresses import Address, Addresses
from pyoco_server.loops.tcp_worker.identity import take_identity
from pyoco_server.loops.tcp_worker.log_chunks import DoorLines
from pyoco_server.loops.tcp_worker.worker import CpuAndClock, TcpWorker, WorkerOptions
from support.grid.pretended_programs import PretendedExecutor
from support.waiting import eventually

__all__ = ["Clock", "a_worker", "pulses"]


async def _hasty(seconds: float) -> None:
    """A tenth of the time between two tries: the delays themselves are tested without a socket."""
    await asyncio.sleep(seconds / 10)


async def pulses(worker: TcpWorker, count: int = 2) -> None:
    """Returns when the worker has looked so many times more at its credits, its doors and what is due."""
    pulse, turns = worker._pulse, 0
    turn = pulse.turn

    async def counted() -> None:
        nonlocal turns
        await turn()
        turns += 1

    pulse.turn = counted  # type: ignore[method-assign]
    try:
        await eventually(lambda: turns >= count)
    finally:
        pulse.turn = turn  # type: ignore[method-assign]


class Listening(Protocol):
    """A door by hand, or a real one, on 127.0.0.1."""

    @property
    def port(self) -> int: ...


class Clock:
    """The time, and as much more as a test wants to have passed."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead


@contextlib.asynccontextmanager
async def a_worker(
    root: Path,
    *doors: Listening,
    executor: ProgramExecutor | None = None,
    cpu: Callable[[], float] = lambda: 0.0,
    clock: Callable[[], float] = time.monotonic,
    key: str | None = None,
    tls: ssl.SSLContext | None = None,
    worker_id: str = "w1",
    lines: DoorLines | None = None,
    **settings: Any,
) -> AsyncIterator[TcpWorker]:
    """Started; at the end it is stopped, unless it has been. Its doors are tried in this order."""
    given = {"worker_heartbeat_sec": 0.1, "worker_max_par": 2} | settings
    config = GridConfig(work_root=str(root), **given)
    addresses = Addresses([Address("127.0.0.1", door.port) for door in doors], clock=clock, chance=lambda: 0.5)
    options = WorkerOptions(patterns=("job.assign.*",), key=key, tls=tls)
    identity = take_identity(root, worker_id, "host")
    machine = CpuAndClock(cpu=cpu, clock=clock, sleep=_hasty)
    executor = executor or PretendedExecutor()
    await executor.start()
    worker = TcpWorker(executor, identity, config, options, addresses, machine, lines)
    await worker.start()
    try:
        yield worker
    finally:
        await worker.stop()
