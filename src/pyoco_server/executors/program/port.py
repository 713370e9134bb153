"""The port for running programs: what is requested, and what is returned. An executor uses no store, queue or door."""

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
    """An input, and how to get its bytes."""

    name: str
    size: int
    sha256: str
    #: Yields its bytes in pieces. NotFound, or GridRefused with NOT_FOUND, ends the attempt with INPUT_MISSING; any
    #: other exception ends it with WORKER_ERROR, and so do bytes that do not match `sha256`.
    open: Callable[[], AsyncIterator[bytes]]
    #: All of its bytes, if they are in memory anyway: that saves an iteration of the event loop.
    data: bytes | None = None

    @classmethod
    def of(cls, name: str, data: bytes) -> Self:
        """Create an input that is in memory."""

        async def pieces() -> AsyncIterator[bytes]:
            yield data

        return cls(name, len(data), hashlib.sha256(data).hexdigest(), pieces, data)


@dataclass(frozen=True, kw_only=True)
class ProgramWork:
    """One attempt to execute."""

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
    """The files a program has left, as a zip on this machine's disk. The receiver calls `discard`, or moves the file
    away; otherwise it stays until a worker is started here after this one has exited."""

    path: Path
    size: int
    sha256: str

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield its bytes from the beginning. May be called again. Raises OSError."""
        file = await asyncio.to_thread(self.path.open, "rb", 0)
        try:
            while piece := await asyncio.to_thread(file.read, _PIECE_BYTES):
                yield piece
        finally:
            file.close()

    def discard(self) -> None:
        """Delete the archive. Idempotent."""
        self.path.unlink(missing_ok=True)


@dataclass(frozen=True)
class ProgramOutcome:
    """How an attempt ended, and the files it left."""

    report: Report
    #: None: no file is new or changed.
    archive: ArchiveFile | None = None


class ProgramExecution(Protocol):
    """One attempt in progress."""

    async def outcome(self) -> ProgramOutcome:
        """Wait for the end and return the outcome. Never raises. May be awaited by several callers."""

    def cancel(self, grace_seconds: float | None = None) -> None:
        """Send SIGTERM to the process group, and SIGKILL 5 s later; the outcome is CANCELLED with the files written
        until then (GRID-112).

        `grace_seconds`: less than these 5 s. Another call may shorten it further, and never extends it.

        A program that has ended by itself keeps its own result (GRID-161); one that has not started is never started.
        """

    def kill(self) -> None:
        """Send SIGKILL to the process group immediately. The outcome follows soon and is WORKER_ERROR; it should not be
        reported."""


class ProgramExecutor(Protocol):
    """Runs any number of programs concurrently."""

    async def start(self) -> None:
        """Return once it can take work, after removing what a terminated worker left behind. Raises UsageError."""

    def begin(self, work: ProgramWork) -> ProgramExecution:
        """Start one attempt. Never waits and never raises: every error is reported in the outcome."""

    async def stop(self) -> None:
        """Kill all running programs. Idempotent."""

    def has(self, exec_name: str) -> bool:
        """Whether this program exists here and may be run. One disk access."""

    def names(self) -> tuple[str, ...]:
        """Every program for which `has` returns True now, sorted. O(files) disk accesses: call it in a thread."""
