"""The `program` commands: run a program, and fetch the files it produced."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from pyoco_server.client.connection import Asked
from pyoco_server.doors.cli.client import arguments
from pyoco_server.doors.cli.client.calling import calling
from pyoco_server.doors.cli.client.output import (
    coloured,
    note,
    print_answer,
    print_json,
    print_table,
    safe,
    span,
)
from pyoco_server.doors.cli.client.progress import transferring
from pyoco_server.doors.cli.client.run_ids import full_run_id
from pyoco_server.doors.cli.client.run_text import print_accepted
from pyoco_server.doors.cli.client.start import start_options
from pyoco_server.doors.cli.client.submit import key_option, retry_option
from pyoco_server.doors.cli.client.times import DurationType
from pyoco_server.doors.cli.client.waiting import WaitedRun, timeout_option, waited
from pyoco_server.doors.cli.shell import Command, RenamedOption
from pyoco_server.errors import UsageError

if TYPE_CHECKING:
    from pyoco_server.http_client import PyocoHttpClient

__all__ = ["artifacts", "exec_program", "submit_exec"]

F = TypeVar("F", bound=Callable[..., Any])

#: The command succeeded, but the job did not complete.
_NOT_COMPLETED = 2
_ARCHIVE = "output.zip"
_STREAMS = {"stdout.txt": "stdout", "stderr.txt": "stderr"}


@dataclass(frozen=True, kw_only=True)
class _After:
    """What to do after the job was accepted."""

    wait: bool
    out: str | None
    timeout_sec: float | None
    output: str | None

    @property
    def stays(self) -> bool:
        return self.wait or self.out is not None or self.timeout_sec is not None


def _job_options(function: F) -> F:
    for option in (
        click.option(
            "--output",
            type=click.Choice(["json", "table", "text"]),
            help="json: print the run instead of the program's output.  [default: text; without --wait json in a pipe]",
        ),
        click.option("--json", "output", flag_value="json", help="The same as --output json."),
        timeout_option,
        click.option("--out", metavar="DIR", help="Wait, then unpack the files of the program into this directory."),
        click.option("--wait", is_flag=True, help="Wait for the program to finish and print its output."),
        key_option,
        start_options,
        click.option(
            "--run-timeout",
            "run_timeout_sec",
            cls=RenamedOption,
            old_name="--run-timeout-sec",
            type=DurationType(seconds_min=1, seconds_max=86_400),
            metavar="DURATION",
            help="How long the program may run: 90s, 2h, or seconds.",
        ),
        retry_option,
        click.option("--group", help="Group that queues the job. [default: the server's own group]"),
        click.option("--client-id", metavar="ID", help="Client of the job. [default: by the API key]"),
        click.option("--job-id", metavar="UUID", help="Job id: submitting the same job again under it is safe."),
        click.option("--file", "files", multiple=True, metavar="PATH", help="An input file; may be repeated."),
    ):
        function = option(function)
    return function


@click.command(
    "exec",
    cls=Command,
    example="""\
pyoco-client program run calcA --file in.txt --wait --out results -- --n 3
pyoco-client program run render --file scene.blend --client-id studio --json""",
)
@click.argument("name")
@click.argument("args", nargs=-1, type=click.UNPROCESSED, metavar="[-- ARGS...]")
@_job_options
@click.pass_obj
def exec_program(asked: Asked, /, name: str, args: Sequence[str], **given: Any) -> int:
    """Run a program on a worker, with arguments and files.

    With --wait or --out the exit code is 0 if the program completed, and 2 if it failed, was cancelled or was
    abandoned. 1 means that the request itself failed, or that the wait timed out.
    """
    return _run(asked, name, args, **given)


@click.command(
    "submit-exec",
    cls=Command,
    example="pyoco-client program submit --exec calcA --arg 3 --file in.txt --wait --out results",
)
@click.option("--exec", "name", required=True, metavar="NAME", help="The program.")
@click.option("--arg", "args", multiple=True, metavar="ARG", help="An argument; may be repeated.")
@_job_options
@click.pass_obj
def submit_exec(asked: Asked, /, name: str, args: Sequence[str], **given: Any) -> int:
    """Like `program run`, but every argument is an option, for generated command lines."""
    return _run(asked, name, args, **given)


@click.command(
    "artifacts",
    cls=Command,
    example="""\
pyoco-client program artifacts RUN_ID
pyoco-client program artifacts RUN_ID --out results
pyoco-client program artifacts RUN_ID --save out.zip""",
)
@arguments.run_id
@click.option("--out", metavar="DIR", help="Unpack the archive into this directory.")
@click.option("--save", metavar="PATH", help="Save the archive as a zip file.")
@arguments.output_option("table")
@click.pass_obj
def artifacts(asked: Asked, run_id: str, out: str | None, save: str | None, output: str) -> None:
    """List or fetch the files that a program has produced."""
    with calling(asked) as client:
        run_id = full_run_id(client, run_id)
        if out is None and save is None:
            found = client.get_artifacts(run_id)
            print_json(found) if output == "json" else print_table(found, ("name", "size", "sha256"))
        if save is not None:
            with transferring(_ARCHIVE) as progress:
                print_answer(client.save_artifact(run_id, save, progress=progress), output)
        if out is not None:
            print_answer({"run_id": run_id, "files": _unpacked(client, run_id, out)}, output)


def _run(
    asked: Asked,
    name: str,
    args: Sequence[str],
    *,
    files: Sequence[str],
    idempotency_key: str | None,
    run_timeout_sec: float | None,
    start: dict[str, Any],
    **more: Any,
) -> int:
    after = _After(**{field: more.pop(field) for field in ("wait", "out", "timeout_sec", "output")})
    if run_timeout_sec is not None:
        more["timeout_sec"] = int(run_timeout_sec) if run_timeout_sec.is_integer() else run_timeout_sec
    asked_for = {field: value for field, value in more.items() if value is not None} | start
    if "retry" in asked_for:
        asked_for["retry"] = asked_for["retry"] or None
    with calling(asked) as client:
        try:
            with transferring(name) as progress:
                accepted = client.submit_job(
                    name, args, list(files), idempotency_key=idempotency_key, progress=progress, **asked_for
                )
        except (OSError, ValueError, TypeError) as error:
            if isinstance(error, TimeoutError):
                raise
            raise UsageError(f"cannot send the files: {error}") from error
        if not after.stays:
            is_json = (after.output or ("text" if sys.stdout.isatty() else "json")) == "json"
            print_json(accepted) if is_json else print_accepted(accepted)
            return 0
        note(f"job {accepted['job_id']} is submitted as run {accepted['run_id']}")
        run_id, output = str(accepted["run_id"]), after.output or "text"
        return _conclude(client, waited(asked, client, run_id, after.timeout_sec, output, needs_all=True), after)


def _conclude(client: PyocoHttpClient, ended: WaitedRun, after: _After) -> int:
    """Print the program's output unless that was done while it ran, fetch its files, and report its outcome.

    Return the exit code.
    """
    snapshot = ended.snapshot
    run_id, status = str(snapshot["run_id"]), str(snapshot["status"])
    if after.output == "json":
        print_json(snapshot)
    elif not ended.is_printed:
        _show_streams(client, snapshot)
    if after.out is not None:
        if any(each["name"] == _ARCHIVE for each in client.get_artifacts(run_id)):
            names = _unpacked(client, run_id, after.out)
            note(f"unpacked into {after.out}: {len(names)}")
        else:
            note("the program has produced no files")
    code = snapshot.get("exit_code")
    took = snapshot.get("run_seconds")
    outcome = [coloured(status, sys.stderr)]
    outcome += [f"exit code {code}"] if code is not None else []
    outcome += [span(took)] if took is not None else []
    outcome += [safe(snapshot["error"])] if status != "COMPLETED" and snapshot.get("error") else []
    click.echo(", ".join(outcome), err=True)
    return 0 if status == "COMPLETED" else _NOT_COMPLETED


def _show_streams(client: PyocoHttpClient, snapshot: Mapping[str, Any]) -> None:
    run_id = str(snapshot["run_id"])
    names = {each["name"] for each in client.get_artifacts(run_id)}
    for name, stream in _STREAMS.items():
        if name in names:
            _echo(client.read_artifact(run_id, name), is_error=stream == "stderr")
        if snapshot.get(f"{stream}_truncated"):
            note(f"only the last part of {stream} was kept")


def _echo(data: bytes, *, is_error: bool) -> None:
    """Write the bytes unchanged for a program; on a terminal, with control characters escaped."""
    stream = sys.stderr if is_error else sys.stdout
    if stream.isatty():
        lines = data.decode("utf-8", "replace").split("\n")
        click.echo("\n".join(safe(line.expandtabs()) for line in lines), nl=False, err=is_error)
    else:
        click.echo(data, nl=False, err=is_error)


def _unpacked(client: PyocoHttpClient, run_id: str, out: str) -> list[str]:
    """Fetch the archive, verify its digest, and unpack it completely or not at all.

    Raises UsageError if the directory cannot be written, and InvalidArchive.
    """
    from pyoco_server.config.grid import GridConfig  # noqa: PLC0415
    from pyoco_server.executors.program.archives import unpack  # noqa: PLC0415 - only needed to unpack

    bytes_max = GridConfig.read(os.environ).exec_output_max_bytes
    try:
        with tempfile.TemporaryDirectory(prefix="pyoco-") as folder:
            with transferring(_ARCHIVE) as progress:
                saved = client.save_artifact(run_id, folder, progress=progress)
            with Path(saved["path"]).open("rb") as file:
                return unpack(file, Path(out), bytes_max=bytes_max)
    except OSError as error:
        raise UsageError(f"cannot write the files into {out}: {error}") from error
