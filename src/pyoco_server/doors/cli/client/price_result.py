"""`price result`: the envelope of a run, for people; the same JSON as everywhere for programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from pyoco_server.doors.cli.client import arguments
from pyoco_server.doors.cli.client.calling import calling
from pyoco_server.doors.cli.client.connection import Asked
from pyoco_server.doors.cli.client.output import note, print_json, print_table, safe
from pyoco_server.doors.cli.shell import Command

if TYPE_CHECKING:
    from pyoco_server.http_client import PackEnvelope

__all__ = ["result"]

#: Somebody else's data may be nested a thousand deep, or have a million rows.
_DEPTH_MAX = 8
_ROWS_MAX = 1_000
_COLUMNS_MAX = 12
_INDENT = "  "


@click.command(
    "result",
    cls=Command,
    example="pyoco-client price result RUN_ID\npyoco-client price result RUN_ID --output json | jq .data",
)
@arguments.run_id
@arguments.output_by_terminal
@click.pass_obj
def result(asked: Asked, run_id: str, output: str) -> int:
    """Show what a completed run found: its answer, its logs, its cost and its files."""
    with calling(asked) as client:
        envelope = client.get_envelope(run_id)
    if output == "json":
        print_json(envelope)
    else:
        _print_envelope(envelope)
    return 0


def _print_envelope(envelope: PackEnvelope) -> None:
    _heading(f"{envelope['pack_type']} {envelope['run_id']}")
    told: Mapping[str, Any] = {
        "made": envelope["generated_at"],
        **envelope["cost"],
        **{name: value for name, value in envelope["meta"].items() if value is not None},
    }
    _print_members(told, 0)
    _heading("data")
    _print_members(envelope["data"], 0)
    for name, lines in envelope["logs"].items():
        if lines:
            _heading(name)
            _print_list(lines, 0)
    files = [{"name": name, **each} for name, each in envelope["artifacts"].items()]
    if files:
        _heading("artifacts")
        print_table(files, ("name", "bytes", "content_type", "sha256"))
        note(f"their addresses, for ten minutes: pyoco-client price get {envelope['run_id']} --output json")


def _heading(text: object) -> None:
    click.echo(f"\n{safe(text)}")


def _print_members(members: Mapping[str, Any], depth: int) -> None:
    """A line for each; what has lines of its own begins on the next one."""
    if not members:
        click.echo(f"{_INDENT * (depth + 1)}(nothing)")
    for name, value in members.items():
        if isinstance(value, Mapping | list) and value and depth < _DEPTH_MAX:
            click.echo(f"{_INDENT * (depth + 1)}{safe(name)}:")
            _print_value(value, depth + 1)
        else:
            _print_text(f"{name}: ", _text(value), depth)


def _print_value(value: Mapping[str, Any] | list[Any], depth: int) -> None:
    if isinstance(value, Mapping):
        _print_members(value, depth)
    else:
        _print_list(value, depth)


def _print_list(items: Sequence[Any], depth: int) -> None:
    """Flat objects become a table; of a very long list the beginning is shown, and how many there are."""
    shown = items[:_ROWS_MAX]
    columns = list(dict.fromkeys(name for each in shown if isinstance(each, Mapping) for name in each))
    if columns and len(columns) <= _COLUMNS_MAX and all(_is_flat(each) for each in shown):
        print_table([{name: _text(value) for name, value in each.items()} for each in shown], columns)
    else:
        for at, each in enumerate(shown, 1):
            if isinstance(each, Mapping | list) and each and depth < _DEPTH_MAX:
                click.echo(f"{_INDENT * (depth + 1)}{at}.")
                _print_value(each, depth + 1)
            else:
                _print_text(f"{at}. ", _text(each), depth)
    if len(items) > len(shown):
        note(f"{len(items) - len(shown)} more are not shown; --output json has them")


def _is_flat(row: Any) -> bool:
    """Without objects in it; a list of words is a cell, too."""
    if not isinstance(row, Mapping):
        return False
    return not any(
        isinstance(value, Mapping)
        or (isinstance(value, list) and any(isinstance(each, Mapping | list) for each in value))
        for value in row.values()
    )


def _text(value: Any) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case list() if not any(isinstance(each, Mapping | list) for each in value):
            return ", ".join(_text(each) for each in value) or "-"
        case _:
            return str(value)


def _print_text(before: str, text: str, depth: int) -> None:
    """Its own lines stay lines, and nothing in them reaches the terminal but letters."""
    first, *more = text.splitlines() or [""]
    indent = _INDENT * (depth + 1)
    click.echo(f"{indent}{safe(before)}{safe(first)}")
    for line in more:
        click.echo(f"{indent}{' ' * len(before)}{safe(line)}")
