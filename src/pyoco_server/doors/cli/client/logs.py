"""The `logs` command: print what a run has printed, and follow it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click

from pyoco_server.client.connection import Asked
from pyoco_server.core.run_log.line import LEVELS, Stream
from pyoco_server.core.run_log.selection import LIMIT_MAX, NO_TASK
from pyoco_server.doors.cli.client import arguments
from pyoco_server.doors.cli.client.calling import calling
from pyoco_server.doors.cli.client.output import note, print_line
from pyoco_server.doors.cli.client.run_ids import full_run_id
from pyoco_server.doors.cli.client.run_text import shown_line
from pyoco_server.doors.cli.client.times import PAST
from pyoco_server.doors.cli.client.waiting import PATIENCE_SECONDS
from pyoco_server.doors.cli.shell import Command

__all__ = ["logs"]

#: Of a run with more tasks, only so many are named.
_NAMES_MAX = 20


def _read_attempt(ctx: click.Context, param: click.Parameter, text: str | None) -> str | None:
    if text is None or text in {"last", "all"} or (text.isascii() and text.isdecimal() and int(text) > 0):
        return text
    raise click.BadParameter("the number of an attempt, last, or all")


@click.command(
    "logs",
    cls=Command,
    example="""\
pyoco-client logs RUN_ID --follow
pyoco-client logs RUN_ID --task load --level WARNING --since 5m
pyoco-client logs RUN_ID --attempt last --tail 100 --output json""",
)
@arguments.run_id
@click.option("--follow", "-f", is_flag=True, help="Print new lines as they come, until the run has ended.")
@click.option("--task", "tasks", multiple=True, metavar="NAME", help="Lines of this task; - for lines of no task.")
@click.option(
    "--attempt",
    callback=_read_attempt,
    metavar="N",
    help="Lines of this attempt: its number, or last.",
    **arguments.words("last", "all"),
)
@click.option(
    "--level",
    type=click.Choice(LEVELS, case_sensitive=False),
    help="This level and above; stdout counts as INFO, stderr as WARNING.",
)
@click.option(
    "--tail", type=click.IntRange(1, LIMIT_MAX), metavar="N", help=f"Only the last lines, at most {LIMIT_MAX}."
)
@click.option(
    "--since", type=PAST, metavar="WHEN", help="Lines since then: 5m (ago), 2026-12-01T09:00, or unix seconds."
)
@click.option("--search", metavar="TEXT", help="Lines that contain this text, in upper or lower case.")
@click.option(
    "--stream",
    "streams",
    multiple=True,
    type=click.Choice([each.value for each in Stream]),
    help="Lines of this stream; may be repeated.",
)
@arguments.output_option("text")
@click.pass_obj
def logs(
    asked: Asked, /, run_id: str, follow: bool, tasks: Sequence[str], streams: Sequence[str], output: str, **more: Any
) -> None:
    """Print what a run has printed.

    Control characters are shown as \\xNN; colours are kept on a terminal. With --follow the command ends with the run,
    with exit code 0 whatever its outcome; Ctrl-C ends the following, not the run.
    """
    filters = {"task": list(tasks), "stream": list(streams), **more}
    chosen: Any = {name: value for name, value in filters.items() if value not in (None, [])}
    with calling(asked) as client:
        run_id = full_run_id(client, run_id)
        heard = set[str | None]()
        for line in client.run_logs(run_id, follow, patience_sec=PATIENCE_SECONDS, **chosen):
            heard.add(line["task"])
            print_line(line) if output == "json" else click.echo(shown_line(line))
        silent = [task for task in tasks if task not in heard and task != NO_TASK]
        if silent:
            _note_unknown(client.get_run(run_id), silent)


def _note_unknown(run: Mapping[str, Any], silent: Iterable[str]) -> None:
    """Say which of these tasks, of which no line was found, the run does not have: it may be a typing error."""
    known = list(run.get("tasks") or ())
    unknown = [task for task in silent if task not in known]
    if known and unknown:
        more = f" and {len(known) - _NAMES_MAX} more" if len(known) > _NAMES_MAX else ""
        names = ", ".join(map(repr, unknown))
        note(f"no task {names} is known in this run; it has {', '.join(known[:_NAMES_MAX])}{more}")
