"""The `get`, `tasks`, `list` and `list-vnext` commands."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import click

from pyoco_server.client.connection import Asked
from pyoco_server.doors.cli.client import arguments
from pyoco_server.doors.cli.client.calling import calling
from pyoco_server.doors.cli.client.output import note, print_json, print_page, print_table
from pyoco_server.doors.cli.client.run_ids import full_run_id
from pyoco_server.doors.cli.client.run_text import print_run, task_rows
from pyoco_server.doors.cli.client.times import PAST, DurationType
from pyoco_server.doors.cli.shell import Command, RenamedOption
from pyoco_server.errors import UsageError

__all__ = ["COLUMNS", "get", "list_runs", "list_runs_vnext", "tasks"]

F = TypeVar("F", bound=Callable[..., Any])

#: FLOW-447
COLUMNS = ("run_id", "status", "flow_name", "tag", "updated_at")
_TASK_COLUMNS = ("task", "state", "took", "error")


@click.command("get", cls=Command, example="pyoco-client get RUN_ID\npyoco-client get --run-id ID --include records")
@arguments.run_id
@click.option(
    "--include",
    multiple=True,
    metavar="WHAT",
    help="`records`, `full` or `all`: with task records.",
    **arguments.words(*arguments.INCLUDES),
)
@arguments.output_option("text")
@click.pass_obj
def get(asked: Asked, run_id: str, include: Sequence[str], output: str) -> None:
    """Show a run."""
    is_json = output == "json"
    with calling(asked) as client:
        found = client.get_run(full_run_id(client, run_id), list(include) if is_json else ["records"])
    print_json(found) if is_json else print_run(found)


@click.command("tasks", cls=Command, example="pyoco-client tasks RUN_ID")
@arguments.run_id
@arguments.output_option("table")
@click.pass_obj
def tasks(asked: Asked, run_id: str, output: str) -> None:
    """Show the tasks of a run."""
    with calling(asked) as client:
        found = client.get_tasks(full_run_id(client, run_id))
    if output == "json":
        print_json(found)
    else:
        print_table([_task_cells(found, *row) for row in task_rows(found)], _TASK_COLUMNS)


def _task_cells(found: Mapping[str, Any], name: str, state: str, took: str) -> dict[str, Any]:
    record = found["task_records"].get(name) or {}
    return {"task": name, "state": state, "took": took.strip(), "error": record.get("error")}


def _list_options(function: F) -> F:
    for option in (
        click.option("--cursor", metavar="TOKEN", help="`next_cursor` of the previous page, with the same filters."),
        click.option(
            "--updated-after",
            type=PAST,
            metavar="WHEN",
            help="Only runs updated later than this: 1h (ago), 2026-12-01T09:00, or unix seconds.",
        ),
        click.option(
            "--search",
            metavar="TEXT",
            help="Words of flow names, tags, labels, params or errors, or prefixes of run ids. All must match.",
        ),
        click.option("--run-id", metavar="PREFIX", help="Prefix of the run id, at least 4 characters."),
        click.option("--workflow-yaml-sha256", metavar="HEX", help="Runs of this flow.yaml."),
        click.option(
            "--include",
            multiple=True,
            metavar="WHAT",
            help="`full`: complete snapshots.",
            **arguments.words(*arguments.INCLUDES),
        ),
        click.option("--limit", type=int, help="1 to 200. [default: 50]"),
        click.option("--group", help="Jobs of programs in this group."),
        click.option("--job-id", metavar="UUID", help="Runs of this job of a program: one in each group."),
        click.option("--client-id", metavar="ID", help="Jobs of programs of this client."),
        click.option("--exec", "exec_name", metavar="NAME", help="Jobs of this program."),
        click.option("--tag", help="The routing tag, or one of the labels."),
        click.option("--kind", help="`flow`, `exec` or `pack`.", **arguments.words(*arguments.KINDS)),
        click.option("--flow", help="Exact flow name."),
        click.option("--status", help="Exact status.", **arguments.words(*arguments.RUN_STATUSES)),
    ):
        function = option(function)
    return function


@click.command(
    "list",
    cls=Command,
    example="""\
pyoco-client list --status FAILED --updated-after 1h
pyoco-client list --search "kyoto timeout"
pyoco-client list --run-id 3f9a
pyoco-client list --kind pack
pyoco-client list --kind exec --exec calcA --client-id studio
pyoco-client list --follow --tag default""",
)
@_list_options
@arguments.output_option("table")
@click.option("--follow", is_flag=True, help="Keep running and show changes, until Ctrl-C.")
@click.option(
    "--interval",
    "interval_sec",
    cls=RenamedOption,
    old_name="--interval-sec",
    type=DurationType(seconds_min=0.2, seconds_max=60),
    metavar="DURATION",
    default=2.0,
    show_default="2s",
    help="With --follow: time between two polls.",
)
@click.pass_obj
def list_runs(
    asked: Asked, /, output: str, include: Sequence[str], follow: bool, interval_sec: float, **filters: Any
) -> None:
    """Show the newest runs.

    With --follow a terminal shows a table that stays up to date. Elsewhere, and with --output json, each run is printed
    as a JSON line, and again whenever it changes.
    """
    with calling(asked) as client:
        if follow:
            if include:
                raise UsageError("--follow shows summaries: leave --include out, or watch one run")
            from pyoco_server.doors.cli.client.follow import follow_runs  # noqa: PLC0415 - only for --follow

            _check_first_page(filters)
            follow_runs(client, filters, interval_sec, output)
            return
        page = client.list_runs_vnext(include=list(include), **filters)
    if output == "json":
        print_json(page["items"])
    else:
        print_table(page["items"], COLUMNS)
    if page["next_cursor"] is not None and (output != "json" or filters["cursor"] is not None):
        note(f"there are more: --cursor {page['next_cursor']}")


def _check_first_page(filters: dict[str, Any]) -> None:
    """--follow shows the newest runs. Raises UsageError for the options that select others."""
    for name in ("updated_after", "cursor"):
        if filters.pop(name) is not None:
            raise UsageError(f"--follow shows the newest runs: leave --{name.replace('_', '-')} out")


@click.command(
    "list-vnext",
    cls=Command,
    example="""\
pyoco-client list-vnext --limit 100
pyoco-client list-vnext --updated-after 1790000000 --status FAILED""",
)
@_list_options
@arguments.output_option("table")
@click.pass_obj
def list_runs_vnext(asked: Asked, /, output: str, include: Sequence[str], **filters: Any) -> None:
    """Show a page of runs, and how to get the next one."""
    with calling(asked) as client:
        page = client.list_runs_vnext(include=list(include), **filters)
    print_page(page, output, COLUMNS)
