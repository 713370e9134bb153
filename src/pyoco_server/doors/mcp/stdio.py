"""`pyoco-mcp`: the tools for an agent on this machine, over stdin and stdout."""

from __future__ import annotations

import contextlib
import sys

import click

from pyoco_server.doors.cli.shell import Command, run

__all__ = ["cli", "main"]


@click.command(
    cls=Command,
    example="""\
pyoco-mcp
pyoco-mcp --server http://127.0.0.1:8000
pyoco-mcp --profile staging""",
)
@click.version_option(package_name="pyoco-server")
@click.option(
    "--server", metavar="URL", help="The gateway. [env: PYOCO_SERVER_URL; default: the server on this machine]"
)
@click.option(
    "--profile",
    metavar="NAME",
    help="Server and key under this name in ~/.config/pyoco/client.toml. [env: PYOCO_PROFILE]",
)
@click.option(
    "--patience",
    type=click.FloatRange(0, 600),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="How long a tool keeps trying while the gateway is unreachable or busy.",
)
def cli(server: str | None, profile: str | None, patience: float) -> int:
    """Offer priced runs to an agent as tools (Model Context Protocol over stdin and stdout).

    The agent starts this command itself, as configured in its settings. The API key comes from PYOCO_API_KEY or the
    config file of `pyoco-client`, never from the command line. stdout carries the protocol; logs are JSON lines on
    stderr. The command ends when stdin closes, and on SIGTERM or Ctrl-C. While the gateway is unavailable the tools
    report an error; they work again once it is back.
    """
    import asyncio
    import logging

    from pyoco_server.client.connection import Asked, resolve, shown_address
    from pyoco_server.doors.cli.local_server import say
    from pyoco_server.doors.mcp.pipe import offer
    from pyoco_server.logs import configure_logging, get_logger

    connection = resolve(Asked(server=server, profile=profile))
    say(connection.found)
    with contextlib.redirect_stdout(sys.stderr):  # keep stdout for the protocol: the log stream is chosen now
        configure_logging("pyoco-server:mcp")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    log = get_logger(__name__)
    for warning in connection.warnings:
        log.warning("config file is readable by other users", reason=warning)
    if connection.api_key is None:
        log.warning("no API key: every call will be refused; set PYOCO_API_KEY")
    log.info("offering tools", server=shown_address(connection.server))
    return asyncio.run(offer(connection, patience))


def main() -> None:
    run(cli, "pyoco-mcp")
