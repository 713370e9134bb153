"""`pyoco-keeper`: the duties that belong to no single run. Several may run; one is enough."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from pyoco_server.doors.cli.shell import Command, run

if TYPE_CHECKING:
    from pyoco_server.config import NatsBackendConfig

__all__ = ["cli", "main"]


@click.command(cls=Command, example="pyoco-keeper --nats-url nats://127.0.0.1:4222")
@click.option("--nats-url", metavar="URL", help="Use this NATS server. [env: PYOCO_NATS_URL]")
def cli(nats_url: str | None) -> int:
    """Do what belongs to no single run: end the runs that no worker would ever take, those whose jobs were delivered
    too often, and cancelled ones that nobody works on; clear the worker registry; remove what broken uploads left.
    Several may run; one is enough.

    Stops on SIGTERM and Ctrl-C; outlives outages of NATS."""
    import asyncio  # noqa: PLC0415 - not for --help

    from pyoco_server.config import NatsBackendConfig  # noqa: PLC0415
    from pyoco_server.doors.cli.typos import warn_of_typos  # noqa: PLC0415
    from pyoco_server.logs import configure_logging  # noqa: PLC0415

    config = NatsBackendConfig.from_env(nats_url=nats_url)
    configure_logging("pyoco-server:keeper")
    warn_of_typos()
    return asyncio.run(_keep(config))


async def _keep(config: NatsBackendConfig) -> int:
    import asyncio  # noqa: PLC0415 - not for --help

    from pyoco_server.doors.cli.signals import StopSignal  # noqa: PLC0415
    from pyoco_server.logs import get_logger  # noqa: PLC0415
    from pyoco_server.loops.advisories import Advisories  # noqa: PLC0415
    from pyoco_server.loops.canceller import Canceller  # noqa: PLC0415
    from pyoco_server.loops.feeder import IndexFeeder  # noqa: PLC0415
    from pyoco_server.loops.keeper import KeeperHeartbeat  # noqa: PLC0415
    from pyoco_server.loops.loop import Loop  # noqa: PLC0415
    from pyoco_server.loops.object_sweeper import ObjectSweeper  # noqa: PLC0415
    from pyoco_server.loops.registry_sweeper import RegistrySweeper  # noqa: PLC0415
    from pyoco_server.loops.rescuer import Rescuer  # noqa: PLC0415
    from pyoco_server.wiring import open_backend, open_index  # noqa: PLC0415

    log = get_logger(__name__)
    stop = StopSignal()
    with open_index(config) as index:
        async with open_backend(config, "pyoco-keeper") as backend:
            feeder = IndexFeeder(backend.runs, index)
            duties: list[Loop] = [
                KeeperHeartbeat(backend),
                Advisories(backend),
                Canceller(backend, index, feeder),
                Rescuer(backend, index, feeder),
                RegistrySweeper(backend),
                ObjectSweeper(backend),
            ]
            await feeder.start()
            for duty in duties:
                await duty.start()
            log.info("the keeper keeps", duties=[type(duty).__name__ for duty in duties])
            await stop.wait()
            log.info("the keeper stops", signal=stop.name)
            await asyncio.gather(*(duty.stop() for duty in duties))
            await feeder.stop()
    return stop.exit_code


def main() -> None:
    run(cli, "pyoco-keeper")


if __name__ == "__main__":
    main()
