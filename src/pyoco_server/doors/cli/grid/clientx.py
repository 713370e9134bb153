"""`pyoco-grid clientx`: submits jobs to several groups (section 17.2)."""

from __future__ import annotations

import os
from typing import Any

import click

from pyoco_server.doors.cli.grid.ask_options import job_options
from pyoco_server.doors.cli.shell import Command
from pyoco_server.errors import UsageError

__all__ = ["clientx"]


@click.command(
    cls=Command,
    example="pyoco-grid clientx clientA\n"
    "pyoco-grid clientx clientA 127.0.0.1:5000 127.0.0.1:5001 127.0.0.1:5002 12\n"
    "pyoco-grid clientx clientA '127.0.0.1:5000|127.0.0.1:5001' 127.0.0.1:6000 --policy least --count 100",
)
@click.argument("client_id", metavar="CLIENT_ID")
@click.argument("groups", metavar="[HOST:PORT]... [DESIRED_TOTAL]", nargs=-1)
@click.option(
    "--policy",
    type=click.Choice(["rr", "least"]),
    default="rr",
    show_default=True,
    help="rr: the next group in turn. least: the one with the fewest unfinished jobs of this client.",
)
@click.option("--no-cancel-stale", is_flag=True, help="Do not cancel moved jobs in a group that is reachable again.")
@job_options
def clientx(*, client_id: str, groups: tuple[str, ...], policy: Any, no_cancel_stale: bool, **given: Any) -> int:
    """Submit jobs to several groups, with failover.

    Each HOST:PORT is one group; `H:P|H:P` names several doors of the same group. Without any, the only group is that of
    the server on this machine. The total of concurrent jobs is split over the groups [env: CLIENT_DESIRED_PAR; default:
    4]. If a group is unreachable for longer than CLIENTX_GRACE_SEC, its jobs move to the others under the same JobIds.
    Results, keys and exit codes are those of `client`.
    """

    import uvloop

    from pyoco_server.config import grid_from_env
    from pyoco_server.discovery import GROUPS
    from pyoco_server.doors.cli.grid.asking import RequestPlan, carry_out, link_settings, plan_of, quiet_logs
    from pyoco_server.doors.cli.grid.outward import local_door
    from pyoco_server.doors.cli.typos import warn_of_typos
    from pyoco_server.grid_client import GridMultiClient, LinkSettings, Spread

    quiet_logs()
    warn_of_typos()
    places, total = _split(groups)
    if not places:
        host, port = local_door(GROUPS)
        places = (f"[{host}]:{port}" if ":" in host else f"{host}:{port}",)
    config = grid_from_env(client_desired_par=total)
    plan, settings = plan_of(given, client_id, config), link_settings(given, config)
    spread = Spread(policy=policy, grace_seconds=config.clientx_grace_sec, cancel_stale=not no_cancel_stale)

    async def ask(plan: RequestPlan, settings: LinkSettings) -> int:
        grid = GridMultiClient(
            client_id,
            places,
            desired_total=config.client_desired_par,
            spread=spread,
            token=os.environ.get("PYOCO_API_KEY") or None,
            settings=settings,
        )
        return await carry_out(grid, plan)

    return uvloop.run(ask(plan, settings))


def _split(groups: tuple[str, ...]) -> tuple[tuple[str, ...], int | None]:
    """Split off the total: the last argument, if it has no `:`."""
    if not groups or ":" in groups[-1]:
        return groups, None
    *places, last = groups
    if not (last.isascii() and last.isdigit() and 1 <= int(last) <= 10_000):
        raise UsageError(f"{last[:40]!r} is neither an address nor a number of jobs from 1 to 10000")
    return tuple(places), int(last)
