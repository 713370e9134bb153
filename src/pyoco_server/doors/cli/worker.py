"""`pyoco-worker`: takes jobs of its tags and runs each in a process of its own (section 19.4)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from pyoco_server.doors.cli.served_app import check_one_source
from pyoco_server.doors.cli.shell import Command, run
from pyoco_server.errors import UsageError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable

    from pyoco_server.config import AwsSettings, GridConfig, NatsBackendConfig, PricedConfig
    from pyoco_server.doors.cli.signals import StopSignal
    from pyoco_server.loops.lane import Lane
    from pyoco_server.loops.log_sender import LogSender
    from pyoco_server.loops.worker import Worker
    from pyoco_server.ports.backend import Backend

    #: The settings of programs, and the patterns of the programs to take.
    Programs = tuple[GridConfig, tuple[str, ...]]

__all__ = ["cli", "main"]


@click.command(
    cls=Command,
    example="pyoco-worker my_flows:app\n"
    "pyoco-worker --flow-resolver my_flows:resolve\n"
    "pyoco-worker --tags gpu,default --slots 4 --worker-id gpu-1 --nats-url nats://10.0.0.5:4222\n"
    "pyoco-worker --wheel-sync --wheel-sync-dir /var/lib/pyoco/wheels\n"
    "pyoco-worker --exec-dir /opt/grid/exe --exec-pattern job.assign.calcA --exec-slots 8",
)
@click.argument("app", metavar="[MODULE:APP]", required=False)
@click.option("--nats-url", metavar="URL", help="Use this NATS server. [env: PYOCO_NATS_URL]")
@click.option("--tags", metavar="A,B", help="Serve these tags. [default: PYOCO_DEFAULT_TAG]")
@click.option(
    "--worker-id",
    metavar="ID",
    help="Name in the registry; unique among workers. [default: the host name, with a number if that id is alive]",
)
@click.option(
    "--flow-resolver",
    metavar="MODULE:CALLABLE",
    help="Where to find flows by name. [env: PYOCO_FLOW_RESOLVER]",
)
@click.option("--slots", metavar="N", help="Runs at once. [env: PYOCO_WORKER_SLOTS; default: the CPUs]")
@click.option("--wheel-sync", is_flag=True, help="Install the wheels of the registry. [env: PYOCO_WHEEL_SYNC_ENABLED]")
@click.option("--wheel-sync-dir", metavar="DIR", help="Where to keep them. [env: PYOCO_WHEEL_SYNC_DIR]")
@click.option("--wheel-sync-interval-sec", metavar="SEC", help="Time between two checks for new wheels. [default: 10]")
@click.option("--wheel-install-timeout-sec", metavar="SEC", help="Time for one installation. [default: 180]")
@click.option("--drain-timeout-sec", metavar="SEC", help="On a stop, release runs that still run after this time.")
@click.option("--exec-dir", metavar="DIR", help="Run the programs of this directory, too. [env: EXEC_DIR]")
@click.option(
    "--exec-pattern", metavar="P", multiple=True, help="Take only these programs: job.assign.calcA. [default: all]"
)
@click.option("--exec-slots", metavar="N", help="Programs at once. [env: WORKER_MAX_PAR; default: 4]")
def cli(
    *,
    app: str | None,
    tags: str | None,
    worker_id: str | None,
    flow_resolver: str | None,
    slots: str | None,
    wheel_sync: bool,
    **given: Any,
) -> int:
    """Take jobs and run them until SIGTERM or Ctrl-C.

    With MODULE:APP it serves the flows of an app; the current directory is importable.

    Also takes priced runs, as soon as a ledger exists, and runs programs if their directory is configured. The first
    signal lets running work finish; a second one stops immediately, and the jobs are run on other workers.
    """
    import uvloop  # noqa: PLC0415 - not for --help

    from pyoco_server.config import priced_from_env  # noqa: PLC0415
    from pyoco_server.core.names import check_worker_names  # noqa: PLC0415
    from pyoco_server.doors.cli.local_server import settle_nats  # noqa: PLC0415
    from pyoco_server.doors.cli.typos import warn_of_typos  # noqa: PLC0415
    from pyoco_server.logs import configure_logging  # noqa: PLC0415
    from pyoco_server.wiring.packs import check_files  # noqa: PLC0415

    check_one_source(app, flow_resolver)
    configure_logging("pyoco-server:worker", name=worker_id)
    warn_of_typos()
    programs = _programs(given.pop("exec_dir"), given.pop("exec_pattern"), given.pop("exec_slots"))
    config = settle_nats(worker_slots=slots, wheel_sync_enabled=wheel_sync or None, **given).config
    chosen = [tag.strip() for tag in tags.split(",")] if tags is not None else [config.default_tag]
    try:
        check_worker_names(_wanted_id(worker_id), chosen)
    except ValueError as error:
        raise UsageError(str(error)) from error
    priced = priced_from_env()
    check_files(priced[0])
    return uvloop.run(_work(config, priced, programs, worker_id, list(dict.fromkeys(chosen)), flow_resolver, app))


def _programs(exec_dir: str | None, patterns: tuple[str, ...], slots: str | None) -> Programs | None:
    """Return settings and patterns of programs. None: this worker runs none, because no directory is configured."""
    from pyoco_server.config import GridConfig, grid_from_env  # noqa: PLC0415 - not for --help
    from pyoco_server.wiring.lane import checked_patterns, installed_patterns  # noqa: PLC0415

    if slots is not None and not slots.strip().isdecimal():
        raise UsageError("--exec-slots must be a whole number; example: --exec-slots 4")
    grid = grid_from_env(exec_dir=exec_dir, worker_max_par=None if slots is None else int(slots))
    is_wanted = exec_dir is not None or bool(patterns) or slots is not None
    if not is_wanted and "EXEC_DIR" not in os.environ and grid.exec_dir == GridConfig().exec_dir:
        return None
    return grid, checked_patterns(patterns) if patterns else installed_patterns(grid.exec_dir)


async def _work(
    config: NatsBackendConfig,
    settings: tuple[PricedConfig, AwsSettings],
    programs: Programs | None,
    given_id: str | None,
    tags: list[str],
    flow_resolver: str | None,
    app: str | None = None,
) -> int:
    import asyncio  # noqa: PLC0415 - not for --help

    from pyoco_server.core.run import Owner  # noqa: PLC0415
    from pyoco_server.core.worker_description import WorkerDescription  # noqa: PLC0415
    from pyoco_server.doors.cli.signals import StopSignal  # noqa: PLC0415
    from pyoco_server.doors.http.probe_server import probe_server  # noqa: PLC0415
    from pyoco_server.logs import get_logger  # noqa: PLC0415
    from pyoco_server.loops.flow_lane import FlowLane  # noqa: PLC0415
    from pyoco_server.loops.worker import Worker  # noqa: PLC0415
    from pyoco_server.wiring import backend as wiring  # noqa: PLC0415
    from pyoco_server.wiring.logs import open_log_sender  # noqa: PLC0415

    log = get_logger(__name__)
    # On a second signal: the hosts detect our exit and exit, too, with all processes their tasks have started.
    stop = StopSignal(at_once=lambda: os._exit(130 if stop.name == "SIGINT" else 1))
    slots = config.slots
    grid = None if programs is None else programs[0]
    async with (
        wiring.open_backend(config, f"pyoco-worker {_wanted_id(given_id)}", priced=settings, grid=grid) as backend,
        open_log_sender(backend) as lines,
    ):
        worker_id = await _settled(backend, given_id)
        me = Owner(worker_id, backend.new_id())
        totals = None if lines is None else lines.totals
        description = WorkerDescription(me=me, tags=tuple(tags), versions=wiring.versions(), logs=totals)
        executor = wiring.host_executor(config, flow_resolver or config.flow_resolver or None, slots, lines, app)
        async with wiring.open_wheel_sync(backend, executor, tags) as wheels:
            flows = FlowLane(backend, executor, me, tags, slots, wheels)
            # Programs first: flows may wait for wheels.
            worker = Worker(backend, description, [*_program_lanes(backend, worker_id, programs, lines), flows])
            packs = asyncio.create_task(_take_packs(backend, worker, stop, lines), name="take priced runs")
            if await _before(stop.wait(), worker.start()):
                log.info("worker started", worker_id=worker_id, tags=tags, slots=slots)
                async with probe_server(config.health_host, config.health_port, lambda: _ready(backend)):
                    await _until_either(stop, packs)
            log.info("worker stopping", worker_id=worker_id, signal=stop.name)
            why = stop.name.lower() if stop.heard else "no_packs"
            # PYOCO_DRAIN_TIMEOUT_SEC=0: no limit but that of programs, WORKER_DRAIN_SEC.
            await asyncio.gather(worker.stop(why, config.drain_timeout_sec or None), asyncio.wait({packs}))
            packs.result()
    return stop.exit_code


def _wanted_id(given_id: str | None) -> str:
    """Return the id that was given, or the host name."""
    import socket  # noqa: PLC0415 - not for --help

    from pyoco_server.core.names import host_word  # noqa: PLC0415

    return host_word(socket.gethostname()) if given_id is None else given_id


async def _settled(backend: Backend, given_id: str | None) -> str:
    """Return the id of this worker: the given one, or one that no live worker has (CLI-11). Raises Unavailable."""
    if given_id is not None:
        return given_id
    from pyoco_server.actions.choose_worker_id import choose_worker_id  # noqa: PLC0415 - not for --help
    from pyoco_server.logs import configure_logging  # noqa: PLC0415

    worker_id = await choose_worker_id(backend, _wanted_id(None))
    configure_logging("pyoco-server:worker", name=worker_id)
    return worker_id


def _program_lanes(backend: Backend, worker_id: str, programs: Programs | None, lines: LogSender | None) -> list[Lane]:
    """Return the lane of programs, if there are any."""
    if programs is None:
        return []
    from pyoco_server.wiring.lane import program_lane  # noqa: PLC0415 - not for --help, nor without programs

    return [program_lane(backend, worker_id, programs[1], lines)]


async def _take_packs(backend: Backend, worker: Worker, stop: StopSignal, lines: LogSender | None) -> None:
    """Take priced runs, from the moment a ledger exists."""
    priced = backend.priced
    if priced is None:
        return
    from pyoco_server.wiring.offer import pack_lane  # noqa: PLC0415 - not for --help, nor without a ledger

    lane = await pack_lane(priced, backend.config, lines)
    if await _before(stop.wait(), priced.until_open()):
        await worker.join(lane)


async def _until_either(stop: StopSignal, packs: asyncio.Task[None]) -> None:
    """Wait for a stop signal, or until taking packs fails for good: that error must be reported."""
    import asyncio  # noqa: PLC0415 - not for --help

    stopping = asyncio.ensure_future(stop.wait())
    await asyncio.wait({stopping, packs}, return_when=asyncio.FIRST_COMPLETED)
    if not packs.done() or packs.exception() is None:
        await stopping
    stopping.cancel()


async def _ready(backend: Backend) -> tuple[bool, dict[str, object]]:
    from pyoco_server.actions.priced.check_ready import NOT_READY, check_ready  # noqa: PLC0415 - not for --help

    found = NOT_READY if backend.priced is None else await check_ready(backend.priced)
    return found.is_ready, found.document()


async def _before(end: Awaitable[object], work: Awaitable[object]) -> bool:
    """Run `work` until `end` finishes first: a start may wait for wheels. False: `work` was cancelled."""
    import asyncio  # noqa: PLC0415 - not for --help

    ending, working = asyncio.ensure_future(end), asyncio.ensure_future(work)
    await asyncio.wait({ending, working}, return_when=asyncio.FIRST_COMPLETED)
    done = working.done()
    (ending if done else working).cancel()
    await asyncio.gather(ending, working, return_exceptions=True)
    if done:
        working.result()
    return done


def main() -> None:
    run(cli, "pyoco-worker")


if __name__ == "__main__":
    main()
