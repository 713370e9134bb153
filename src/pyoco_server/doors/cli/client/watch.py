"""The `watch` and `wait` commands: follow a run until it ends."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from pyoco_server.client.connection import Asked
from pyoco_server.doors.cli.client import arguments
from pyoco_server.doors.cli.client.calling import calling
from pyoco_server.doors.cli.client.output import is_terminal, print_line, safe
from pyoco_server.doors.cli.client.run_ids import full_run_id
from pyoco_server.doors.cli.client.times import PAST
from pyoco_server.doors.cli.client.waiting import conclude, draw, fail_option, timeout_option, waited, watched
from pyoco_server.doors.cli.shell import Command

if TYPE_CHECKING:
    from pyoco_server.http_client import PyocoHttpClient

__all__ = ["wait", "watch"]


@click.command(
    "watch", cls=Command, example="pyoco-client watch RUN_ID\npyoco-client watch --run-id ID --output status"
)
@arguments.run_id
@click.option(
    "--include",
    multiple=True,
    metavar="WHAT",
    help="`records`: with task records.",
    **arguments.words(*arguments.INCLUDES),
)
@click.option(
    "--since",
    type=PAST,
    metavar="WHEN",
    help="Skip snapshots updated at or before this: 1h (ago), 2026-12-01T09:00, or unix seconds.",
)
@timeout_option
@click.option(
    "--output",
    type=click.Choice(["json", "status", "tree"]),
    help="json: a line for each event; status: a line for each change of status; tree: the tasks."
    "  [default: tree on a terminal, else json]",
)
@click.pass_obj
def watch(
    asked: Asked,
    run_id: str,
    include: Sequence[str],
    since: float | None,
    timeout_sec: float | None,
    output: str | None,
) -> None:
    """Follow a run until it ends.

    Reconnects if the connection is lost. Ctrl-C ends the watching, not the run. The exit code is 0 whatever the outcome
    of the run; use `wait --fail` for an exit code that depends on it.
    """
    show = output or ("tree" if is_terminal(sys.stdout) else "json")
    with calling(asked) as client:
        run_id = full_run_id(client, run_id)
        if show == "tree":
            from pyoco_server.doors.cli.client.live import run_view  # noqa: PLC0415 - rich

            with run_view(sys.stdout, transient=False) as view:
                draw(client, run_id, timeout_sec, view, since)
        else:
            _print_events(client, run_id, show, include=list(include), since=since, timeout_sec=timeout_sec)


def _print_events(client: PyocoHttpClient, run_id: str, show: str, **asked: Any) -> None:
    """Print one line per event, or per change of status (FLOW-448)."""
    last = None
    for event in watched(client, run_id, **asked):
        status = event["snapshot"]["status"]
        if show == "json":
            print_line(event)
        elif status != last:
            click.echo(safe(status))
        last = status


@click.command("wait", cls=Command, example="pyoco-client wait RUN_ID --timeout 10m --fail")
@arguments.run_id
@timeout_option
@fail_option
@arguments.output_option("text")
@click.pass_obj
def wait(asked: Asked, run_id: str, timeout_sec: float | None, fail: bool, output: str) -> int:
    """Wait for a run to finish and print its outcome.

    The exit code is 1 if the time runs out first. Ctrl-C ends the waiting, not the run.
    """
    with calling(asked) as client:
        run_id = full_run_id(client, run_id)
        return conclude(client, waited(asked, client, run_id, timeout_sec, output).snapshot, output, fail=fail)
