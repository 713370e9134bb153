"""`pyoco-grid leader`: a door. Frames over TCP for clients and workers (section 25.1)."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

import click

from pyoco_server.doors.cli.shell import Command

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyoco_server.config import GridConfig, NatsBackendConfig
    from pyoco_server.doors.frames.settings import DoorOptions
    from pyoco_server.doors.frames.tls import ServerTls

__all__ = ["leader"]

_PORT = click.IntRange(0, 65535)


@click.command(
    cls=Command,
    example="pyoco-grid leader 5000\n"
    "pyoco-grid leader 5000 --role auto --group g1 --peers 127.0.0.1:5001,127.0.0.1:5002\n"
    "EXEC_AUTH=api_key pyoco-grid leader 5000 --host 0.0.0.0 --tls-cert door.crt --tls-key door.key",
)
@click.argument("port", type=_PORT)
@click.option(
    "--role",
    type=click.Choice(["leader", "auto", "standby"]),
    default="leader",
    show_default=True,
    help="auto: on a cluster of three NATS nodes. standby: sends everybody elsewhere, until SIGUSR1.",
)
@click.option("--group", metavar="G", help="Group of queues that it serves. [env: EXEC_GROUP; default: default]")
@click.option("--peers", metavar="H:P,…", default="", help="Other doors of the group, to send clients and workers to.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--advertise", metavar="H:P", help="Address that others are given. [default: host and port]")
@click.option("--nats", "nats_url", metavar="URL[,URL]", help="Use this NATS server. [env: PYOCO_NATS_URL]")
@click.option("--metrics-port", type=_PORT, help="Serve `/metrics` on this port, too; 0: a free one.")
@click.option("--tls-cert", metavar="FILE", help="Certificate of this door; with --tls-key, TLS is on.")
@click.option("--tls-key", metavar="FILE", help="Its key. SIGHUP reads both again.")
@click.option("--tls-ca", metavar="FILE", help="Ask for certificates that this authority has signed.")
@click.option(
    "--insecure", is_flag=True, help="Listen on other addresses than this machine's, and ask nobody for a key."
)
@click.option("--fd", type=click.IntRange(min=3), hidden=True, help="A listening socket that `up` hands down.")
def leader(*, port: int, host: str, fd: int | None, metrics_port: int | None, **given: Any) -> int:
    """Open a door: frames over TCP for clients and workers.

    Any number of doors may serve one group: none of them keeps anything that must not be lost. SIGTERM and the first
    Ctrl-C send everybody to another door and wait for them to go; a second Ctrl-C stops at once.
    """
    import uvloop  # noqa: PLC0415 - not for --help

    from pyoco_server.config import NatsBackendConfig, grid_from_env  # noqa: PLC0415
    from pyoco_server.doors.cli.claims import open_port  # noqa: PLC0415
    from pyoco_server.doors.cli.grid.effective import log_settings  # noqa: PLC0415
    from pyoco_server.doors.cli.grid.serving import check_access, door_options, read_peers, server_tls  # noqa: PLC0415
    from pyoco_server.doors.cli.typos import warn_of_typos  # noqa: PLC0415
    from pyoco_server.logs import configure_logging  # noqa: PLC0415

    config = NatsBackendConfig.from_env(nats_url=given["nats_url"])
    grid = _grid(grid_from_env(exec_group=given["group"]), given["role"])
    tls = server_tls(given["tls_cert"], given["tls_key"], given["tls_ca"])
    peers = read_peers(given["peers"])
    check_access(grid, tls, host, is_insecure=given["insecure"], what="the door")
    configure_logging("pyoco-grid:door")
    warn_of_typos()
    log_settings(config, grid)
    with open_port(host, port, "PORT") if fd is None else socket.socket(fileno=fd) as listening:
        options = door_options(listening, host, given, peers)
        # Of `up` everybody is told by `up` itself, and on its stdout there are lines of JSON only.
        tell = _tell_ready if fd is None else _tell_nobody
        # Metrics ask nobody for a key, whatever the door does.
        metrics = (host if given["insecure"] else "127.0.0.1", metrics_port)
        return uvloop.run(_serve(config, grid, options, listening, tls, metrics, tell))


def _tell_ready(address: str) -> None:
    click.echo(f"READY leader {address}")


def _tell_nobody(_: str) -> None:
    """Somebody else does."""


def _grid(grid: GridConfig, role: str) -> GridConfig:
    import dataclasses  # noqa: PLC0415 - not for --help

    return dataclasses.replace(grid, exec_replicas=3) if role == "auto" and not grid.exec_replicas else grid


async def _serve(
    config: NatsBackendConfig,
    grid: GridConfig,
    options: DoorOptions,
    listening: socket.socket,
    tls: ServerTls | None,
    metrics: tuple[str, int | None],
    tell_ready: Callable[[str], None],
) -> int:
    import asyncio  # noqa: PLC0415 - not for --help
    import os  # noqa: PLC0415
    import signal  # noqa: PLC0415

    from pyoco_server.doors.cli.signals import StopSignal  # noqa: PLC0415
    from pyoco_server.doors.frames.door import Door  # noqa: PLC0415
    from pyoco_server.doors.frames.server import FrameServer  # noqa: PLC0415
    from pyoco_server.doors.http.probe_server import metrics_server  # noqa: PLC0415
    from pyoco_server.doors.http.program_exposition import render_figures  # noqa: PLC0415
    from pyoco_server.logs import get_logger  # noqa: PLC0415
    from pyoco_server.loops.programs.sweeper import ProgramSweeper  # noqa: PLC0415
    from pyoco_server.wiring.backend import open_door_backend  # noqa: PLC0415

    log = get_logger(__name__)
    # Nothing of a door has to be saved: what its workers run goes on, and is attached elsewhere.
    stop = StopSignal(at_once=lambda: os._exit(130 if stop.name == "SIGINT" else 1))
    loop = asyncio.get_running_loop()
    async with open_door_backend(config, grid, f"pyoco-door {options.door_id}") as backend:
        door = Door(backend, options, sweeper=ProgramSweeper(backend))
        await door.start()
        server = FrameServer(listening, grid, door.serve, tls, door.meter.error)
        promoting: set[asyncio.Task[None]] = set()
        loop.add_signal_handler(signal.SIGUSR1, lambda: promoting.add(loop.create_task(door.promote())))
        if tls is not None:
            loop.add_signal_handler(signal.SIGHUP, tls.reload)
        server.open()
        async with metrics_server(*metrics, lambda: render_figures(door.meter.figures())):
            tell_ready(options.bound)
            log.info("the door is open", door_id=options.door_id, addr=options.address, group=grid.exec_group)
            await stop.wait()
        log.info("the door closes", signal=stop.name)
        server.close()
        await door.drain()
        await door.stop()
        await server.stop()
    return stop.exit_code
