"""`pyoco-grid leader`: a door that accepts clients and workers over TCP (section 25.1)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pyoco_server.doors.cli.shell import Command

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from pyoco_server.config import GridConfig, NatsBackendConfig
    from pyoco_server.doors.cli.grid.beside import Beside, RunningNats
    from pyoco_server.doors.cli.signals import StopSignal
    from pyoco_server.doors.frames.settings import DoorOptions
    from pyoco_server.doors.frames.tls import ServerTls
    from pyoco_server.ports.store_state import StoreState

__all__ = ["leader"]

_PORT = click.IntRange(0, 65535)
_NATS_PORT = click.IntRange(1, 65535)


@click.command(
    cls=Command,
    example="pyoco-grid leader 5000\n"
    "pyoco-grid leader 5000 --nats nats://127.0.0.1:4222\n"
    "pyoco-grid leader 5000 --role auto --peers n1:5000,n2:5000,n3:5000 --host 0.0.0.0\n"
    "EXEC_AUTH=api_key pyoco-grid leader 5000 --host 0.0.0.0 --tls-cert door.crt --tls-key door.key",
)
@click.argument("port", type=_PORT)
@click.option(
    "--role",
    type=click.Choice(["leader", "auto", "standby"]),
    default="leader",
    show_default=True,
    help="auto: on a cluster of three NATS nodes. standby: redirects all connections until SIGUSR1.",
)
@click.option("--group", metavar="G", help="Group of queues that it serves. [env: EXEC_GROUP; default: default]")
@click.option(
    "--peers",
    metavar="H:P,…",
    default="",
    help="Doors of the group, to send clients and workers to. With --role auto and without a NATS: three, this one "
    "included, that form a cluster.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--advertise", metavar="H:P", help="Address advertised to others. [default: host and port]")
@click.option(
    "--nats",
    "nats_url",
    metavar="URL[,URL]",
    help="Use this NATS server. Without one, start one. [env: PYOCO_NATS_URL]",
)
@click.option("--nats-port", type=_NATS_PORT, help="Port of the NATS that it starts. [default: free; --peers: PORT+10]")
@click.option("--nats-route-port", type=_NATS_PORT, help="Its port for other NATS nodes. [default: PORT+20]")
@click.option("--data-dir", metavar="DIR", help="Data directory of that NATS. [env: PYOCO_DATA_DIR; default: .pyoco]")
@click.option("--metrics-port", type=_PORT, help="Serve `/metrics` on this port, too; 0: a free one.")
@click.option("--tls-cert", metavar="FILE", help="Certificate of this door; with --tls-key, TLS is on.")
@click.option("--tls-key", metavar="FILE", help="Its key. SIGHUP reloads both.")
@click.option("--tls-ca", metavar="FILE", help="Require client certificates signed by this authority.")
@click.option("--insecure", is_flag=True, help="Allow non-loopback addresses without authentication.")
@click.option(
    "--open-frames",
    is_flag=True,
    help="Require no key on the frame port (EXEC_AUTH=none) although HTTP does (PYOCO_HTTP_AUTH_MODE=api_key).",
)
@click.option("--fd", type=click.IntRange(min=3), hidden=True, help="A listening socket that `up` hands down.")
def leader(*, port: int, host: str, fd: int | None, metrics_port: int | None, **given: Any) -> int:
    """Open a door: frames over TCP for clients and workers.

    Any number of doors may serve one group; no door keeps state that must not be lost. SIGTERM and the first Ctrl-C
    redirect all clients and workers to another door and wait until they have disconnected; a second Ctrl-C stops
    immediately.

    Without --nats and PYOCO_NATS_URL it uses the NATS of another server on this machine. If there is none, it starts a
    NATS of its own, which stops with it. --data-dir, --nats-port and --peers always start one. The same command with
    --role auto and the same --peers on three machines starts a cluster of three; the doors serve once two nodes are up.
    """
    import uvloop  # noqa: PLC0415 - not for --help

    from pyoco_server.config import grid_from_env  # noqa: PLC0415
    from pyoco_server.doors.cli.claims import open_port  # noqa: PLC0415
    from pyoco_server.doors.cli.grid.beside import NatsOptions, nats_beside, settle  # noqa: PLC0415
    from pyoco_server.doors.cli.grid.serving import check_access, door_options, read_peers, server_tls  # noqa: PLC0415
    from pyoco_server.doors.cli.typos import warn_of_typos  # noqa: PLC0415
    from pyoco_server.logs import configure_logging  # noqa: PLC0415

    peers = read_peers(given["peers"])
    asked = NatsOptions(
        port=port,
        host=host,
        role=given["role"],
        peers=peers,
        advertise=given["advertise"],
        nats_url=given["nats_url"],
        nats_port=given["nats_port"],
        nats_route_port=given["nats_route_port"],
        data_dir=given["data_dir"],
        is_insecure=given["insecure"],
    )
    config, has_nats = settle(asked)
    grid = _grid(grid_from_env(exec_group=given["group"]), given["role"])
    tls = server_tls(given["tls_cert"], given["tls_key"], given["tls_ca"])
    configure_logging("pyoco-grid:door")
    check_access(config, grid, tls, host, given, what="the door")
    warn_of_typos()
    with contextlib.ExitStack() as claimed:
        listening = claimed.enter_context(open_port(host, port, "PORT") if fd is None else socket.socket(fileno=fd))
        beside = None
        if not has_nats:
            beside = nats_beside(asked, config, grid)
            claimed.callback(beside.data_dir.release)
        launch = _Launch(
            listening=listening,
            options=door_options(listening, host, given, peers, beside.members if beside is not None else None),
            tls=tls,
            # The metrics endpoint never requires a key, so it stays on loopback unless --insecure is given.
            metrics=(host if given["insecure"] else "127.0.0.1", metrics_port),
            is_child=fd is not None,
        )
        return uvloop.run(_serve(launch, config, grid, beside))


@dataclass(frozen=True)
class _Launch:
    """How to open the door."""

    listening: socket.socket
    options: DoorOptions
    tls: ServerTls | None
    metrics: tuple[str, int | None]
    #: Started by `up`, which announces it; stdout contains JSON lines only.
    is_child: bool


@contextlib.contextmanager
def _announced(launch: _Launch, config: NatsBackendConfig) -> Iterator[None]:
    """Let commands on this machine discover this door and its NATS for the duration of the block (FIND-1)."""
    from pyoco_server.discovery.announcement import announced  # noqa: PLC0415 - not for --help
    from pyoco_server.embedded import reachable_host  # noqa: PLC0415

    if launch.is_child:
        yield
        return
    host, port = launch.listening.getsockname()[:2]
    frames = f"{reachable_host(host)}:{port}"
    data_dir = Path(config.data_dir)
    with announced(command="leader", data_dir=data_dir, config=config, nats=[config.nats_url], frames=frames):
        click.echo(f"READY leader {launch.options.bound}")
        yield


def _grid(grid: GridConfig, role: str) -> GridConfig:
    return replace(grid, exec_replicas=3) if role == "auto" and not grid.exec_replicas else grid


async def _serve(launch: _Launch, config: NatsBackendConfig, grid: GridConfig, beside: Beside | None) -> int:
    from pyoco_server.doors.cli.signals import StopSignal  # noqa: PLC0415 - not for --help

    # Exiting immediately is safe: running programs continue and are attached to another door. The kernel sends SIGTERM
    # to the NATS server beside it, which shuts down cleanly.
    stop = StopSignal(at_once=lambda: os._exit(130 if stop.name == "SIGINT" else 1))
    if beside is None:
        return await _open(launch, config, grid, stop)
    async with beside.running() as running:
        opening = asyncio.create_task(_open_beside(launch, grid, stop, running))
        try:
            await asyncio.wait({opening, running.failing}, return_when=asyncio.FIRST_COMPLETED)
            if not opening.done():
                running.failing.result()
            return await opening
        finally:
            opening.cancel()
            await asyncio.gather(opening, return_exceptions=True)


async def _open_beside(launch: _Launch, grid: GridConfig, stop: StopSignal, running: RunningNats) -> int:
    """Like `_open`, but on the NATS server started here, once it is usable."""
    usable, stopping = asyncio.create_task(running.until_usable()), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({usable, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if stop.heard:
            return stop.exit_code
        await usable
    finally:
        usable.cancel()
        stopping.cancel()
    beside = running.beside
    own = replace(beside.config, nats_url=beside.nats.url, data_dir=str(beside.data_dir.path))
    now = await running.settings(grid)

    async def raise_replicas() -> None:
        from pyoco_server.wiring.backend import open_door_backend  # noqa: PLC0415 - not for --help

        async with open_door_backend(own, grid, "pyoco-door copies"):
            """Opening it raises the number of replicas to that of `grid`."""

    raising_replicas = (
        asyncio.create_task(running.raise_replicas(raise_replicas)) if now.exec_replicas < grid.exec_replicas else None
    )
    try:
        return await _open(launch, own, now, stop, running.watch_disk)
    finally:
        if raising_replicas is not None:
            raising_replicas.cancel()
            await asyncio.wait({raising_replicas}, timeout=5)


async def _open(
    launch: _Launch,
    config: NatsBackendConfig,
    grid: GridConfig,
    stop: StopSignal,
    watch_disk: Callable[[Callable[[], StoreState]], Awaitable[None]] | None = None,
) -> int:
    """Serve until `stop`. Return the exit code."""
    from pyoco_server.doors.cli.grid.effective import log_settings  # noqa: PLC0415 - not for --help
    from pyoco_server.doors.frames.door import Door  # noqa: PLC0415
    from pyoco_server.doors.frames.server import FrameServer  # noqa: PLC0415
    from pyoco_server.doors.http.probe_server import metrics_server  # noqa: PLC0415
    from pyoco_server.doors.http.program_exposition import render_figures  # noqa: PLC0415
    from pyoco_server.logs import get_logger  # noqa: PLC0415
    from pyoco_server.loops.programs.sweeper import ProgramSweeper  # noqa: PLC0415
    from pyoco_server.wiring.backend import open_door_backend  # noqa: PLC0415
    from pyoco_server.wiring.logs import open_log_sender  # noqa: PLC0415

    log_settings(config, grid)
    log, options, tls = get_logger(__name__), launch.options, launch.tls
    loop = asyncio.get_running_loop()
    async with (
        open_door_backend(config, grid, f"pyoco-door {options.door_id}") as backend,
        open_log_sender(backend) as lines,
    ):
        door = Door(backend, options, sweeper=ProgramSweeper(backend), lines=lines)
        await door.start()
        server = FrameServer(launch.listening, grid, door.serve, tls, door.meter.error)
        aside: set[asyncio.Future[None]] = set()
        loop.add_signal_handler(signal.SIGUSR1, lambda: aside.add(asyncio.ensure_future(door.promote())))
        if tls is not None:
            loop.add_signal_handler(signal.SIGHUP, tls.reload)
        if watch_disk is not None:
            aside.add(asyncio.ensure_future(watch_disk(backend.store_state)))
        server.open()
        totals = None if lines is None else lines.totals
        async with metrics_server(*launch.metrics, lambda: render_figures(door.figures(), totals)):
            with _announced(launch, config):
                log.info("door started", door_id=options.door_id, addr=options.address, group=grid.exec_group)
                await stop.wait()
        log.info("door stopping", signal=stop.name)
        server.close()
        await door.drain()
        await door.stop()
        await server.stop()
        for task in aside:
            task.cancel()
    return stop.exit_code
