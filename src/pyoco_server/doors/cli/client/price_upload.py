"""The `price upload` command: upload files that packs read."""

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


def _checked_type(ctx: click.Context, param: click.Parameter, content_type: str | None) -> str | None:
    if content_type is not None and (
        not content_type.isascii()
        or not content_type.isprintable()
        or "/" not in content_type
        or content_type != content_type.strip()
    ):
        raise click.BadParameter("it must be a type, for example image/png")
    return content_type


@click.command(
    "upload",
    cls=Command,
    example="""\
pyoco-client price upload scan.png page-2.png
pyoco-client price submit ocr --input images="$(pyoco-client price upload scan.png)" --max-cost-usd 0.25 --wait
pyoco-client price upload invoice.tiff --full""",
)
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option(
    "--content-type", metavar="TYPE", callback=_checked_type, help="Content type of all files. [default: by file name]"
)
@click.option("--full", is_flag=True, help="Print all details of each file, including digest, size, type and expiry.")
@click.pass_obj
def upload(asked: Asked, files: tuple[str, ...], content_type: str | None, full: bool) -> None:
    """Upload files, and print a JSON list that can be used as the `images` input.

    A file that is already stored is not stored twice, so the command can be repeated.
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
    """Open the source of an upload. A pipe stays open, because what was read from it cannot be read again.

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
            if is_file:  # reopened when it is uploaded: there may be thousands of files
                return path
            opened.push(opening.pop_all())
            return source
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read {file}: {error}") from error
