"""The `worker` commands: list workers, show, hide or unhide one."""

from __future__ import annotations

from typing import Any

import click

from pyoco_server.client.connection import Asked
from pyoco_server.core.states import WorkerState
from pyoco_server.doors.cli.client import arguments
from pyoco_server.doors.cli.client.calling import calling
from pyoco_server.doors.cli.client.output import print_answer, print_fields, print_json, print_table
from pyoco_server.doors.cli.shell import Command

__all__ = ["hide", "list_workers", "show", "unhide"]

_COLUMNS = ("worker_id", "state", "tags", "slots", "busy", "last_run_status", "last_seen_at", "wheels", "hidden")

#: What a person wants to know of one worker; `--output json` shows the rest.
_FIELDS = (
    "worker_id", "state", "tags", "slots", "running", "last_run_status", "last_seen_at", "stop_reason", "host_restarts",
    "packs", "packs_missing", "wheel_sync", "versions", "hidden", "instance_id",
)  # fmt: skip

_worker_id = arguments.named("--worker-id", "WORKER_ID", "The name the worker was started with.")


@click.command(
    "workers",
    cls=Command,
    example="pyoco-client worker list\npyoco-client worker list --scope all --state DISCONNECTED",
)
@click.option(
    "--scope", help="`active`, or `all`: including stopped and disconnected ones.", **arguments.words("active", "all")
)
@click.option("--state", help="Exact state, within the scope.", **arguments.words(*WorkerState))
@click.option("--tag", help="Workers that serve this tag.")
@click.option("--include-hidden", is_flag=True, help="Include hidden workers.")
@click.option("--limit", type=int, help="1 to 500. [default: 500]")
@arguments.output_option("table")
@click.pass_obj
def list_workers(asked: Asked, /, include_hidden: bool, output: str, **filters: Any) -> None:
    """Show the workers, the most recently seen first."""
    with calling(asked) as client:
        workers = client.list_workers(include_hidden=include_hidden or None, **filters)
    if output == "json":
        print_json(workers)
    else:
        print_table([{**worker, **_short(worker)} for worker in workers], _COLUMNS)


def _short(worker: Any) -> dict[str, str]:
    """Return table cells: how many of its slots are busy, and the status of its wheel sync."""
    sync, busy = worker.get("wheel_sync") or {}, worker.get("busy")
    if busy is None:  # an older gateway
        busy = min(len(worker.get("running") or []), int(worker.get("slots") or 0))
    return {"busy": str(busy), "wheels": str(sync.get("status") or "")}


@click.command("worker-show", cls=Command, example="pyoco-client worker show worker-1")
@_worker_id
@arguments.output_option("text")
@click.pass_obj
def show(asked: Asked, worker_id: str, output: str) -> None:
    """Show a worker, hidden or not."""
    with calling(asked) as client:
        worker = client.get_worker(worker_id)
    if output == "json":
        print_json(worker)
    else:
        print_fields({name: worker.get(name) for name in _FIELDS})


@click.command("worker-hide", cls=Command, example="pyoco-client worker hide worker-1")
@_worker_id
@arguments.output_option("text")
@click.pass_obj
def hide(asked: Asked, worker_id: str, output: str) -> None:
    """Hide a worker in lists; it keeps taking jobs."""
    with calling(asked) as client:
        print_answer(client.patch_worker(worker_id, True), output)


@click.command("worker-unhide", cls=Command, example="pyoco-client worker unhide worker-1")
@_worker_id
@arguments.output_option("text")
@click.pass_obj
def unhide(asked: Asked, worker_id: str, output: str) -> None:
    """Show a worker in lists again."""
    with calling(asked) as client:
        print_answer(client.patch_worker(worker_id, False), output)
