"""`pyoco-grid client`: jobs through a door (section 17.1)."""

from __future__ import annotations

from typing import Any

import click

from pyoco_server.doors.cli.grid.ask_options import job_options
from pyoco_server.doors.cli.shell import Command

__all__ = ["client"]


@click.command(
    cls=Command,
    example="pyoco-grid client 127.0.0.1 5000 clientA 8\n"
    "pyoco-grid client 127.0.0.1 5000 clientA --exec calcA --count 1 --arg=--n --arg 3 --file in.txt --out results\n"
    "PYOCO_API_KEY=pyoco_… pyoco-grid client door1.example 5000 clientA --tls-ca ca.crt --door door2.example:5000",
)
@click.argument("host")
@click.argument("port", type=click.IntRange(1, 65535))
@click.argument("client_id", metavar="CLIENT_ID")
@click.argument("desired", type=click.IntRange(1, 10_000), required=False)
@click.option("--door", "doors", metavar="H:P", multiple=True, help="Another door of the same group. May be repeated.")
@job_options
def client(*, host: str, port: int, client_id: str, desired: int | None, doors: tuple[str, ...], **given: Any) -> int:
    """Submit jobs through a door and print their results.

    One line of JSON for each result, on stdout, as they come. DESIRED is how many of this client's jobs may run at once
    [env: CLIENT_DESIRED_PAR; default: 4]. The API key comes from PYOCO_API_KEY. The exit code is 0 when every job
    COMPLETED, 2 when one did not, 1 when no door takes this client or one of its jobs.
    """
    import os  # noqa: PLC0415 - not for --help

    import uvloop  # noqa: PLC0415

    from pyoco_server.config import grid_from_env  # noqa: PLC0415
    from pyoco_server.doors.cli.grid.asking import Plan, carry_out, link_settings, plan_of, quiet_logs  # noqa: PLC0415
    from pyoco_server.doors.cli.typos import warn_of_typos  # noqa: PLC0415
    from pyoco_server.grid_client import GridClient, LinkSettings  # noqa: PLC0415

    quiet_logs()
    warn_of_typos()
    config = grid_from_env(client_desired_par=desired)
    plan, settings = plan_of(given, client_id, config), link_settings(given, config)

    async def ask(plan: Plan, settings: LinkSettings) -> int:
        grid = GridClient(
            host,
            port,
            client_id,
            desired=config.client_desired_par,
            doors=doors,
            token=os.environ.get("PYOCO_API_KEY") or None,
            settings=settings,
        )
        return await carry_out(grid, plan)

    return uvloop.run(ask(plan, settings))
