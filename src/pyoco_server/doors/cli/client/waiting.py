"""Waiting for a run, with an exit code by its outcome: `--wait`, `--timeout`, `--fail`."""

from __future__ import annotations

import contextlib
import functools
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from pyoco_server.client.connection import Asked
from pyoco_server.core.states import TERMINAL
from pyoco_server.doors.cli.client.calling import calling
from pyoco_server.doors.cli.client.output import is_terminal, note, print_json
from pyoco_server.doors.cli.client.run_text import print_accepted, print_outcome
from pyoco_server.doors.cli.client.times import DurationType
from pyoco_server.doors.cli.shell import RenamedOption

if TYPE_CHECKING:
    from pyoco_server.doors.cli.client.live import RunView
    from pyoco_server.http_client import PyocoHttpClient, RunWatchEvent

__all__ = [
    "PATIENCE_SECONDS",
    "WaitedRun",
    "conclude",
    "draw",
    "end_of",
    "fail_option",
    "submitting",
    "timeout_option",
    "wait_options",
    "waited",
    "watched",
]

F = TypeVar("F", bound=Callable[..., Any])

#: After the first response, outages are waited out; a person can press Ctrl-C.
PATIENCE_SECONDS = math.inf
_TIMEOUT_SECONDS_MAX = 10.0 * 365 * 86_400


timeout_option = click.option(
    "--timeout",
    "timeout_sec",
    cls=RenamedOption,
    old_name="--timeout-sec",
    type=DurationType(seconds_max=_TIMEOUT_SECONDS_MAX, is_above=True),
    metavar="DURATION",
    help="Maximum time to wait: 30s, 5m, or seconds.",
)
fail_option = click.option("--fail", is_flag=True, help="Exit with 1 unless the run is COMPLETED.")


def wait_options(function: F) -> F:
    for option in (
        fail_option,
        timeout_option,
        click.option("--wait", is_flag=True, help="Wait for the run to finish and print its outcome."),
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
    output: str,
) -> int:
    """Submit, and print the response; with `wait` print the final state of the run instead. Return the exit code.

    Ctrl-C, or a timeout, ends the waiting, not the run; its id has been printed by then.
    """
    stays = wait or fail or timeout_sec is not None  # the other two imply it
    with calling(asked) as client:
        accepted = submit(client)
        if not stays:
            print_json(accepted) if output == "json" else print_accepted(accepted)
            return 0
        run_id = str(accepted["run_id"])
        note(f"run {run_id} is submitted")
        if accepted.get("warning"):
            note(f"warning: {accepted['warning']}")
        return conclude(client, waited(asked, client, run_id, timeout_sec, output).snapshot, output, fail=fail)


def conclude(client: PyocoHttpClient, snapshot: Mapping[str, Any], output: str, *, fail: bool) -> int:
    """Print the outcome of a run and return the exit code."""
    is_failed = snapshot["status"] != "COMPLETED"
    if output != "json":
        print_outcome(_with_records(client, snapshot) if is_failed else snapshot)
        return int(fail and is_failed)
    print_json(snapshot)
    if not fail or not is_failed:
        return 0
    note(f"run {snapshot['run_id']} is {snapshot['status']}: {snapshot.get('error') or 'no error was reported'}")
    return 1


def _with_records(client: PyocoHttpClient, snapshot: Mapping[str, Any]) -> Mapping[str, Any]:
    """Add the task records, which tell where a task failed. Best effort: the outcome is known without them."""
    import httpx  # noqa: PLC0415 - already imported by the client

    try:
        return client.get_run(str(snapshot["run_id"]), ["records"])
    except httpx.HTTPError:
        return snapshot


@dataclass(frozen=True)
class WaitedRun:
    """The end of a run that was waited for."""

    snapshot: Mapping[str, Any]
    #: Whether everything that the run has printed is on the terminal already.
    is_printed: bool = False


def waited(
    asked: Asked,
    client: PyocoHttpClient,
    run_id: str,
    timeout_sec: float | None,
    output: str,
    *,
    needs_all: bool = False,
) -> WaitedRun:
    """Wait as `end_of`. If stdout is a terminal, also print what the run prints, as it comes (CLI-4).

    `needs_all`: wait for the end of the log, which comes two seconds after the last line. Raises TimeoutError.
    """
    if output == "json" or not sys.stdout.isatty():
        return WaitedRun(end_of(client, run_id, timeout_sec))
    from pyoco_server.doors.cli.client.log_lines import LinePrinter  # noqa: PLC0415 - asyncio

    with _progress(client, run_id, timeout_sec) as progress:
        printer = LinePrinter(asked, run_id, progress.print)
        with printer.following():
            snapshot = progress.end()
            printer.finish(is_patient=needs_all)
    return WaitedRun(snapshot, printer.has_printed_all)


def end_of(client: PyocoHttpClient, run_id: str, timeout_sec: float | None) -> Mapping[str, Any]:
    """Return the terminal snapshot. Meanwhile show progress on a terminal; elsewhere write to stderr why the run waits
    (CLI-5). Raises TimeoutError.
    """
    with _progress(client, run_id, timeout_sec) as progress:
        return progress.end()


@dataclass(frozen=True)
class _Progress:
    """Shows the progress of a run on stderr until its end."""

    #: Wait, and return the terminal snapshot. Raises TimeoutError.
    end: Callable[[], Mapping[str, Any]]
    #: Print text on stdout, beside the progress.
    print: Callable[[str], None]


@contextlib.contextmanager
def _progress(client: PyocoHttpClient, run_id: str, timeout_sec: float | None) -> Iterator[_Progress]:
    if not is_terminal(sys.stderr):
        yield _Progress(functools.partial(_end_with_reasons, client, run_id, timeout_sec), click.echo)
        return
    from pyoco_server.doors.cli.client.live import run_view  # noqa: PLC0415 - rich

    with run_view(sys.stderr, transient=True) as view:
        yield _Progress(functools.partial(_end_in_view, client, run_id, timeout_sec, view), view.print)


def _end_with_reasons(client: PyocoHttpClient, run_id: str, timeout_sec: float | None) -> Mapping[str, Any]:
    seconds = math.inf if timeout_sec is None else timeout_sec
    reasons = _Reasons(client, run_id)
    return client.wait_run(run_id, seconds, patience_sec=PATIENCE_SECONDS, progress=reasons.show)


def _end_in_view(client: PyocoHttpClient, run_id: str, timeout_sec: float | None, view: RunView) -> Mapping[str, Any]:
    import httpx  # noqa: PLC0415 - already imported by the client

    last = draw(client, run_id, timeout_sec, view)
    if last["status"] not in TERMINAL:
        after = "" if timeout_sec is None else f" after {timeout_sec:g} s"
        raise TimeoutError(f"run {run_id} is still {last['status']}{after}")
    try:
        return client.get_run(run_id)
    except httpx.HTTPError:  # the run has ended, and its outcome is known
        return {name: value for name, value in last.items() if name != "task_records"}


class _Reasons:
    """Writes why a run waits to stderr: once, and again when the reason changes (CLI-5)."""

    def __init__(self, client: PyocoHttpClient, run_id: str) -> None:
        self._client, self._run_id = client, run_id
        self._last: str | None = None

    def show(self, snapshot: Mapping[str, Any]) -> None:
        """Take the newest snapshot of the run; events do not contain the reason, so it is requested."""
        waiting = snapshot.get("waiting") or (_waiting_of(self._client, self._run_id) if _waits(snapshot) else None)
        if waiting is None or waiting["reason"] in {"starting", self._last}:
            return
        self._last = waiting["reason"]
        note(f"waiting: {waiting['reason']}: {waiting['message']}")


def draw(
    client: PyocoHttpClient, run_id: str, timeout_sec: float | None, view: RunView, since: float | None = None
) -> Mapping[str, Any]:
    """Follow the run in a view until it ends or the time runs out. Return the last snapshot."""
    last: Mapping[str, Any] = {"status": "unknown"}
    asked: dict[str, Any] = {"include": ["records"], "since": since, "timeout_sec": timeout_sec}
    for event in watched(client, run_id, **asked):
        last = event["snapshot"]
        view.show(event, _why_waiting(client, run_id) if _waits(last) else None)
    return last


def watched(client: PyocoHttpClient, run_id: str, **asked: Any) -> Iterator[RunWatchEvent]:
    """Yield the events of the run, across outages of the server.

    Fails immediately if the run does not exist or the server is unavailable at the start; with a time limit, at its
    expiry at the latest.
    """
    if asked["timeout_sec"] is None:
        client.get_run(run_id)
    yield from client.watch_run(run_id, **asked, patience_sec=PATIENCE_SECONDS)


def _waits(snapshot: Mapping[str, Any]) -> bool:
    return snapshot["status"] in {"PENDING", "RUNNING"} and not snapshot.get("worker_id")


def _why_waiting(client: PyocoHttpClient, run_id: str) -> str | None:
    """Return why the run waits. None: it does not, or it is about to start."""
    waiting = _waiting_of(client, run_id)
    return None if waiting is None or waiting["reason"] == "starting" else str(waiting["message"])


def _waiting_of(client: PyocoHttpClient, run_id: str) -> Mapping[str, Any] | None:
    """Return why the run waits. Events do not contain it, so it is requested with each heartbeat event, every five
    seconds.

    Returns None during an outage, which the watch handles.
    """
    import httpx  # noqa: PLC0415 - already imported by the client

    try:
        return client.get_run(run_id).get("waiting")
    except httpx.HTTPError:
        return None
