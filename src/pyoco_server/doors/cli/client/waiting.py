"""Waiting for a run, and ending by how it ended: `--wait`, `--timeout-sec`, `--fail`."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

from pyoco_server.client.connection import Asked
from pyoco_server.core.states import TERMINAL
from pyoco_server.doors.cli.client.calling import calling
from pyoco_server.doors.cli.client.output import is_terminal, note, print_json

if TYPE_CHECKING:
    from pyoco_server.doors.cli.client.live import RunView
    from pyoco_server.http_client import PyocoHttpClient, RunWatchEvent

__all__ = [
    "conclude",
    "draw",
    "end_of",
    "fail_option",
    "submitting",
    "timeout_option",
    "wait_options",
    "watched",
]

F = TypeVar("F", bound=Callable[..., Any])

#: A gateway that has answered once comes back, or a person presses Ctrl-C.
_PATIENCE_SECONDS = math.inf
_TIMEOUT_SECONDS_MAX = 10.0 * 365 * 86_400


def _checked_seconds(ctx: click.Context, param: click.Parameter, seconds: float | None) -> float | None:
    if seconds is not None and not 0 < seconds <= _TIMEOUT_SECONDS_MAX:
        raise click.BadParameter(f"{seconds:g} is not above 0, or longer than ten years")
    return seconds


timeout_option = click.option(
    "--timeout-sec", type=float, metavar="SECONDS", callback=_checked_seconds, help="How long to wait at most."
)
fail_option = click.option("--fail", is_flag=True, help="End with 1 unless the run is COMPLETED.")


def wait_options(function: F) -> F:
    for option in (
        fail_option,
        timeout_option,
        click.option("--wait", is_flag=True, help="Return when the run has ended, and print how."),
    ):
        function = option(function)
    return function


def submitting(
    asked: Asked,
    submit: Callable[[PyocoHttpClient], Mapping[str, Any]],
    *,
    wait: bool,
    timeout_sec: float | None,
    fail: bool,
) -> int:
    """Submit, and print the answer; with `wait` print the run's end instead. Gives the exit code.

    Ctrl-C, or the end of time, ends the wait and not the run; its id has been told by then."""
    stays = wait or fail or timeout_sec is not None  # the other two ask for it, too
    with calling(asked) as client:
        accepted = submit(client)
        if not stays:
            print_json(accepted)
            return 0
        run_id = str(accepted["run_id"])
        note(f"run {run_id} is submitted")
        return conclude(end_of(client, run_id, timeout_sec), fail=fail)


def conclude(snapshot: Mapping[str, Any], *, fail: bool) -> int:
    """Print how a run ended. Gives the exit code."""
    print_json(snapshot)
    if not fail or snapshot["status"] == "COMPLETED":
        return 0
    note(f"run {snapshot['run_id']} is {snapshot['status']}: {snapshot.get('error') or 'no error was told'}")
    return 1


def end_of(client: PyocoHttpClient, run_id: str, timeout_sec: float | None) -> Mapping[str, Any]:
    """The terminal snapshot. Raises TimeoutError when the time is over. People see meanwhile what happens."""
    if not is_terminal(sys.stderr):
        return client.wait_run(run_id, math.inf if timeout_sec is None else timeout_sec, patience_sec=_PATIENCE_SECONDS)
    import httpx  # noqa: PLC0415 - the client has it

    from pyoco_server.doors.cli.client.live import run_view  # noqa: PLC0415 - rich

    with run_view(sys.stderr, transient=True) as view:
        last = draw(client, run_id, timeout_sec, view)
    if last["status"] not in TERMINAL:
        after = "" if timeout_sec is None else f" after {timeout_sec:g} s"
        raise TimeoutError(f"run {run_id} is still {last['status']}{after}")
    try:
        return client.get_run(run_id)
    except httpx.HTTPError:  # it has ended all the same, and how is known
        return {name: value for name, value in last.items() if name != "task_records"}


def draw(
    client: PyocoHttpClient, run_id: str, timeout_sec: float | None, view: RunView, since: float | None = None
) -> Mapping[str, Any]:
    """Follow the run in a view until it has ended or the time is over. Gives the last snapshot."""
    last: Mapping[str, Any] = {"status": "unknown"}
    asked: dict[str, Any] = {"include": ["records"], "since": since, "timeout_sec": timeout_sec}
    for event in watched(client, run_id, **asked):
        last = event["snapshot"]
        view.show(event, _why_waiting(client, run_id) if _waits(last) else None)
    return last


def watched(client: PyocoHttpClient, run_id: str, **asked: Any) -> Iterator[RunWatchEvent]:
    """Its events, however often the server goes away in between. No such run, or no server to begin with, is told at
    once; with a time limit, when that is over at the latest."""
    if asked["timeout_sec"] is None:
        client.get_run(run_id)
    yield from client.watch_run(run_id, **asked, patience_sec=_PATIENCE_SECONDS)


def _waits(snapshot: Mapping[str, Any]) -> bool:
    return snapshot["status"] in {"PENDING", "RUNNING"} and not snapshot.get("worker_id")


def _why_waiting(client: PyocoHttpClient, run_id: str) -> str | None:
    """Events do not tell; a heartbeat comes every five seconds, and then we ask again. Whether the server is there at
    all is the watch's affair."""
    import httpx  # noqa: PLC0415 - the client has it

    try:
        waiting = client.get_run(run_id).get("waiting")
    except httpx.HTTPError:
        return None
    if waiting is None or waiting["reason"] == "starting":
        return None
    return str(waiting["message"])
