"""One attempt, as the worker sees it: staging its inputs, running its program, packing its files."""

from __future__ import annotations

import asyncio
from pathlib import Path

from pyoco_server.core.programs.report import ErrorCode, Report
from pyoco_server.executors.program.line import RunnerConnection
from pyoco_server.executors.program.port import ArchiveFile, ProgramOutcome, ProgramWork
from pyoco_server.executors.program.verdict import CANCELLED_UNSTARTED, failure
from pyoco_server.executors.program.wire import CANCEL, KILL, Input, Order

__all__ = ["Execution"]


class Execution:
    """One attempt in progress (`port.ProgramExecution`)."""

    def __init__(self, work: ProgramWork, number: int, place: str) -> None:
        self.work, self.number = work, number
        #: The path of its directory.
        self.place = place
        #: Set while its inputs are being staged.
        self.staging: asyncio.Task[None] | None = None
        #: Set once the attempt was sent to the runner.
        self.line: RunnerConnection | None = None
        self._outcome: ProgramOutcome | None = None
        self._waiting: list[asyncio.Future[None]] = []
        self._unstarted = CANCELLED_UNSTARTED

    async def outcome(self) -> ProgramOutcome:
        # One future per waiter: cancelling one does not affect the others.
        while self._outcome is None:
            self._waiting.append(asyncio.get_running_loop().create_future())
            await self._waiting[-1]
        return self._outcome

    def cancel(self, grace_seconds: float | None = None) -> None:
        self._stop(CANCEL, grace_seconds)

    def kill(self) -> None:
        self._unstarted = failure(ErrorCode.WORKER_ERROR, "the worker ended it")
        self._stop(KILL)

    def _stop(self, how: str, grace_seconds: float | None = None) -> None:
        if self.line is not None:
            self.line.send(how, (self.number, grace_seconds))
        elif self.staging is not None:
            self.staging.cancel()

    @property
    def staged(self) -> dict[str, tuple[int, str]]:
        """Size and sha256 of each input."""
        return {file.name: (file.size, file.sha256) for file in self.work.files}

    def order(self, inputs: tuple[Input, ...], *, is_made: bool) -> Order:
        work = self.work
        return Order(
            self.number,
            work.job_id,
            work.run_id,
            work.attempt,
            work.client_id,
            work.exec_name,
            tuple(work.args),
            float(work.timeout_sec),
            inputs,
            is_made,
        )

    def settle(self, report: Report, packed: tuple[str, int, str] | None = None) -> None:
        """Set the outcome. Only the first call has an effect."""
        if self._outcome is not None:
            return
        archive = None if packed is None else ArchiveFile(Path(packed[0]), *packed[1:])
        self._outcome = ProgramOutcome(report, archive)
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)

    def settle_unstarted(self) -> None:
        """Set the outcome of an attempt that was stopped before its program was started."""
        self.settle(self._unstarted)
