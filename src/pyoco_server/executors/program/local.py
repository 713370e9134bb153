"""Programs on this machine: a worker's requests, executed by a runner and by threads.

The runner, a separate process, does everything that is fast (`runner.py`). Slow work is done here, in threads: inputs
above a quarter of a megabyte, archives of many or large files, and the removal of those.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import os
import sys
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, replace
from typing import Any, ParamSpec, TypeVar

from pyoco_server.core.programs.admission import matches_any
from pyoco_server.core.programs.faults import GridRefused
from pyoco_server.core.programs.names import check_file_names, is_exec_name, read_job_id
from pyoco_server.core.programs.report import ErrorCode, Report
from pyoco_server.errors import UsageError
from pyoco_server.executors.capture.port import Captured, Collector
from pyoco_server.executors.program.directory import WorkDirectory, make, remove
from pyoco_server.executors.program.execution import Execution
from pyoco_server.executors.program.find import ProgramNotFound, find, names_in
from pyoco_server.executors.program.leftovers import (
    check_root,
    clean_root,
    end_earlier_attempts,
    end_processes,
)
from pyoco_server.executors.program.line import RunnerConnection
from pyoco_server.executors.program.outputs import Limits, Staged, TooMuch, pack_left
from pyoco_server.executors.program.port import ProgramWork
from pyoco_server.executors.program.printing import Captures
from pyoco_server.executors.program.settings import RunnerSettings
from pyoco_server.executors.program.staging import NotStaged, are_small, read_small, write_large
from pyoco_server.executors.program.verdict import failure, verdict
from pyoco_server.executors.program.wire import BEGIN, LINES, Input, ProcessEnded
from pyoco_server.logs import get_logger

__all__ = ["LocalPrograms"]

log = get_logger(__name__)

#: Concurrent archives and large inputs: compressing takes one core each.
_THREADS = 4
#: Pause between attempts to restart the runner.
_RESTART_SECONDS = 0.5
#: How long a stop waits for lines of programs that have ended.
_LINES_SECONDS = 2.0
_GONE = "the process that starts programs ended"

P = ParamSpec("P")
T = TypeVar("T")


class LocalPrograms:
    """Runs programs on this machine (`port.ProgramExecutor`). `variables` are the environment variables of this
    process; `collector` gets what programs print, beside their reports."""

    def __init__(
        self, settings: RunnerSettings, variables: Mapping[str, str], collector: Collector | None = None
    ) -> None:
        self._captures = None if collector is None else Captures(collector)
        if collector is not None:
            settings = replace(settings, log_limits=astuple(collector.limits))
        self.settings, self._variables = settings, variables
        self._threads = ThreadPoolExecutor(_THREADS, "programs")
        self._numbers = itertools.count(1)
        self._line: RunnerConnection | None = None
        self._staging: set[Execution] = set()
        #: Attempts that were sent to the runner.
        self._running: dict[int, Execution] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_stopping = False
        #: Number of runners that had to be replaced.
        self.restarts = 0

    async def start(self) -> None:
        if sys.platform != "linux":
            raise UsageError("programs are run on Linux only")
        await self._in_thread(_check_programs, self.settings.exec_dir)
        await self._in_thread(check_root, self.settings.work_root)
        count = await self._in_thread(clean_root, self.settings.work_root, _tell)
        if count:
            log.info("removed job directories of workers that exited", count=count)
        await self._in_thread(functools.partial(os.makedirs, self.settings.packed_dir, 0o700, exist_ok=True))
        try:
            self._line = await self._open_line()
        except OSError as error:
            raise UsageError(f"programs cannot be run: {error}") from error

    async def stop(self) -> None:
        self._is_stopping = True
        for execution in list(self._staging):
            execution.kill()
        if self._captures is not None:
            await self._captures.settle(_LINES_SECONDS)
        if self._line is not None:
            await self._line.close()
        for execution in list(self._running.values()):
            execution.settle(failure(ErrorCode.WORKER_ERROR, "the worker stopped"))
        self._running.clear()
        while self._tasks:  # an archive that is being packed is completed
            await asyncio.wait(self._tasks)
        self._threads.shutdown(wait=False)
        with contextlib.suppress(OSError):  # archives that were never fetched
            os.rmdir(self.settings.packed_dir)

    def has(self, exec_name: str) -> bool:
        if not is_exec_name(exec_name) or not matches_any(self.settings.allow, exec_name):
            return False
        try:
            os.close(find(self.settings.exec_dir, exec_name).descriptor)
        except ProgramNotFound:
            return False
        return True

    def names(self) -> tuple[str, ...]:
        return tuple(filter(self.has, names_in(self.settings.exec_dir)))

    def begin(self, work: ProgramWork) -> Execution:
        place = f"{self.settings.work_root}/{work.job_id}/a{work.attempt}"
        execution = Execution(work, next(self._numbers), place)
        refusal = self._refusal(work)
        if refusal is not None:
            execution.settle(refusal)
        elif not work.files and work.attempt == 1:
            self._order(execution, (), is_made=False)
        else:
            self._staging.add(execution)
            execution.staging = self._in_background(self._stage(execution), "staging")
            execution.staging.add_done_callback(functools.partial(self._on_staged, execution))
        return execution

    def _refusal(self, work: ProgramWork) -> Report | None:
        """Repeat the checks of the door: requests are not trusted (GRID-90, GRID-96). Accesses no file."""
        if not is_exec_name(work.exec_name) or not matches_any(self.settings.allow, work.exec_name):
            return failure(ErrorCode.EXEC_NOT_ALLOWED, "this worker may not run that program")
        try:
            if read_job_id(work.job_id) != work.job_id or work.attempt < 1:
                return failure(ErrorCode.WORKER_ERROR, "an attempt needs a JobId and a number")
            check_file_names(file.name for file in work.files)
        except GridRefused as error:
            is_name = error.field == "Files"
            return failure(ErrorCode.BAD_FILE_NAME if is_name else ErrorCode.WORKER_ERROR, error.message)
        return None

    def _order(self, execution: Execution, inputs: tuple[Input, ...], *, is_made: bool) -> None:
        line = self._line
        if line is None or not line.is_open:
            execution.settle(failure(ErrorCode.WORKER_ERROR, _GONE))
            return
        execution.line = line
        self._running[execution.number] = execution
        if self._captures is not None:
            work = execution.work
            self._captures.expect(execution.number, Captured(work.run_id, work.attempt))
        line.send(BEGIN, tuple(execution.order(inputs, is_made=is_made)))

    async def _stage(self, execution: Execution) -> None:
        """Get the inputs, then order the start. If it is cancelled, nothing was started and nothing is left."""
        work = execution.work
        opened: list[WorkDirectory] = []
        try:
            if work.attempt > 1:
                await self._in_thread(end_earlier_attempts, work.job_id)
            if are_small(work.files):
                self._order(execution, await read_small(work.files), is_made=False)
                return
            await self._in_thread(self._open_place, work, opened)
            self._order(execution, await write_large(work.files, opened[0], self._in_thread), is_made=True)
        except NotStaged as error:
            execution.settle(failure(error.code, error.text))
        except ProgramNotFound as error:
            execution.settle(failure(ErrorCode.EXEC_NOT_FOUND, str(error)))
        except OSError as error:
            execution.settle(failure(ErrorCode.WORKER_ERROR, f"an input cannot be written: {error.strerror}"))
        except Exception as error:  # noqa: BLE001 - any failure of the source must end the attempt
            log.error("could not stage an input", run_id=work.run_id, error=error)
            execution.settle(failure(ErrorCode.WORKER_ERROR, "an input could not be read just now"))
        finally:
            for place in opened:
                place.close()
                if execution.line is None:
                    await self._remove(place.path)

    def _on_staged(self, execution: Execution, task: asyncio.Task[None]) -> None:
        """Settle a cancelled attempt, even if it was cancelled before `_stage` ran at all."""
        self._staging.discard(execution)
        if task.cancelled():
            execution.settle_unstarted()

    def _open_place(self, work: ProgramWork, opened: list[WorkDirectory]) -> None:
        """Append to `opened` instead of returning: a cancellation of the caller would lose a returned directory."""
        os.close(find(self.settings.exec_dir, work.exec_name).descriptor)  # before gigabytes are fetched for nothing
        opened.append(make(self.settings.work_root, work.job_id, work.attempt, self.settings.owner))

    # Messages from the runner.

    async def _open_line(self) -> RunnerConnection:
        line = RunnerConnection(self._on_message, self._on_lost)
        await line.open(self.settings, self._variables)
        return line

    def _on_message(self, message: tuple[Any, ...]) -> None:
        if message[0] == LINES:
            if self._captures is not None:
                self._captures.take(*message[1:])
            return
        ended = ProcessEnded(*message)
        if self._captures is not None:
            self._captures.end(ended.number, has_lines=ended.has_lines)
        execution = self._running.pop(ended.number, None)
        if execution is None:
            return
        if ended.left is None:
            execution.settle(verdict(ended, execution.work.timeout_sec), ended.packed)
        else:
            self._in_background(self._take_over(execution, ended, *ended.left), "packing")

    async def _take_over(self, execution: Execution, ended: ProcessEnded, place: str, program: str) -> None:
        """Pack files that are too large or too many for the runner, then remove the directory."""
        packed, spoiled = None, None
        try:
            if ended.stopped != "kill":
                limits = Limits(self.settings.output_bytes_max)
                staged = Staged(program, execution.staged)
                packed = await self._in_thread(pack_left, place, staged, limits, self.settings.packed_path(place))
        except TooMuch as error:
            spoiled = ErrorCode.OUTPUT_TOO_LARGE, str(error)
        except OSError as error:
            spoiled = ErrorCode.WORKER_ERROR, f"its files could not be kept: {error.strerror}"
        if not self.settings.keeps_jobs:
            await self._remove(place)
        report = verdict(ended, execution.work.timeout_sec, spoiled)
        execution.settle(report, None if packed is None else (packed.path, packed.size, packed.sha256))

    async def _remove(self, place: str) -> None:
        try:
            await self._in_thread(remove, place)
        except OSError as error:
            _tell(place, error)

    def _on_lost(self, line: RunnerConnection) -> None:
        """Handle the exit of the runner. If it was unexpected, its programs may still run: end them, and start a new
        runner."""
        self._line = None
        if self._captures is not None:
            self._captures.lose()
        lost = list(self._running.values())
        self._running.clear()
        if self._is_stopping:
            for execution in lost:
                execution.settle(failure(ErrorCode.WORKER_ERROR, "the worker stopped"))
            return
        log.error("the process that starts programs exited; restarting it", pid=line.pid, programs=len(lost))
        self.restarts += 1
        self._in_background(self._replace(line, lost), "runner")

    async def _replace(self, line: RunnerConnection, lost: list[Execution]) -> None:
        await line.close()
        await self._in_thread(end_processes, [execution.place for execution in lost])
        for execution in lost:
            await self._remove(execution.place)
            execution.settle(failure(ErrorCode.WORKER_ERROR, _GONE))
        while not self._is_stopping and self._line is None:
            try:
                self._line = await self._open_line()
            except OSError as error:
                log.error("could not start the process that starts programs", error=error)
                await asyncio.sleep(_RESTART_SECONDS)
        if self._is_stopping and self._line is not None:
            await self._line.close()

    def _in_background(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _in_thread(self, work: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """Run in a thread and wait for its end even if this call is cancelled, so that no work continues unobserved."""
        bound = functools.partial(work, *arguments, **named)
        working = asyncio.get_running_loop().run_in_executor(self._threads, bound)
        try:
            return await asyncio.shield(working)
        except asyncio.CancelledError:
            while not working.done():
                with contextlib.suppress(asyncio.CancelledError):  # cancelled again: the work still has to finish
                    await asyncio.wait({working})
            working.exception()  # mark the exception as retrieved
            raise


def _check_programs(exec_dir: str) -> None:
    if not os.path.isdir(exec_dir):
        raise UsageError(f"EXEC_DIR={exec_dir} is no directory; example: EXEC_DIR=/opt/grid/exe")


def _tell(place: str, error: OSError) -> None:
    log.error("could not remove a job directory", path=place, error=error)
