"""`cancel`: ask for one run to be stopped, or for many."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from pyoco_server.doors.cli.client import arguments
from pyoco_server.doors.cli.client.calling import calling
from pyoco_server.doors.cli.client.connection import Asked
from pyoco_server.doors.cli.client.many import agree, chosen, many_options, repeat_while_more
from pyoco_server.doors.cli.client.output import note, print_json, print_table
from pyoco_server.doors.cli.client.runs import COLUMNS
from pyoco_server.doors.cli.client.waiting import end_of, timeout_option
from pyoco_server.doors.cli.shell import Command
from pyoco_server.errors import UsageError

if TYPE_CHECKING:
    from pyoco_server.http_client import PyocoHttpClient

__all__ = ["cancel"]

#: FLOW-416
_WAIT_SECONDS = 60.0
_LIVE = ("PENDING", "RUNNING")
_SHOWN = 10
_COUNTED_MAX = 1000


@click.command(
    "cancel",
    cls=Command,
    example="""\
pyoco-client cancel RUN_ID
pyoco-client cancel --run-id ID --wait --timeout-sec 30
pyoco-client cancel --all-matching --tag nightly --reason "wrong input" --yes""",
)
@click.argument("run_id_word", metavar="[RUN_ID]", required=False)
@click.option("--run-id", metavar="RUN_ID", help="The id that the submission was answered with.")
@click.option("--wait", is_flag=True, help="Return when the run has ended.")
@timeout_option
@click.option("--reason", metavar="TEXT", help="Why; it is kept with the run.")
@click.option("--status", help="PENDING or RUNNING.", **arguments.words(*_LIVE))
@click.option("--flow", help="Exact flow name.")
@click.option("--tag", help="The routing tag, or one of the labels.")
@click.option("--workflow-yaml-sha256", metavar="HEX", help="Runs of this flow.yaml.")
@click.option("--submitted-before", type=float, metavar="SECONDS", help="Runs submitted before this instant.")
@many_options("runs")
@click.pass_obj
def cancel(asked: Asked, /, run_id_word: str | None, run_id: str | None, **given: Any) -> None:
    """Ask for a run to be stopped, or for many.

    Many: --all-matching with filters. What matches is shown first, and you are asked, unless you say --yes.
    """
    if run_id is not None and run_id_word is not None:
        raise UsageError(f"--run-id {run_id} and {run_id_word}: give one of them")
    wait, timeout_sec, reason = given.pop("wait"), given.pop("timeout_sec"), given.pop("reason")
    yes, limit = given.pop("yes"), given.pop("limit")
    ways = {"all_matching": given.pop("all_matching"), "everything": given.pop("everything")}
    one = run_id_word if run_id is None else run_id
    filters = chosen(("--run-id", one), given, **ways)
    if filters is None:
        assert one is not None
        _cancel_one(asked, one, reason, timeout_sec or _WAIT_SECONDS if wait else None)
        return
    if wait:
        raise UsageError("--wait is for one run")
    with calling(asked) as client:
        agree("Cancel them?", lambda: _preview(client, filters), yes=yes)
        ask = {
            name: value for name, value in {**filters, "reason": reason, "limit": limit}.items() if value is not None
        }
        print_json(repeat_while_more(lambda each: client.cancel_runs(**each), ask, "asked"))


def _cancel_one(asked: Asked, run_id: str, reason: str | None, wait_seconds: float | None) -> None:
    with calling(asked, None if wait_seconds is None else math.inf) as client:
        snapshot: Mapping[str, Any] = client.cancel_run(run_id, reason=reason)
        print_json(snapshot if wait_seconds is None else end_of(client, run_id, wait_seconds))


def _preview(client: PyocoHttpClient, filters: Mapping[str, Any]) -> None:
    """On stderr: how many, and the newest of them."""
    before = filters.get("submitted_before")
    flow, tag, sha256 = (filters.get(name) for name in ("flow", "tag", "workflow_yaml_sha256"))
    statuses = [filters["status"]] if "status" in filters else list(_LIVE)
    runs = [
        run
        for status in statuses
        for run in islice(client.iter_runs(status, flow, tag, workflow_yaml_sha256=sha256), _COUNTED_MAX)
        if before is None or (run.get("submitted_at") or 0.0) < before
    ]
    count = f"{_COUNTED_MAX} or more" if len(runs) >= _COUNTED_MAX else str(len(runs))
    note(f"Runs that match now: {count}")
    newest = sorted(runs, key=lambda run: run["updated_at"], reverse=True)[:_SHOWN]
    if newest:
        print_table(newest, COLUMNS, err=True)
        note("…" if len(runs) > _SHOWN else "")
