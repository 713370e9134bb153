"""`price upload`: bring files that packs read."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path
from typing import BinaryIO

import click

from pyoco_server.client.connection import Asked
from pyoco_server.doors.cli.client.calling import calling
from pyoco_server.doors.cli.client.output import note, print_json
from pyoco_server.doors.cli.client.progress import transferring
from pyoco_server.doors.cli.shell import Command
from pyoco_server.errors import UsageError

__all__ = ["upload"]


def _checked_type(ctx: click.Context, param: click.Parameter, told: str | None) -> str | None:
    if told is not None and (not told.isascii() or not told.isprintable() or "/" not in told or told != told.strip()):
        raise click.BadParameter("it must be a type, for example image/png")
    return told


@click.command(
    "upload",
    cls=Command,
    example="""\
pyoco-client price upload scan.png page-2.png
pyoco-client price submit ocr --input images="$(pyoco-client price upload scan.png)" --max-cost-usd 0.2500 --wait
pyoco-client price upload invoice.tiff --full""",
)
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option(
    "--content-type", metavar="TYPE", callback=_checked_type, help="Of all these files. [default: by each name]"
)
@click.option("--full", is_flag=True, help="Print all that is known of each file: digest, size, type and expiry, too.")
@click.pass_obj
def upload(asked: Asked, files: tuple[str, ...], content_type: str | None, full: bool) -> None:
    """Upload files, and print a JSON list that goes into `images` as it is.

    A file that is there already is not stored twice, so the same command may be repeated.
    """
    stored = []
    with contextlib.ExitStack() as opened:
        sources = [_readable(file, opened) for file in files]
        with calling(asked) as client:
            for file, source in zip(files, sources, strict=True):
                name = Path(file).name
                with transferring(name) as progress:
                    stored.append(client.upload_input(source, content_type, name=name, progress=progress))
    note(f"kept until {min(each['expires_at'] for each in stored)}")
    print_json(stored if full else [each["image"] for each in stored])


def _readable(file: str, opened: contextlib.ExitStack) -> Path | BinaryIO:
    """What is uploaded. A pipe stays open: what was read of it cannot be read again.

    Raises UsageError before anything is sent.
    """
    path = Path(file)
    try:
        with contextlib.ExitStack() as opening:
            source = opening.enter_context(path.open("rb"))
            found = os.fstat(source.fileno())
            is_file = stat.S_ISREG(found.st_mode)
            if not (found.st_size if is_file else source.peek(1)):
                raise UsageError(f"{file} is empty")
            if is_file:  # opened once more when it is its turn: there may be thousands
                return path
            opened.push(opening.pop_all())
            return source
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read {file}: {error}") from error
