"""`pyoco-grid worker`: runs programs for a door, over TCP (section 15)."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from pyoco_server.doors.cli.shell import Command
from pyoco_server.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from pyoco_server.config import GridConfig, NatsBackendConfig
    from pyoco_server.doors.cli.signals import StopSignal
    from pyoco_server.frames.addresses import Address
    from pyoco_server.loops.tcp_worker.worker import TcpWorker, WorkerOptions

__all__ = ["worker"]

_DEFAULT_PATTERN = "job.assign.*"
_T = TypeVar("_T")


@click.command(
    cls=Command,
    example="pyoco-grid worker\n"
    "pyoco-grid worker 127.0.0.1 5000\n"
    "pyoco-grid worker door1.example 5000 job.assign.render --door door2.example:5000 --id render-1 --max-par 8\n"
    "PYOCO_API_KEY=pyoco_… pyoco-grid worker door1.example 5000 --tls-ca ca.crt",
)
@click.argument("places", nargs=-1, metavar="[HOST PORT] [PATTERN]...")
@click.option("--door", "doors", metavar="H:P", multiple=True, help="Another door of the same group. May be repeated.")
@click.option("--id", "worker_id", metavar="W", help="Name of this worker. [default: the host's, with a number]")
@click.option("--max-par", metavar="N", type=click.IntRange(1, 10_000), help="Programs at once. [env: WORKER_MAX_PAR]")
@click.option("--exec-dir", metavar="DIR", help="Directory of the programs. [env: EXEC_DIR]")
@click.option("--work-root", metavar="DIR", help="Directory of job directories and results. [env: WORK_ROOT]")
@click.option("--tls", is_flag=True, help="Use TLS; a known authority must have signed the door's certificate.")
@click.option("--tls-ca", metavar="FILE", help="Use TLS with this authority.")
@click.option("--tls-cert", metavar="FILE", help="Certificate of this worker, for doors that require one.")
@click.option("--tls-key", metavar="FILE", help="Its key.")
@click.option("--connect-timeout", metavar="SEC", type=float, help="Give up if no door is found within this time.")
def worker(
    *,
    places: tuple[str, ...],
    doors: tuple[str, ...],
    worker_id: str | None,
    connect_timeout: float | None,
    **given: Any,
) -> int:
    """Run programs for a door, over TCP.

    Without HOST and PORT it uses the door of the server on this machine. PATTERN selects the programs in NATS syntax:
    job.assign.calcA; without one, all programs. The API key is read from PYOCO_API_KEY. If its door disappears, the
    worker connects to another one, and its programs keep running. SIGTERM and the first Ctrl-C let them finish; a
    second Ctrl-C kills them.
    """

    import uvloop

    from pyoco_server.config import NatsBackendConfig, grid_from_env
    from pyoco_server.core.programs.names import is_client_id
    from pyoco_server.doors.cli.grid.effective import log_settings
    from pyoco_server.doors.cli.grid.outward import split_door, tls_to_doors
    from pyoco_server.doors.cli.typos import warn_of_typos
    from pyoco_server.frames.addresses import Address
    from pyoco_server.logs import configure_logging
    from pyoco_server.loops.tcp_worker.worker import WorkerOptions

    has_door = bool(places) and not places[0].startswith("job.")
    (host, port), pattern = split_door(places, has_door=has_door)
    configure_logging("pyoco-grid:worker", name=worker_id)
    warn_of_typos()
    config = grid_from_env(worker_max_par=given["max_par"], exec_dir=given["exec_dir"], work_root=given["work_root"])
    if worker_id is not None and not is_client_id(worker_id):
        raise UsageError("--id must be 1 to 64 letters, digits, '_' or '-'; example: --id render-1")
    options = WorkerOptions(
        patterns=_patterns(pattern or (_DEFAULT_PATTERN,)),
        key=os.environ.get("PYOCO_API_KEY") or None,
        tls=tls_to_doors(given),
    )
    addresses = [Address.read(f"[{host}]:{port}" if ":" in host else f"{host}:{port}"), *map(Address.read, doors)]
    log_settings(None, config)
    return uvloop.run(_work(config, NatsBackendConfig.from_env(), options, addresses, worker_id, connect_timeout))


def _patterns(patterns: tuple[str, ...]) -> tuple[str, ...]:
    from pyoco_server.core.frames.subjects import PATTERNS_MAX, check_pattern
    from pyoco_server.core.programs.faults import GridRefused

    if len(patterns) > PATTERNS_MAX:
        raise UsageError(f"a worker has at most {PATTERNS_MAX} patterns")
    for each in patterns:
        try:
            check_pattern(each)
        except GridRefused as error:
            raise UsageError(f"{each[:80]!r} is not a pattern: {error.message}; example: 'job.assign.*'") from error
    return patterns


async def _work(
    config: GridConfig,
    logs: NatsBackendConfig,
    options: WorkerOptions,
    doors: Sequence[Address],
    worker_id: str | None,
    connect_timeout: float | None,
) -> int:
    import asyncio
    import random
    import socket

    from pyoco_server.doors.cli.signals import StopSignal
    from pyoco_server.executors.program.local import LocalPrograms
    from pyoco_server.executors.program.settings import RunnerSettings
    from pyoco_server.frames.addresses import Addresses
    from pyoco_server.loops.programs.cpu import CpuUse
    from pyoco_server.loops.tcp_worker.identity import take_identity
    from pyoco_server.loops.tcp_worker.log_chunks import DoorLines
    from pyoco_server.loops.tcp_worker.worker import CpuAndClock, TcpWorker
    from pyoco_server.wiring.logs import log_sender

    hurry = asyncio.Event()
    stop = StopSignal(at_once=hurry.set)
    lines = DoorLines()
    sender = log_sender(logs, lines, lines.is_up) if logs.logs_enabled else None
    executor = LocalPrograms(RunnerSettings.of(config, os.environ), os.environ, sender)
    async with contextlib.AsyncExitStack() as ending:
        await executor.start()
        ending.push_async_callback(executor.stop)
        identity = await asyncio.to_thread(take_identity, Path(config.work_root), worker_id, socket.gethostname())
        addresses = Addresses(doors, clock=time.monotonic, chance=random.SystemRandom().random)
        machine, sink = CpuAndClock(cpu=CpuUse().share), lines if sender is not None else None
        worker = TcpWorker(executor, identity, config, options, addresses, machine, sink)
        ending.push_async_callback(worker.stop)
        if sender is not None:
            ending.push_async_callback(sender.stop)
        await worker.start()
        await _serve(worker, stop, connect_timeout)
        await _first_of(worker.drain(config.worker_drain_sec), hurry.wait())
    return stop.exit_code


async def _serve(worker: TcpWorker, stop: StopSignal, connect_timeout: float | None) -> None:
    """Serve until the worker is to stop. Raises UsageError if no door accepts it."""
    from pyoco_server.logs import get_logger

    log = get_logger(__name__)
    found = await _first_of(worker.first_door(connect_timeout), stop.wait())
    if found is not None:
        click.echo(f"READY worker {found}")
        log.info("worker started", worker_id=worker.worker_id, door=str(found))
        await _first_of(worker.until_unwelcome(), stop.wait())
    log.info("worker stopping", worker_id=worker.worker_id, signal=stop.name)


async def _first_of(work: Coroutine[Any, Any, _T], end: Coroutine[Any, Any, object]) -> _T | None:
    """Return the result of `work`, or None if `end` finishes first. Raises what `work` raises."""
    import asyncio

    working, ending = asyncio.create_task(work), asyncio.create_task(end)
    either: set[asyncio.Task[Any]] = {working, ending}
    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    is_done = working.done()
    for task in either:
        task.cancel()
    await asyncio.wait(either)
    return working.result() if is_done else None
