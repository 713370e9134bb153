"""The `cancel` command: request the cancellation of one run or of many."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from pyoco_server.client.connection import Asked
from pyoco_server.core.states import FLOW_MOVES
from pyoco_server.doors.cli.client import arguments
from pyoco_server.doors.cli.client.calling import calling
from pyoco_server.doors.cli.client.many import agree, chosen, many_options, preview, repeat_while_more
from pyoco_server.doors.cli.client.output import print_answer, print_json
from pyoco_server.doors.cli.client.run_ids import full_run_id
from pyoco_server.doors.cli.client.run_text import print_run
from pyoco_server.doors.cli.client.runs import COLUMNS
from pyoco_server.doors.cli.client.times import PAST
from pyoco_server.doors.cli.client.waiting import end_of, timeout_option
from pyoco_server.doors.cli.shell import Command
from pyoco_server.errors import UsageError

if TYPE_CHECKING:
    from pyoco_server.http_client import PyocoHttpClient, RunSummary

__all__ = ["cancel"]

#: FLOW-416
_WAIT_SECONDS = 60.0
_LIVE = tuple(sorted(FLOW_MOVES["ask_cancel"][0]))
_COUNTED_MAX, _PAGE_RUNS = 1000, 200


@click.command(
    "cancel",
    cls=Command,
    example="""\
pyoco-client cancel RUN_ID
pyoco-client cancel RUN_ID --wait --timeout 30s
pyoco-client cancel RUN_ID --now
pyoco-client cancel --all-matching --tag nightly --reason "wrong input" --yes""",
)
@arguments.maybe_run_id
@click.option("--wait", is_flag=True, help="Wait for the run to finish.")
@timeout_option
@click.option(
    "--now", "at_once", is_flag=True, help="Kill the work at once, without the time it has to stop by itself."
)
@click.option("--reason", metavar="TEXT", help="Reason, stored with the run.")
@click.option("--status", help="PENDING or RUNNING.", **arguments.words(*_LIVE))
@click.option("--flow", help="Exact flow name.")
@click.option("--tag", help="The routing tag, or one of the labels.")
@click.option("--workflow-yaml-sha256", metavar="HEX", help="Runs of this flow.yaml.")
@click.option(
    "--submitted-before",
    type=PAST,
    metavar="WHEN",
    help="Runs submitted before this: 1h (ago), 2026-12-01T09:00, or unix seconds.",
)
@many_options("runs")
@arguments.output_option("text")
@click.pass_obj
def cancel(asked: Asked, /, run_id: str | None, output: str, **given: Any) -> None:
    """Cancel a run, or many.

    Running work gets PYOCO_CANCEL_GRACE_PERIOD_SEC (30 s) to stop, then it is killed; --now kills it at once, also when
    the run is being cancelled already.

    To cancel many runs, use --all-matching with filters. The matching runs are shown first, and you have to confirm
    unless you pass --yes.
    """
    wait, timeout_sec, reason = given.pop("wait"), given.pop("timeout_sec"), given.pop("reason")
    at_once = given.pop("at_once")
    yes, limit = given.pop("yes"), given.pop("limit")
    ways = {"all_matching": given.pop("all_matching"), "everything": given.pop("everything")}
    filters = chosen(("--run-id", run_id), given, **ways)
    if filters is None:
        assert run_id is not None
        ask = {"reason": reason} | ({"grace_sec": 0} if at_once else {})
        _cancel_one(asked, run_id, ask, timeout_sec or _WAIT_SECONDS if wait else None, output)
        return
    for option, is_given in (("--wait", wait), ("--now", at_once)):
        if is_given:
            raise UsageError(f"{option} is for one run")
    with calling(asked) as client:
        agree("Cancel them?", lambda: _preview(client, filters), yes=yes)
        wanted = {
            name: value for name, value in {**filters, "reason": reason, "limit": limit}.items() if value is not None
        }
        print_answer(repeat_while_more(lambda each: client.cancel_runs(**each), wanted, "asked"), output)


def _cancel_one(asked: Asked, run_id: str, ask: dict[str, Any], wait_seconds: float | None, output: str) -> None:
    with calling(asked) as client:
        run_id = full_run_id(client, run_id)
        snapshot: Mapping[str, Any] = client.cancel_run(run_id, **ask)
        if wait_seconds is not None:
            snapshot = end_of(client, run_id, wait_seconds)
    print_json(snapshot) if output == "json" else print_run(snapshot)


def _preview(client: PyocoHttpClient, filters: Mapping[str, Any]) -> None:
    before = filters.get("submitted_before")
    asked = {name: filters[name] for name in ("flow", "tag", "workflow_yaml_sha256") if name in filters}
    runs: list[RunSummary] = []
    is_all = True
    for status in [filters["status"]] if "status" in filters else _LIVE:
        found, are_all = _newest(client, {**asked, "status": status})
        runs += [run for run in found if before is None or (run.get("submitted_at") or 0.0) < before]
        is_all = is_all and are_all
    preview("Runs", sorted(runs, key=lambda run: run["updated_at"], reverse=True), COLUMNS, is_all=is_all)


def _newest(client: PyocoHttpClient, filters: Mapping[str, Any]) -> tuple[list[RunSummary], bool]:
    """Return the newest thousand matching runs, and whether that is all of them."""
    found: list[RunSummary] = []
    cursor = None
    while len(found) < _COUNTED_MAX:
        page = client.list_runs_vnext(**filters, limit=_PAGE_RUNS, cursor=cursor)
        found += page["items"]
        cursor = page["next_cursor"]
        if cursor is None:
            return found, True
    return found, False
