"""Simulated programs: they take virtual time, exit with a code, leave outputs, fail to start or ignore SIGTERM."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from pyoco_server.core.programs.report import ErrorCode, Report
from pyoco_server.core.states import RunState
from pyoco_server.errors import NotFound, PyocoError
from pyoco_server.executors.program.port import ArchiveFile, ProgramExecution, ProgramOutcome, ProgramWork
from simulation.hosts import HostedWork
from simulation.process import CURRENT, Process

__all__ = ["EXECS", "KILLED", "MISSING", "Behaviour", "SimulatedExecutor", "SimulatedProgram"]

#: The programs that every worker has, and one that none has.
EXECS = ("calc", "render")
MISSING = "missing"
#: Seconds between SIGTERM and the end of a program, without and with a SIGKILL.
_TERM_SECONDS, _KILL_SECONDS = 0.05, 5.0
_PIECES = 4


@dataclass(frozen=True)
class Behaviour:
    """What a program does. It travels as the only argument of the job."""

    #: Makes the job different from every other.
    name: str
    seconds: float = 0.0
    #: `complete`, `fail`, `signal`, `missing` (no such program), `broken` (the worker fails each time) or `flaky` (it
    #: fails the first time).
    end: str = "complete"
    ignores_term: bool = False
    #: Bytes of standard output and of the archive.
    stdout_bytes: int = 0
    archive_bytes: int = 0
    #: How long the archive takes to be read.
    archive_seconds: float = 0.0

    def args(self) -> tuple[str, ...]:
        return (json.dumps(asdict(self)),)

    @classmethod
    def of(cls, args: tuple[str, ...] | list[str]) -> Behaviour:
        return cls(**json.loads(args[0]))

    def report(self, attempt: int) -> Report:
        """How the attempt with this number ends by itself."""
        if self.end == "broken" or (self.end == "flaky" and attempt == 1):
            return Report(status=RunState.FAILED, error_code=ErrorCode.WORKER_ERROR, error="simulated worker error")
        if self.end == "missing":
            return Report(status=RunState.FAILED, error_code=ErrorCode.EXEC_NOT_FOUND, error="no such program")
        stdout = b"x" * self.stdout_bytes
        if self.end == "fail":
            code = ErrorCode.EXIT_NONZERO
            return Report(status=RunState.FAILED, error_code=code, error="exit 3", exit_code=3, stdout=stdout)
        if self.end == "signal":
            code = ErrorCode.SIGNALED
            return Report(status=RunState.FAILED, error_code=code, error="signal 9", exit_code=-9, stdout=stdout)
        return Report(status=RunState.COMPLETED, exit_code=0, stdout=stdout, run_seconds=self.seconds)


class _Archive(ArchiveFile):
    """An archive in memory."""

    def __init__(self, data: bytes, seconds: float) -> None:
        super().__init__(Path("archive.zip"), len(data), hashlib.sha256(data).hexdigest())
        object.__setattr__(self, "_data", data)
        object.__setattr__(self, "_seconds", seconds)

    async def pieces(self) -> AsyncIterator[bytes]:
        data: bytes = vars(self)["_data"]
        size = -(-len(data) // _PIECES)
        for begin in range(0, len(data), size):
            await asyncio.sleep(vars(self)["_seconds"] / _PIECES)
            yield data[begin : begin + size]

    def discard(self) -> None:
        """Nothing is on disk."""


class SimulatedProgram:
    """One attempt."""

    def __init__(self, work: ProgramWork, hosted: HostedWork[ProgramOutcome]) -> None:
        self._work, self._hosted = work, hosted
        self._behaviour = Behaviour.of(list(work.args))
        self._reading = asyncio.get_running_loop().create_task(self._start())

    async def _start(self) -> None:
        """Read the inputs, then run."""
        try:
            for file in self._work.files:
                digest = hashlib.sha256()
                async for piece in file.open():
                    digest.update(piece)
                if digest.hexdigest() != file.sha256:
                    self._end(Report(status=RunState.FAILED, error_code=ErrorCode.WORKER_ERROR, error="wrong input"))
        except NotFound:
            self._end(Report(status=RunState.FAILED, error_code=ErrorCode.INPUT_MISSING, error="inputs are gone"))
        except PyocoError as error:
            self._end(Report(status=RunState.FAILED, error_code=ErrorCode.WORKER_ERROR, error=str(error)))
        else:
            self._hosted.end_after(self._behaviour.seconds, self._result)

    def _result(self) -> ProgramOutcome:
        report, size = self._behaviour.report(self._work.attempt), self._behaviour.archive_bytes
        has_archive = size and report.error_code is not ErrorCode.WORKER_ERROR
        return ProgramOutcome(report, _Archive(b"z" * size, self._behaviour.archive_seconds) if has_archive else None)

    def _end(self, report: Report) -> None:
        self._hosted.conclude(lambda: ProgramOutcome(report, None))

    async def outcome(self) -> ProgramOutcome:
        return await self._hosted.outcome()

    def cancel(self, grace_seconds: float | None = None) -> None:
        seconds = _KILL_SECONDS if self._behaviour.ignores_term else _TERM_SECONDS
        report = Report(status=RunState.CANCELLED, error_code=ErrorCode.CANCELLED, exit_code=-15)
        self._hosted.end_after(seconds, lambda: ProgramOutcome(report, None))

    def kill(self) -> None:
        self._end(Report(status=RunState.FAILED, error_code=ErrorCode.WORKER_ERROR, error="killed"))


#: How a killed program ends.
KILLED = Report(status=RunState.FAILED, error_code=ErrorCode.SIGNALED, error="signal 9", exit_code=-9)


class SimulatedExecutor:
    """`executors/program/port.py` with programs in simulated processes."""

    def __init__(
        self,
        new_host: Callable[[], Process],
        on_begin: Callable[[str, int], None],
        on_host_death: Callable[[str, int], None],
    ) -> None:
        """`on_begin`: called with the run id and the attempt of each program that is started; `on_host_death`: with
        those of each that was killed."""
        self._new_host, self._on_begin, self._on_host_death = new_host, on_begin, on_host_death
        self._running: dict[int, SimulatedProgram] = {}
        self._count = 0

    async def start(self) -> None:
        """Nothing to start."""

    async def stop(self) -> None:
        for program in list(self._running.values()):
            program.kill()

    def has(self, exec_name: str) -> bool:
        return exec_name != MISSING

    def names(self) -> tuple[str, ...]:
        return EXECS

    def begin(self, work: ProgramWork) -> ProgramExecution:
        self._on_begin(work.run_id, work.attempt)
        self._count += 1
        number = self._count

        def died() -> ProgramOutcome:
            self._on_host_death(work.run_id, work.attempt)
            return ProgramOutcome(KILLED, None)

        hosted = HostedWork[ProgramOutcome](self._new_host(), CURRENT.get(), died)
        hosted.on_end = lambda: self._forget(number)
        program = self._running[number] = SimulatedProgram(work, hosted)
        return program

    def _forget(self, number: int) -> None:
        self._running.pop(number, None)
