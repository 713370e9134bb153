"""The `queues` and `attention` commands: what is waiting, and what needs an operator."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import click

from pyoco_server.client.connection import Asked
from pyoco_server.doors.cli.client import arguments
from pyoco_server.doors.cli.client.calling import calling
from pyoco_server.doors.cli.client.output import has_colour, note, print_json, print_table, safe, span
from pyoco_server.doors.cli.shell import Command

__all__ = ["attention", "queues"]

_COLUMNS = ("tag", "depth", "10 min ago", "oldest", "per minute", "done in", "workers", "slots", "busy")
_COLOURS = {"danger": "red", "warning": "yellow"}


@click.command("queues", cls=Command, example="pyoco-client queues\npyoco-client queues --output json")
@arguments.output_option("table")
@click.pass_obj
def queues(asked: Asked, output: str) -> None:
    """Show the queues by tag, the longest first.

    Tags with live workers and an empty queue come last. The depth ten minutes ago and the drain rate stay empty until
    the gateway has observed the queue for long enough. Priced runs have no tag; their number is printed below the
    table.
    """
    with calling(asked) as client:
        found = client.list_queues()
    if output != "json":
        print_table([_row(queue) for queue in found["items"]], _COLUMNS)
        _note_packs(found.get("packs"))
    else:
        print_json(found)


def _note_packs(packs: Mapping[str, Any] | None) -> None:
    """Print how many priced runs are waiting: they have no tag and so no row. None: the server is too old to report
    it."""
    if packs is not None and packs["depth"]:
        oldest = _span(packs["oldest_age_seconds"])
        note(f"priced runs waiting: {packs['depth']}, the oldest for {oldest}; see pyoco-client list --kind pack")


def _row(queue: Mapping[str, Any]) -> dict[str, Any]:
    pace = queue["drained_per_minute"]
    return {
        "tag": queue["tag"],
        "depth": queue["depth"],
        "10 min ago": queue["depth_before"],
        "oldest": _span(queue["oldest_age_seconds"]),
        "per minute": None if pace is None else f"{pace:.1f}",
        "done in": _span(queue["eta_seconds"]),
        "workers": queue["workers_alive"],
        "slots": queue["slots"],
        "busy": queue["slots_busy"],
    }


def _span(seconds: float | None) -> str | None:
    return None if seconds is None else span(seconds)


@click.command(
    "attention",
    cls=Command,
    example="pyoco-client attention\npyoco-client attention --fail --output table",
)
@arguments.output_option("table")
@click.option("--fail", is_flag=True, help="Exit with 1 if there is any danger.")
@click.pass_obj
def attention(asked: Asked, output: str, fail: bool) -> int:
    """Show what needs attention, the most urgent first.

    danger: work is lost or blocked. warning: work continues, but should be checked.
    """
    with calling(asked) as client:
        found = client.get_attention()
    if output == "json":
        print_json(found)
    elif found["items"]:
        for item in found["items"]:
            click.echo(f"{_level(item['level'])}  {safe(item['message'])}")
    else:
        click.echo("Nothing needs attention.")
    return int(fail and any(item["level"] == "danger" for item in found["items"]))


def _level(level: str) -> str:
    """Return the level padded to a fixed width, coloured if the terminal has colours. A newer gateway may add
    levels."""
    word = f"{safe(level):7}"
    return click.style(word, fg=_COLOURS[level]) if level in _COLOURS and has_colour(sys.stdout) else word
