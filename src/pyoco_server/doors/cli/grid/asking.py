"""What `client` and `clientx` have in common: submit jobs and print the results as JSON lines (section 17.1)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import click

from pyoco_server.client.frames.job import completed_request
from pyoco_server.config import GridConfig, LogSettings
from pyoco_server.core.programs.names import check_client_id, read_job_id
from pyoco_server.doors.cli.client.progress import counting
from pyoco_server.doors.cli.grid.outward import tls_to_doors
from pyoco_server.doors.cli.signals import StopSignal
from pyoco_server.errors import PyocoError, UsageError
from pyoco_server.executors.program.archives import unpack
from pyoco_server.grid_client import (
    GridMultiClient,
    GridRefused,
    JobRequest,
    JobResult,
    LinkSettings,
    Timers,
)
from pyoco_server.logs import configure_logging

__all__ = ["RequestPlan", "carry_out", "link_settings", "plan_of", "quiet_logs"]

#: More than a frame can hold; larger files are rejected without reading them.
_FILE_BYTES_MAX = 4 * 1024 * 1024
_COUNT_DEFAULT = 3
_IDS_SHOWN_MAX = 20
_REFUSED, _NOT_COMPLETED, _INTERRUPTED = 1, 2, 130


@dataclass(frozen=True, kw_only=True)
class RequestPlan:
    """A validated command line."""

    request: JobRequest
    count: int
    cancel: str | None
    out: Path | None
    #: The limit for the unpacked files of an archive.
    output_bytes_max: int
    shows_stats: bool


def plan_of(given: dict[str, Any], client_id: str, config: GridConfig) -> RequestPlan:
    """Read the input files and validate everything before connecting to a door. Raises UsageError, GridRefused."""
    count = given["count"] or (1 if given["job_id"] else _COUNT_DEFAULT)
    if given["job_id"] and count != 1:
        raise UsageError("--job-id names one job: it goes with --count 1")
    request = JobRequest(
        exec_name=given["exec_name"],
        args=tuple(given["args"]),
        files=_read(given["files"]),
        timeout_sec=given["timeout_sec"],
        job_id=read_job_id(given["job_id"]) if given["job_id"] else "",
        not_before=_not_before(given["delay"], given["not_before"], time.time()),
    )
    completed_request(request, check_client_id(client_id))
    return RequestPlan(
        request=request,
        count=count,
        cancel=read_job_id(given["cancel"]) if given["cancel"] else None,
        out=None if given["out"] is None else Path(given["out"]),
        output_bytes_max=config.exec_output_max_bytes,
        shows_stats=given["stats"],
    )


def _not_before(delay: float | None, not_before: float | None, now: float) -> float | None:
    """Return when the jobs may start (DELAY-9). Frames carry an instant only. Raises UsageError."""
    if delay is not None and not_before is not None:
        raise UsageError("--in and --at: give one of them")
    return not_before if delay is None else now + delay


def _read(paths: tuple[str, ...]) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    for path in map(Path, paths):
        if path.name in files:
            raise UsageError(f"--file: two files are called {path.name!r}")
        try:
            if path.stat().st_size > _FILE_BYTES_MAX:
                raise UsageError(f"--file {path.name!r} does not fit into a frame: send it with POST /jobs")
            files[path.name] = path.read_bytes()
        except OSError as error:
            raise UsageError(f"--file {path.name!r} cannot be read: {error.strerror}") from error
    return files


def link_settings(given: dict[str, Any], config: GridConfig) -> LinkSettings:
    """Build the settings of the connections to doors. Raises UsageError."""

    timeout = given["connect_timeout"]
    if timeout is not None and not timeout > 0:
        raise UsageError("--connect-timeout is a time above 0 in seconds")
    return LinkSettings(
        timers=Timers.of(config),
        tls=tls_to_doors(given),
        connect_timeout=timeout,
    )


async def carry_out(client: GridMultiClient, plan: RequestPlan) -> int:
    """Submit the jobs, wait for them and print their results. Return the exit code.

    The first signal ends the command: accepted jobs continue, and their ids are printed. A second one exits
    immediately. Raises GridRefused, and DoorUnreachable if no door accepts this client.
    """

    stop = StopSignal(at_once=lambda: os._exit(_INTERRUPTED))
    asking = asyncio.create_task(_Asking(client, plan).run())
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({asking, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not asking.done():
            _print_unfinished(stop.name, client.unfinished)
        return asking.result() if asking.done() else _INTERRUPTED
    finally:
        for task in (asking, stopping):
            task.cancel()
        await asyncio.wait({asking, stopping})
        if plan.shows_stats:
            _print_error(json.dumps(asdict(client.stats())))
        await client.close()


class _Asking:
    """Submits the jobs of one command and prints their results."""

    def __init__(self, client: GridMultiClient, plan: RequestPlan) -> None:
        self._client, self._plan = client, plan
        self._ended: asyncio.Queue[asyncio.Future[JobResult]] = asyncio.Queue()
        self._was_refused = self._did_not_complete = False

    async def run(self) -> int:

        await self._client.connect()
        if self._plan.cancel is not None:
            await self._print_result(self._client.cancel(self._plan.cancel))
            return _REFUSED if self._was_refused else 0
        submitting = asyncio.create_task(self._submit())
        try:
            with counting(f"jobs of {self._plan.request.exec_name}", self._plan.count) as advance:
                for _ in range(self._plan.count):
                    await self._print_result(await self._next(submitting))
                    advance(1)
        finally:
            submitting.cancel()
            await asyncio.wait({submitting})
        if self._was_refused:
            return _REFUSED
        return _NOT_COMPLETED if self._did_not_complete else 0

    async def _submit(self) -> None:
        for _ in range(self._plan.count):
            future = await self._client.submit(self._plan.request)
            future.add_done_callback(self._ended.put_nowait)

    async def _next(self, submitting: asyncio.Task[None]) -> asyncio.Future[JobResult]:
        """Wait for the next finished job. Raises the error that prevents the remaining jobs from being submitted."""
        ended = asyncio.create_task(self._ended.get())
        try:
            await asyncio.wait({ended, submitting}, return_when=asyncio.FIRST_COMPLETED)
            if not ended.done():
                submitting.result()
            return await ended
        finally:
            ended.cancel()

    async def _print_result(self, future: asyncio.Future[JobResult]) -> None:

        try:
            result = await future
        except GridRefused as error:
            self._was_refused = True
            _print_error(f"{error.text.err_id}: {error}{f' (job {error.job_id})' if error.job_id else ''}")
            return
        self._did_not_complete |= not result.is_completed
        members = result.members()
        if self._plan.out is not None:
            members["OutputArchive"] = None
            members["Out"] = await self._unpack(result, self._plan.out)
        click.echo(json.dumps(members, ensure_ascii=False))

    async def _unpack(self, result: JobResult, out: Path) -> str | None:
        """Return the directory of the files. None: the job produced none, or an error was printed."""
        try:
            out.mkdir(parents=True, exist_ok=True)  # noqa: ASYNC240 - once, and fast
            with tempfile.TemporaryDirectory(dir=out, prefix=".fetch-") as folder:
                archive = Path(folder, "output.zip")
                if not await self._client.save_output(result, archive):
                    return None
                target = out / result.job_id
                await asyncio.to_thread(_unpack, archive, target, self._plan.output_bytes_max)
                return str(target)
        except (PyocoError, OSError) as error:
            self._was_refused = True
            _print_error(f"the files of job {result.job_id} could not be unpacked: {error}")
            return None


def _unpack(archive: Path, target: Path, bytes_max: int) -> None:

    with archive.open("rb") as file:
        unpack(file, target, bytes_max=bytes_max)


def _print_unfinished(signal: str, unfinished: tuple[str, ...]) -> None:
    more = "" if len(unfinished) <= _IDS_SHOWN_MAX else f" and {len(unfinished) - _IDS_SHOWN_MAX} more"
    ids = ", ".join(unfinished[:_IDS_SHOWN_MAX]) + more
    _print_error(
        f"stopped by {signal}. Accepted jobs continue; to get their results, submit again with --job-id: "
        f"{ids or 'nothing is unfinished'}"
    )


def _print_error(line: str) -> None:
    with contextlib.suppress(BrokenPipeError):
        click.echo(line, err=True)


def quiet_logs() -> None:
    """Log to stderr, and only warnings and errors unless PYOCO_LOG_LEVEL is set: stdout is for results."""

    settings = LogSettings.from_env()
    if "PYOCO_LOG_LEVEL" not in os.environ:
        settings = replace(settings, log_level="WARNING")
    with contextlib.redirect_stdout(sys.stderr):  # the log handler keeps the stream it finds here
        configure_logging("pyoco-grid:client", settings)
