"""`price upload`: bring files that packs read."""

from __future__ import annotations

from pathlib import Path

import click

from pyoco_server.doors.cli.client.calling import calling
from pyoco_server.doors.cli.client.connection import Asked
from pyoco_server.doors.cli.client.output import note, print_json
from pyoco_server.doors.cli.client.progress import transferring
from pyoco_server.doors.cli.shell import Command
from pyoco_server.errors import UsageError

__all__ = ["upload"]


@click.command(
    "upload",
    cls=Command,
    example="""\
pyoco-client price upload scan.png page-2.png
pyoco-client price submit ocr --input images="$(pyoco-client price upload scan.png)" --max-cost-usd 0.2500 --wait
pyoco-client price upload invoice.tiff --full""",
)
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--content-type", metavar="TYPE", help="Of all these files. [default: by each name]")
@click.option("--full", is_flag=True, help="Print all that is known of each file: digest, size, type and expiry, too.")
@click.pass_obj
def upload(asked: Asked, files: tuple[str, ...], content_type: str | None, full: bool) -> None:
    """Upload files, and print a JSON list that goes into `images` as it is.

    A file that is there already is not stored twice, so the same command may be repeated.
    """
    paths = [_readable(file) for file in files]
    stored = []
    with calling(asked) as client:
        for path in paths:
            with transferring(path.name) as progress:
                stored.append(client.upload_input(path, content_type, progress=progress))
    note(f"kept until {min(each['expires_at'] for each in stored)}")
    print_json(stored if full else [each["image"] for each in stored])


def _readable(file: str) -> Path:
    """Raises UsageError before anything is sent."""
    path = Path(file)
    try:
        with path.open("rb") as opened:
            if not opened.read(1):
                raise UsageError(f"{file} is empty")
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read {file}: {error}") from error
    return path
