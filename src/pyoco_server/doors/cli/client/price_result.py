"""The `price result` command: shows the envelope of a run, prints it as JSON, or saves it with its files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pyoco_server.client.connection import Asked
from pyoco_server.doors.cli.client import arguments
from pyoco_server.doors.cli.client.calling import calling, fail
from pyoco_server.doors.cli.client.output import is_printable, note, print_json, print_line, print_table, safe
from pyoco_server.doors.cli.client.progress import transferring
from pyoco_server.doors.cli.client.run_ids import full_run_id
from pyoco_server.doors.cli.shell import Command
from pyoco_server.errors import UsageError

if TYPE_CHECKING:
    from pyoco_server.http_client import PackEnvelope, PyocoHttpClient

__all__ = ["print_document", "result"]

#: The data of a pack may be nested a thousand levels deep or have a million rows.
_DEPTH_MAX = 8
_ROWS_MAX = 1_000
_COLUMNS_MAX = 12
_INDENT = "  "


@click.command(
    "result",
    cls=Command,
    example="""\
pyoco-client price result RUN_ID
pyoco-client price result RUN_ID --output json
pyoco-client price result RUN_ID --save scans/""",
)
@arguments.run_id
@click.option(
    "--save",
    "directory",
    metavar="DIR",
    help="Save pack_envelope.json and every file of the run in this folder, verify their SHA-256, "
    "and print what was saved. Creates the folder if needed.",
)
@click.option("--force", is_flag=True, help="With --save: overwrite existing files.")
@arguments.output_option("table")
@click.pass_obj
def result(asked: Asked, run_id: str, directory: str | None, force: bool, output: str) -> int:
    """Show what a completed run found: its answer, its logs, its cost and its files."""
    if directory is None and force:
        raise UsageError("--force goes with --save")
    if directory == "":
        raise UsageError("--save must not be empty")
    with calling(asked) as client:
        if directory is not None:
            return _save(client, full_run_id(client, run_id), directory, output, force=force)
        envelope = client.get_envelope(full_run_id(client, run_id))
    if output == "json":
        print_document(envelope)
    else:
        _print_envelope(envelope)
    return 0


def _save(client: PyocoHttpClient, run_id: str, directory: str, output: str, *, force: bool) -> int:
    """Save the result and its files.

    Errors of the gateway are raised by the first request; later ones concern the files, which may be on another server.
    """
    import httpx  # noqa: PLC0415 - already imported by the client

    run = client.get_pack_run(run_id)
    if run["status"] != "COMPLETED":
        fail(f"run {run_id} is {run['status']}: there is no result")
    try:
        if Path(directory).exists() and not Path(directory).is_dir():
            raise UsageError(f"{directory} is not a folder")
        with transferring("download") as progress:
            saved = client.save_result(run_id, directory, overwrite=force, progress=progress)
    except FileExistsError as error:
        raise UsageError(f"{error.filename} exists already; --force overwrites it") from error
    except OSError as error:
        raise UsageError(f"cannot write {error.filename or directory}: {error.strerror}") from error
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        fail(f"the result of run {run_id} could not be saved: {str(error) or type(error).__name__}")
    if output == "json":
        print_json(saved)
    else:
        print_table(saved, ("name", "bytes"))
        note(f"stored in {directory}; the SHA-256 of each was compared")
    return 0


def print_document(document: Any) -> None:
    """Print JSON, in one line if it is nested too deeply to be indented."""
    try:
        print_json(document)
    except RecursionError:
        print_line(document)  # needs no more stack than parsing it did


def _print_envelope(envelope: PackEnvelope) -> None:
    _heading(f"{envelope['pack_type']} {envelope['run_id']}")
    facts: Mapping[str, Any] = {
        "made": envelope["generated_at"],
        **envelope["cost"],
        **{name: value for name, value in envelope["meta"].items() if value is not None},
    }
    _print_members(facts, 0)
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
        note(f"to store them in a folder: pyoco-client price result {envelope['run_id']} --save DIR")


def _heading(text: object) -> None:
    click.echo(f"\n{safe(text)}")


def _print_members(members: Mapping[str, Any], depth: int) -> None:
    """Print one line per member; nested values start on the next line."""
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
    """Print flat objects as a table if no cell is cut, otherwise one below the other with their complete text.

    Of a very long list only the beginning is shown, with the number of remaining items.
    """
    shown = items[:_ROWS_MAX]
    columns = list(dict.fromkeys(name for each in shown if isinstance(each, Mapping) for name in each))
    if 0 < len(columns) <= _COLUMNS_MAX and all(map(_is_plain, columns)) and all(map(_is_row, shown)):
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


def _is_plain(name: str) -> bool:
    """Return whether the name can be a column header."""
    return name == safe(name) and is_printable(name)


def _is_row(row: Any) -> bool:
    """Return whether the row fits a table: no nested objects, and every cell can be shown completely. Flat lists
    fit."""
    if not isinstance(row, Mapping):
        return False
    return not any(
        isinstance(value, Mapping)
        or (isinstance(value, list) and any(isinstance(each, Mapping | list) for each in value))
        or not is_printable(_text(value))
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
            try:
                return str(value)
            except RecursionError:
                return "(nested too deeply to be shown here; --output json has it)"


def _print_text(before: str, text: str, depth: int) -> None:
    """Print text that may have several lines, with control characters escaped."""
    first, *more = text.splitlines() or [""]
    indent = _INDENT * (depth + 1)
    click.echo(f"{indent}{safe(before)}{safe(first)}")
    for line in more:
        click.echo(f"{indent}{' ' * len(before)}{safe(line)}")
