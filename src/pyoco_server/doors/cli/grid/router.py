"""`pyoco-grid router`: one door in front of several groups (section 17.4)."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from pyoco_server.doors.cli.shell import Command

if TYPE_CHECKING:
    import socket
    import ssl

    from pyoco_server.config import GridConfig, NatsBackendConfig
    from pyoco_server.doors.frames.router.plan import RouterPlan
    from pyoco_server.doors.frames.settings import DoorOptions
    from pyoco_server.doors.frames.tls import ServerTls

__all__ = ["router"]

_PORT = click.IntRange(0, 65535)


@click.command(
    cls=Command,
    example="pyoco-grid router 6000 --backend g1=127.0.0.1:5000 --backend 'g2=127.0.0.1:5001|127.0.0.1:5002'\n"
    "pyoco-grid router 6000 --backend g1=127.0.0.1:5000 --backend g2=127.0.0.1:5001 --rule 'exec=render*:g2'",
)
@click.argument("port", type=_PORT)
@click.option("--backend", "backends", multiple=True, metavar="NAME=H:P|H:P", help="A group and its doors. Repeatable.")
@click.option(
    "--rule",
    "rules",
    multiple=True,
    metavar="exec=GLOB:GROUP",
    help="Tried first, in order; also client=GLOB:GROUP and exec=GLOB:deny. Repeatable.",
)
@click.option(
    "--policy",
    type=click.Choice(["rr", "least"]),
    default="rr",
    show_default=True,
    help="How jobs are placed that match no rule.",
)
@click.option("--peers", metavar="H:P,…", default="", help="Other routers, to send clients to.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--advertise", metavar="H:P", help="Address advertised to clients. [default: host and port]")
@click.option("--nats", "nats_url", metavar="URL[,URL]", help="NATS that keeps the placements. [env: PYOCO_NATS_URL]")
@click.option("--metrics-port", type=_PORT, help="Serve `/metrics` on this port, too; 0: a free one.")
@click.option("--tls-cert", metavar="FILE", help="Certificate of this router; with --tls-key, TLS is on.")
@click.option("--tls-key", metavar="FILE", help="Its key. SIGHUP reloads both.")
@click.option("--tls-ca", metavar="FILE", help="Require client certificates signed by this authority.")
@click.option("--backend-tls", is_flag=True, help="Use TLS to the doors; a known authority must have signed theirs.")
@click.option("--backend-tls-ca", metavar="FILE", help="Use TLS with this authority.")
@click.option("--backend-tls-cert", metavar="FILE", help="Certificate of this router, for doors that require one.")
@click.option("--backend-tls-key", metavar="FILE", help="Its key.")
@click.option("--insecure", is_flag=True, help="Allow non-loopback addresses without authentication.")
@click.option(
    "--open-frames",
    is_flag=True,
    help="Require no key on the frame port (EXEC_AUTH=none) although HTTP does (PYOCO_HTTP_AUTH_MODE=api_key).",
)
def router(*, port: int, host: str, metrics_port: int | None, **given: Any) -> int:
    """Open a router: one door in front of several groups.

    Clients use it like a door. The placement of each job is stored in NATS, so any number of routers agree, and any of
    them may be killed. For each client it holds one connection to each group, all from its own address: set
    EXEC_MAX_CONNS_PER_IP of the doors to at least the number of clients.
    """
    import uvloop  # noqa: PLC0415 - not for --help

    from pyoco_server.config import grid_from_env  # noqa: PLC0415
    from pyoco_server.doors.cli.claims import open_port  # noqa: PLC0415
    from pyoco_server.doors.cli.grid.effective import log_settings  # noqa: PLC0415
    from pyoco_server.doors.cli.grid.outward import tls_to_doors  # noqa: PLC0415
    from pyoco_server.doors.cli.grid.serving import check_access, door_options, read_peers, server_tls  # noqa: PLC0415
    from pyoco_server.doors.cli.local_server import settle_nats  # noqa: PLC0415
    from pyoco_server.doors.cli.typos import warn_of_typos  # noqa: PLC0415
    from pyoco_server.doors.frames.router.plan import RouterPlan, read_backend, read_rule  # noqa: PLC0415
    from pyoco_server.logs import configure_logging  # noqa: PLC0415

    plan = RouterPlan(
        tuple(map(read_backend, given["backends"])), tuple(map(read_rule, given["rules"])), given["policy"]
    )
    config, grid = settle_nats(nats_url=given["nats_url"], option="--nats").config, grid_from_env()
    tls = server_tls(given["tls_cert"], given["tls_key"], given["tls_ca"])
    peers = read_peers(given["peers"])
    outward = tls_to_doors(given, "--backend-tls")
    configure_logging("pyoco-grid:router")
    check_access(config, grid, tls, host, given, what="the router")
    warn_of_typos()
    log_settings(config, grid)
    with open_port(host, port, "PORT") as listening:
        options = door_options(listening, host, given, peers)
        # The metrics endpoint never requires a key, so it stays on loopback unless --insecure is given.
        metrics = (host if given["insecure"] else "127.0.0.1", metrics_port)
        opening = _Opening(plan, options, listening, tls, outward, metrics)
        return uvloop.run(_serve(config, grid, opening))


@dataclass(frozen=True)
class _Opening:
    """What to open, and how."""

    plan: RouterPlan
    options: DoorOptions
    listening: socket.socket
    tls: ServerTls | None
    #: TLS for connections to doors. None: no TLS.
    outward: ssl.SSLContext | None
    metrics: tuple[str, int | None]


async def _serve(config: NatsBackendConfig, grid: GridConfig, opening: _Opening) -> int:
    import asyncio  # noqa: PLC0415 - not for --help
    import signal  # noqa: PLC0415

    from pyoco_server.client.frames.link import LinkSettings  # noqa: PLC0415
    from pyoco_server.doors.cli.signals import StopSignal  # noqa: PLC0415
    from pyoco_server.doors.frames.router.router import Router  # noqa: PLC0415
    from pyoco_server.doors.frames.server import FrameServer  # noqa: PLC0415
    from pyoco_server.doors.http.probe_server import metrics_server  # noqa: PLC0415
    from pyoco_server.doors.http.program_exposition import render_figures  # noqa: PLC0415
    from pyoco_server.frames.wire import Timers  # noqa: PLC0415
    from pyoco_server.logs import get_logger  # noqa: PLC0415
    from pyoco_server.wiring.backend import open_door_backend  # noqa: PLC0415

    log = get_logger(__name__)
    stop = StopSignal(at_once=lambda: os._exit(130 if stop.name == "SIGINT" else 1))
    options = opening.options
    async with open_door_backend(config, grid, f"pyoco-router {options.door_id}") as backend:
        settings = LinkSettings(timers=Timers.of(grid), tls=opening.outward)
        place = Router(backend, opening.plan, options, settings)
        server = FrameServer(opening.listening, grid, place.serve, opening.tls, place.meter.error)
        if opening.tls is not None:
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, opening.tls.reload)
        await place.start()
        server.open()
        async with metrics_server(*opening.metrics, lambda: render_figures(place.figures())):
            click.echo(f"READY router {options.bound}")
            log.info("router started", addr=options.address, groups=[each.name for each in opening.plan.backends])
            await stop.wait()
        log.info("router stopping", signal=stop.name)
        server.close()
        await place.drain()
        await server.stop()
    return stop.exit_code
