"""Programs that end when a test says so, and how."""

from __future__ import annotations

import asyncio
from pathlib import Path

from pyoco_server.core.programs.report import ErrorCode, Report
from pyoco_server.core.states import RunState
from pyoco_server.executors.program.port import ArchiveFile, ProgramOutcome, ProgramWork
from support.waiting import eventually

__all__ = ["DONE", "PretendedExecutor", "PretendedProgram"]

DONE = Report(status=RunState.COMPLETED, exit_code=0, stdout=b"done\n", started_at=1.0, ended_at=2.0, run_seconds=1.0)
_CANCELLED = Report(status=RunState.CANCELLED, error_code=ErrorCode.CANCELLED, exit_code=-15, stdout=b"so far")
_KILLED = Report(status=RunState.FAILED, error_code=ErrorCode.WORKER_ERROR)


class PretendedProgram:
    """One attempt under way."""

    def __init__(self, work: ProgramWork) -> None:
        self.work = work
        self.inputs: dict[str, bytes] = {}
        self.is_killed = self.is_cancelled = False
        #: A kill takes its time: until `end`.
        self.dies_slowly = False
        self._outcome: asyncio.Future[ProgramOutcome] = asyncio.get_running_loop().create_future()

    async def outcome(self) -> ProgramOutcome:
        return await asyncio.shield(self._outcome)

    def end(self, report: Report = DONE, archive: ArchiveFile | None = None) -> None:
        if not self._outcome.done():
            self._outcome.set_result(ProgramOutcome(report, archive))

    def cancel(self, grace_seconds: float | None = None) -> None:
        self.is_cancelled = True
        self.end(_CANCELLED)

    def kill(self) -> None:
        self.is_killed = True
        if not self.dies_slowly:
            self.end(_KILLED)

    async def read_inputs(self) -> dict[str, bytes]:
        """As an executor does before it starts the program."""
        for file in self.work.files:
            self.inputs[file.name] = b"".join([piece async for piece in file.open()])
        return self.inputs


class PretendedExecutor:
    """Begins whatever it is given. `ends_at_once`: each program ends as soon as it has begun."""

    def __init__(self, *, ends_at_once: bool = False) -> None:
        self.programs: list[PretendedProgram] = []
        self.ends_at_once = ends_at_once
        self.is_started = self.is_stopped = False

    async def start(self) -> None:
        self.is_started = True

    async def stop(self) -> None:
        self.is_stopped = True
        for program in self.programs:
            program.kill()

    def has(self, exec_name: str) -> bool:
        return bool(exec_name)

    def names(self) -> tuple[str, ...]:
        """Lists no programs, but can run any."""
        return ()

    def begin(self, work: ProgramWork) -> PretendedProgram:
        program = PretendedProgram(work)
        self.programs.append(program)
        if self.ends_at_once:
            program.end()
        return program

    async def begun(self, count: int = 1) -> PretendedProgram:
        """The last of the first `count` programs. Waits for it."""
        await eventually(lambda: len(self.programs) >= count)
        return self.programs[count - 1]


def an_archive_file(folder: Path, data: bytes) -> ArchiveFile:
    import hashlib

    path = folder / f"{hashlib.sha256(data).hexdigest()}.zip"
    path.write_bytes(data)
    return ArchiveFile(path, len(data), hashlib.sha256(data).hexdigest())
