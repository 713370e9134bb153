"""`pyoco-keeper`: the duties that belong to no single run. Several may run; one is enough."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from pyoco_server.doors.cli.shell import Command, run
from pyoco_server.errors import SettingError

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from pyoco_server.config import AwsSettings, NatsBackendConfig, PricedConfig
    from pyoco_server.config.grid import GridConfig
    from pyoco_server.loops.loop import Loop
    from pyoco_server.loops.resource_keeper import ResourceKeeper
    from pyoco_server.ports.backend import Backend

__all__ = ["cli", "main"]

#: Without NATS a turn may take a minute, and an init system kills processes that do not exit.
_STOP_SECONDS = 10.0


@click.command(cls=Command, example="pyoco-keeper --nats-url nats://127.0.0.1:4222")
@click.option("--nats-url", metavar="URL", help="Use this NATS server. [env: PYOCO_NATS_URL]")
def cli(nats_url: str | None) -> int:
    """Do what belongs to no single run.

    Fails runs that no worker can take and runs whose jobs were delivered too often. Concludes cancelled runs that
    no worker holds. Removes stale records from the worker registry, and the remains of broken uploads. Requeues
    jobs of programs that were lost from their queue. Starts delayed runs at their time, and the runs of schedules.
    Recreates and refills queues that were deleted in NATS. Ends, refunds and audits priced runs that their worker
    or gateway abandoned.

    Several may run; one is enough. Stops on SIGTERM and Ctrl-C; survives outages of NATS.
    """
    import uvloop  # noqa: PLC0415 - not for --help

    from pyoco_server.config import grid_from_env, priced_from_env  # noqa: PLC0415
    from pyoco_server.doors.cli.local_server import settle  # noqa: PLC0415
    from pyoco_server.doors.cli.typos import warn_of_typos  # noqa: PLC0415
    from pyoco_server.logs import configure_logging  # noqa: PLC0415

    config = settle(nats_url=nats_url).config
    configure_logging("pyoco-server:keeper")
    warn_of_typos()
    return uvloop.run(_keep(config, priced_from_env(), grid_from_env()))


def _fitting(grid: GridConfig, config: NatsBackendConfig) -> GridConfig | None:
    """Return the program settings, or None if they are invalid.

    No door and no worker would start with invalid settings, so there are no programs to keep; the other duties still
    run.
    """
    from pyoco_server.logs import get_logger  # noqa: PLC0415 - not for --help

    try:
        grid.check_ack_wait(config.consumer_ack_wait_sec)
    except SettingError as error:
        get_logger(__name__).warning("keeper started without program duties: invalid settings", error=error)
        return None
    return grid


async def _keep(config: NatsBackendConfig, settings: tuple[PricedConfig, AwsSettings], grid: GridConfig) -> int:
    import asyncio  # noqa: PLC0415 - not for --help

    from pyoco_server.doors.cli.signals import StopSignal  # noqa: PLC0415
    from pyoco_server.doors.http.probe_server import probe_server  # noqa: PLC0415
    from pyoco_server.logs import get_logger  # noqa: PLC0415
    from pyoco_server.loops.advisories import Advisories  # noqa: PLC0415
    from pyoco_server.loops.canceller import Canceller  # noqa: PLC0415
    from pyoco_server.loops.clock.duties import clock_duties  # noqa: PLC0415
    from pyoco_server.loops.feeder import IndexFeeder  # noqa: PLC0415
    from pyoco_server.loops.keeper import KeeperHeartbeat  # noqa: PLC0415
    from pyoco_server.loops.object_sweeper import ObjectSweeper  # noqa: PLC0415
    from pyoco_server.loops.output_sweeper import OutputSweeper  # noqa: PLC0415
    from pyoco_server.loops.programs.sweeper import ProgramSweeper  # noqa: PLC0415
    from pyoco_server.loops.registry_sweeper import RegistrySweeper  # noqa: PLC0415
    from pyoco_server.loops.rescuer import Rescuer  # noqa: PLC0415
    from pyoco_server.loops.resource_keeper import ResourceKeeper  # noqa: PLC0415
    from pyoco_server.wiring.backend import open_backend, open_index  # noqa: PLC0415

    log = get_logger(__name__)
    stop = StopSignal()
    with open_index(config) as index:
        programs = _fitting(grid, config)
        async with open_backend(config, "pyoco-keeper", priced=settings, grid=programs, keeps=True) as backend:
            feeder = IndexFeeder(backend.runs, index)
            resources = ResourceKeeper(backend, index, feeder)
            duties: list[Loop] = [
                KeeperHeartbeat(backend),
                resources,
                Advisories(backend),
                Canceller(backend, index, feeder),
                Rescuer(backend, index, feeder),
                RegistrySweeper(backend),
                ObjectSweeper(backend),
                OutputSweeper(backend),
                *clock_duties(backend, index, feeder),
                *([] if backend.programs is None else [ProgramSweeper(backend, index, feeder)]),
            ]
            await feeder.start()
            for duty in duties:
                await duty.start()
            log.info("keeper started", duties=[type(duty).__name__ for duty in duties])
            priced_duties = asyncio.create_task(_keep_priced(backend, resources), name="keep priced runs")
            async with probe_server(config.health_host, config.health_port, lambda: _ready(backend)):
                await stop.wait()
            log.info("keeper stopping", signal=stop.name)
            priced_duties.cancel()
            await _end(priced_duties, *(duty.stop() for duty in duties))
            await feeder.stop()
    return stop.exit_code


async def _end(*stops: Awaitable[object], seconds: float = _STOP_SECONDS) -> None:
    """Let running turns finish. Turns that wait longer, for NATS, are cancelled, which is safe at any point."""
    import asyncio  # noqa: PLC0415 - not for --help

    try:
        async with asyncio.timeout(seconds):
            await asyncio.gather(*stops, return_exceptions=True)
    except TimeoutError:
        from pyoco_server.logs import get_logger  # noqa: PLC0415 - not for --help

        get_logger(__name__).warning("duty cancelled at shutdown; the next keeper repeats it", seconds=seconds)


async def _keep_priced(backend: Backend, resources: ResourceKeeper | None = None) -> None:
    """Run the duties of priced runs as soon as the ledger exists."""
    import asyncio  # noqa: PLC0415 - not for --help

    from pyoco_server.core.holds import Holds  # noqa: PLC0415
    from pyoco_server.logs import get_logger  # noqa: PLC0415
    from pyoco_server.loops.priced.auditor import Auditor  # noqa: PLC0415
    from pyoco_server.loops.priced.projector import ProjectionKeeper  # noqa: PLC0415
    from pyoco_server.loops.priced.reaper import Reaper  # noqa: PLC0415
    from pyoco_server.loops.priced.reconciler import Reconciler  # noqa: PLC0415
    from pyoco_server.loops.priced.retainer import Retainer  # noqa: PLC0415
    from pyoco_server.loops.priced.sweeper import Sweeper  # noqa: PLC0415

    priced = backend.priced
    if priced is None:
        return
    await priced.until_open()
    sweeper = Sweeper(priced)
    if resources is not None:
        resources.when_made[Holds.PACK_JOBS] = sweeper.nudge
    duties: list[Loop] = [
        Reaper(priced),
        sweeper,
        Reconciler(priced),
        Retainer(priced),
        Auditor(priced),
        ProjectionKeeper(priced.ledger, backend.runs, runs_retention_seconds=backend.config.runs_retention_sec),
    ]
    for duty in duties:
        await duty.start()
    get_logger(__name__).info("priced duties started", duties=[type(duty).__name__ for duty in duties])
    try:
        await asyncio.Event().wait()
    finally:
        await asyncio.gather(*(duty.stop() for duty in duties))


async def _ready(backend: Backend) -> tuple[bool, dict[str, object]]:
    from pyoco_server.actions.priced.check_ready import NOT_READY, check_ready  # noqa: PLC0415 - not for --help

    found = NOT_READY if backend.priced is None else await check_ready(backend.priced)
    return found.is_ready, found.document()


def main() -> None:
    run(cli, "pyoco-keeper")


if __name__ == "__main__":
    main()
