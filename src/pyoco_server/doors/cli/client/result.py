"""The `result` command: what a completed run has returned (RES-26)."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from pyoco_server.client.connection import Asked
from pyoco_server.doors.cli.client import arguments
from pyoco_server.doors.cli.client.calling import calling
from pyoco_server.doors.cli.client.output import print_answer
from pyoco_server.doors.cli.client.progress import transferring
from pyoco_server.doors.cli.client.run_ids import full_run_id
from pyoco_server.doors.cli.client.run_text import safe_lines
from pyoco_server.doors.cli.shell import Command
from pyoco_server.errors import UsageError

if TYPE_CHECKING:
    from pyoco_server.http_client import PyocoHttpClient

__all__ = ["result"]

_JSON = "application/json"


@click.command(
    "result",
    cls=Command,
    example="""\
pyoco-client result RUN_ID
pyoco-client result RUN_ID --output json
pyoco-client result RUN_ID --save result.json""",
)
@arguments.run_id
@click.option("--save", metavar="PATH", help="Save it to this file, or in this folder; its SHA-256 is verified.")
@arguments.output_option("text")
@click.pass_obj
def result(asked: Asked, run_id: str, save: str | None, output: str) -> None:
    """Print the result of a completed run, or save it.

    A text is printed as it is on a terminal; in a pipe, and with --output json, as JSON. The exit code is 1 if there
    is no result.
    """
    if save == "":
        raise UsageError("--save must not be empty")
    with calling(asked) as client:
        run_id = full_run_id(client, run_id)
        if save is None:
            _print(_read(client, run_id), output)
        else:
            print_answer(_saved(client, run_id, save), output)


def _read(client: PyocoHttpClient, run_id: str) -> bytes:
    """Return the result, which is JSON. Raises UsageError for any other type, before it is read."""
    described = client.get_run(run_id).get("result")
    kind = described.get("content_type", _JSON) if isinstance(described, Mapping) else _JSON
    if kind != _JSON:
        size = described.get("bytes") if isinstance(described, Mapping) else None
        raise UsageError(f"the result is {kind}, {size} bytes; example: pyoco-client result {run_id[:8]} --save FILE")
    return client.read_run_result(run_id)


def _print(data: bytes, output: str) -> None:
    if output == "json":
        sys.stdout.flush()
        sys.stdout.buffer.write(data + b"\n")
        return
    value = json.loads(data)
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2)
    click.echo(safe_lines(text))


def _saved(client: PyocoHttpClient, run_id: str, path: str) -> Mapping[str, Any]:
    try:
        with transferring("result") as progress:
            return client.save_run_result(run_id, path, progress=progress)
    except OSError as error:
        if isinstance(error, TimeoutError):
            raise
        raise UsageError(f"cannot write {error.filename or path}: {error.strerror}") from error
