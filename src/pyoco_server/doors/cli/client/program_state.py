"""`program list`, `program state` and `program cap`: what runs where, and how much of it at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import click

from pyoco_server.client.connection import Asked
from pyoco_server.doors.cli.client import arguments
from pyoco_server.doors.cli.client.calling import calling
from pyoco_server.doors.cli.client.output import print_answer, print_json, print_table, safe
from pyoco_server.doors.cli.shell import Command

__all__ = ["cap", "list_programs", "state"]

_group = click.option("--group", metavar="G", help="Only this group. [default: all known groups]")


@click.command("list", cls=Command, example="pyoco-client program list\npyoco-client program list --group g1")
@_group
@arguments.output_option("table")
@click.pass_obj
def list_programs(asked: Asked, group: str | None, output: str) -> None:
    """Show the programs that are queued, running or offered."""
    with calling(asked) as client:
        rows = list(_programs(client.exec_state(group)))
    print_json(rows) if output == "json" else print_table(rows, ("program", "group", "queued", "running", "p95_sec"))


def _programs(state: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield each program of each group. Workers are those of all groups, so each pattern is listed once."""
    patterns: set[str] = set()
    known: set[str] = set()
    for name, group in sorted(state["groups"].items()):
        patterns |= {pattern for worker in group["workers"] for pattern in worker.get("patterns", ())}
        for program in sorted({*group["queues"], *group["p95"]}):
            queue = group["queues"].get(program, {})
            known.add(program)
            yield {
                "program": program,
                "group": name,
                "queued": queue.get("queued", 0),
                "running": queue.get("inflight", 0),
                "p95_sec": _rounded(group["p95"].get(program)),
            }
    offered = {pattern.removeprefix("job.assign.") for pattern in patterns}
    for program in sorted(offered - known):
        yield {"program": program, "group": None, "queued": 0, "running": 0, "p95_sec": None}


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)


@click.command("state", cls=Command, example="pyoco-client program state\npyoco-client program state --group g1 --json")
@_group
@arguments.output_option("text")
@click.pass_obj
def state(asked: Asked, group: str | None, output: str) -> None:
    """Show queues, running jobs, caps, doors and workers of programs."""
    from pyoco_server.doors.cli.grid.state_view import lines_of  # noqa: PLC0415 - only for this command

    with calling(asked) as client:
        found = client.exec_state(group)
    if output == "json":
        print_json(found)
        return
    for line in lines_of(found):
        click.echo(safe(line))


@click.command("cap", cls=Command, example="pyoco-client program cap clientA\npyoco-client program cap clientA 8")
@click.argument("client_id")
@click.argument("jobs", required=False, type=click.IntRange(1, 10_000))
@click.option("--group", metavar="G", help="The group. [default: the server's own group]")
@arguments.output_option("text")
@click.pass_obj
def cap(asked: Asked, client_id: str, jobs: int | None, group: str | None, output: str) -> None:
    """Show or set how many programs of a client run at once."""
    with calling(asked) as client:
        if jobs is None:
            print_answer(client.get_client_cap(client_id, group), output)
        else:
            print_answer(client.set_client_cap(client_id, jobs, group), output)
