"""`pyoco-grid client`: submits jobs through a door (section 17.1)."""

from __future__ import annotations

import os
from typing import Any

import click

from pyoco_server.doors.cli.grid.ask_options import job_options
from pyoco_server.doors.cli.shell import Command
from pyoco_server.errors import UsageError

__all__ = ["client"]


@click.command(
    cls=Command,
    example="pyoco-grid client clientA 8\n"
    "pyoco-grid client 127.0.0.1 5000 clientA 8\n"
    "pyoco-grid client 127.0.0.1 5000 clientA --exec calcA --count 1 --arg=--n --arg 3 --file in.txt --out results\n"
    "PYOCO_API_KEY=pyoco_… pyoco-grid client door1.example 5000 clientA --tls-ca ca.crt --door door2.example:5000",
)
@click.argument("places", nargs=-1, required=True, metavar="[HOST PORT] CLIENT_ID [DESIRED]")
@click.option("--door", "doors", metavar="H:P", multiple=True, help="Another door of the same group. May be repeated.")
@job_options
def client(*, places: tuple[str, ...], doors: tuple[str, ...], **given: Any) -> int:
    """Submit jobs through a door and print their results.

    Without HOST and PORT it uses the door of the server on this machine. Each result is printed on stdout as a line of
    JSON when it arrives. DESIRED is how many of this client's jobs may run at the same time [env: CLIENT_DESIRED_PAR;
    default: 4]. The API key is read from PYOCO_API_KEY. The exit code is 0 if every job COMPLETED, 2 if one did not,
    and 1 if no door accepts this client or one of its jobs.
    """

    import uvloop

    from pyoco_server.config import grid_from_env
    from pyoco_server.doors.cli.grid.asking import RequestPlan, carry_out, link_settings, plan_of, quiet_logs
    from pyoco_server.doors.cli.grid.outward import split_door
    from pyoco_server.doors.cli.typos import warn_of_typos
    from pyoco_server.grid_client import GridClient, LinkSettings

    has_door = len(places) > 2
    client_id, desired = _asking(places[2:] if has_door else places)
    quiet_logs()
    warn_of_typos()
    config = grid_from_env(client_desired_par=desired)
    plan, settings = plan_of(given, client_id, config), link_settings(given, config)
    (host, port), _ = split_door(places, has_door=has_door)

    async def ask(plan: RequestPlan, settings: LinkSettings) -> int:
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


def _asking(who: tuple[str, ...]) -> tuple[str, int | None]:
    """Parse CLIENT_ID and DESIRED. Raises UsageError."""
    from pyoco_server.core.programs.names import is_client_id

    if not 1 <= len(who) <= 2 or not is_client_id(who[0]):
        raise UsageError("CLIENT_ID must be 1 to 64 letters, digits, '_' or '-'; HOST and PORT stand before it")
    if len(who) == 1:
        return who[0], None
    if not (who[1].isascii() and who[1].isdigit() and 1 <= int(who[1]) <= 10_000):
        raise UsageError(f"{who[1][:40]!r} is not a number of jobs from 1 to 10000")
    return who[0], int(who[1])
