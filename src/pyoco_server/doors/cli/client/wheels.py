"""The `wheel` commands: list, upload, download and delete wheels, and their history."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from pyoco_server.client.connection import Asked
from pyoco_server.doors.cli.client import arguments
from pyoco_server.doors.cli.client.calling import calling
from pyoco_server.doors.cli.client.output import print_answer, print_json, print_table
from pyoco_server.doors.cli.client.progress import transferring
from pyoco_server.doors.cli.shell import Command
from pyoco_server.errors import UsageError

__all__ = ["delete", "download", "history", "list_wheels", "upload"]

_wheel_name = arguments.named("--wheel-name", "WHEEL_NAME", "The file name of a registered wheel.")


@click.command("wheels", cls=Command, example="pyoco-client wheel list")
@arguments.output_option("table")
@click.pass_obj
def list_wheels(asked: Asked, output: str) -> None:
    """Show the registered wheels."""
    with calling(asked) as client:
        wheels = client.list_wheels()
    if output == "json":
        print_json(wheels)
    else:
        rows = [{**wheel, "modified_at": wheel.get("modified")} for wheel in wheels]
        print_table(rows, ("name", "size_bytes", "tags", "modified_at"))


@click.command(
    "wheel-history",
    cls=Command,
    example="pyoco-client wheel history --limit 20\npyoco-client wheel history --action delete",
)
@click.option("--limit", type=int, help="1 to 500. [default: 100]")
@click.option("--wheel-name", metavar="NAME", help="Events of this wheel.")
@click.option("--action", type=click.Choice(["upload", "delete"]), help="Events of this kind.")
@arguments.output_option("table")
@click.pass_obj
def history(asked: Asked, /, output: str, **filters: Any) -> None:
    """Show who uploaded and deleted which wheel, newest first."""
    with calling(asked) as client:
        events = client.list_wheel_history(**filters)
    if output == "json":
        print_json(events)
    else:
        rows = [{**event, "by": (event.get("actor") or {}).get("tenant_id")} for event in events]
        print_table(rows, ("occurred_at", "action", "wheel_name", "tags", "by"))


@click.command(
    "wheel-upload",
    cls=Command,
    example="""\
pyoco-client wheel upload --wheel-file dist/my_tasks-1.2.0-py3-none-any.whl
pyoco-client wheel upload --wheel-file dist/my_tasks-1.2.0-py3-none-any.whl --tags gpu,nightly""",
)
@arguments.named("--wheel-file", "FILE", "The wheel; its file name contains package and version.")
@click.option("--tags", metavar="A,B", help="Which workers install it. [default: all]")
@click.option("--replace/--no-replace", default=True, help="Kept for compatibility; does nothing.")
@arguments.output_option("text")
@click.pass_obj
def upload(asked: Asked, wheel_file: str, tags: str | None, replace: bool, output: str) -> None:
    """Register a wheel; its version must be newer than the registered ones."""
    path = Path(wheel_file)
    try:
        with path.open("rb"):
            pass
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read {wheel_file}: {error}") from error
    with calling(asked) as client, transferring("upload") as progress:
        artifact = client.upload_wheel(path.name, path, replace, arguments.labels(tags), progress=progress)
    print_answer(artifact, output)


@click.command(
    "wheel-download",
    cls=Command,
    example="pyoco-client wheel download my_tasks-1.2.0-py3-none-any.whl --to downloads/",
)
@_wheel_name
@click.option("--to", "target", metavar="PATH", default=".", help="A directory, or a file name. [default: here]")
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
@arguments.output_option("text")
@click.pass_obj
def download(asked: Asked, wheel_name: str, target: str, force: bool, output: str) -> None:
    """Download a wheel and verify its SHA-256."""
    if not wheel_name.endswith(".whl") or Path(wheel_name).name != wheel_name:
        raise UsageError(f"{wheel_name!r} is not the file name of a wheel")
    path = Path(target)
    path = path / wheel_name if path.is_dir() or target.endswith("/") else path
    if path.exists() and not force:
        raise UsageError(f"{path} exists already; --force overwrites it")
    if not path.parent.is_dir():
        raise UsageError(f"there is no directory {path.parent}")
    with calling(asked) as client, transferring("download") as progress:
        try:
            fetched = client.download_wheel(wheel_name, path, progress=progress)
        except OSError as error:
            raise UsageError(f"cannot write {path}: {error.strerror}") from error
    print_answer(fetched, output)


@click.command("wheel-delete", cls=Command, example="pyoco-client wheel delete my_tasks-1.2.0-py3-none-any.whl")
@_wheel_name
@arguments.output_option("text")
@click.pass_obj
def delete(asked: Asked, wheel_name: str, output: str) -> None:
    """Delete a wheel; workers uninstall it at their next sync."""
    with calling(asked) as client:
        print_answer(client.delete_wheel(wheel_name), output)
