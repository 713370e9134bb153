"""What is asked of whoever runs programs, and what comes back. An executor never sees a store, a queue or a door."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self

from pyoco_server.core.programs.report import Report

__all__ = ["ArchiveFile", "ProgramExecution", "ProgramExecutor", "ProgramOutcome", "ProgramWork", "WorkFile"]

_PIECE_BYTES = 1 << 18


@dataclass(frozen=True)
class WorkFile:
    """An input, and where its bytes are."""

    name: str
    size: int
    sha256: str
    #: Its bytes, in pieces. A NotFound, or a GridRefused with NOT_FOUND, that it raises ends the attempt with
    #: INPUT_MISSING; everything else with WORKER_ERROR, and so do bytes that are not those of `sha256`.
    open: Callable[[], AsyncIterator[bytes]]
    #: All of them, when they are in memory anyway: that saves a round of the event loop.
    data: bytes | None = None

    @classmethod
    def of(cls, name: str, data: bytes) -> Self:
        """An input that is in memory."""

        async def pieces() -> AsyncIterator[bytes]:
            yield data

        return cls(name, len(data), hashlib.sha256(data).hexdigest(), pieces, data)


@dataclass(frozen=True, kw_only=True)
class ProgramWork:
    """One attempt to be made."""

    job_id: str
    run_id: str
    attempt: int
    client_id: str
    exec_name: str
    args: Sequence[str] = ()
    timeout_sec: float
    files: Sequence[WorkFile] = ()


@dataclass(frozen=True)
class ArchiveFile:
    """What a program left behind, as a zip on this machine's disk. Whoever is handed it calls `discard`, or moves it
    away; else it stays until a worker starts here after the end of this one."""

    path: Path
    size: int
    sha256: str

    async def pieces(self) -> AsyncIterator[bytes]:
        """Its bytes, from the first to the last. May be asked again. Raises OSError."""
        file = await asyncio.to_thread(self.path.open, "rb", 0)
        try:
            while piece := await asyncio.to_thread(file.read, _PIECE_BYTES):
                yield piece
        finally:
            file.close()

    def discard(self) -> None:
        """It is not needed any more. May be called twice."""
        self.path.unlink(missing_ok=True)


@dataclass(frozen=True)
class ProgramOutcome:
    """How an attempt ended, and what it left."""

    report: Report
    #: None: no file that is new or changed.
    archive: ArchiveFile | None = None


class ProgramExecution(Protocol):
    """One attempt under way."""

    async def outcome(self) -> ProgramOutcome:
        """How it ended. Waits for the end; never raises. May be awaited by several."""

    def cancel(self) -> None:
        """SIGTERM to the whole group, SIGKILL 5 s later, and CANCELLED with what there is until then (GRID-112).

        One that has ended by itself keeps its own result (GRID-161); one that has not started never does.
        """

    def kill(self) -> None:
        """SIGKILL to the whole group, now. The outcome comes soon and is WORKER_ERROR: nobody should report it."""


class ProgramExecutor(Protocol):
    """Runs programs, as many at a time as it is asked to."""

    async def start(self) -> None:
        """Returns once it can take work; what a dead predecessor left behind is gone then. Raises UsageError."""

    def begin(self, work: ProgramWork) -> ProgramExecution:
        """Start one attempt. Never waits and never raises: whatever is wrong with it is in the outcome."""

    async def stop(self) -> None:
        """Kills what still runs. May be called twice."""

    def has(self, exec_name: str) -> bool:
        """Whether there is such a program here that may be run. One look at the disk."""

    def names(self) -> tuple[str, ...]:
        """Every program for which `has` is true now, sorted. O(files) looks at the disk: call it in a thread."""
