"""When a run starts: the options of a delayed submission, and the `start` command (DELAY-6, DELAY-9)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import click

from pyoco_server.client.connection import Asked
from pyoco_server.doors.cli.client import arguments
from pyoco_server.doors.cli.client.calling import calling
from pyoco_server.doors.cli.client.output import print_json
from pyoco_server.doors.cli.client.run_ids import full_run_id
from pyoco_server.doors.cli.client.run_text import print_run
from pyoco_server.doors.cli.client.times import DURATION, INSTANT
from pyoco_server.doors.cli.shell import Command
from pyoco_server.errors import UsageError

__all__ = ["start", "start_options"]

F = TypeVar("F", bound=Callable[..., Any])


def start_options(function: F) -> F:
    """Pass `start` to the command: `delay`, `not_before`, or neither."""

    @functools.wraps(function)
    def with_start(*args: Any, **kwargs: Any) -> Any:
        delay, not_before = kwargs.pop("delay"), kwargs.pop("not_before")
        if delay is not None and not_before is not None:
            raise UsageError("--in and --at: give one of them")
        given = {"delay": delay, "not_before": not_before}
        return function(*args, start={name: value for name, value in given.items() if value is not None}, **kwargs)

    decorated: Any = with_start
    for option in (
        click.option(
            "--at",
            "not_before",
            type=INSTANT,
            metavar="WHEN",
            help="Do not start before this: 2026-12-01T09:00 (this machine's time), RFC 3339, or unix seconds.",
        ),
        click.option("--in", "delay", type=DURATION, metavar="DURATION", help="Start after this: 10m, 1h30m."),
    ):
        decorated = option(decorated)
    return cast(F, decorated)


@click.command("start", cls=Command, example="pyoco-client run start RUN_ID")
@arguments.run_id
@arguments.output_option("text")
@click.pass_obj
def start(asked: Asked, run_id: str, output: str) -> None:
    """Start a delayed run now.

    Also starts a run that waits for its next try. Any other run is not changed, and the exit code is 1.
    """
    with calling(asked) as client:
        snapshot = client.start_run(full_run_id(client, run_id))
    print_json(snapshot) if output == "json" else print_run(snapshot)
