"""Finished results on this machine's disk, each kept until a door has settled it (GRID-109).

One directory per worker, two files per result: `<JobId>.result`, and `<JobId>.zip` if the program made files. A settled
result is renamed to `<JobId>.done`: it is not sent any more, and answers a repeated AssignJob.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import os
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from pyoco_server.logs import get_logger
from pyoco_server.loops.tcp_worker.finished import Damaged, FinishedJob, decode, encode

__all__ = ["Spool", "SpooledResult"]

log = get_logger(__name__)

_RESULT, _DONE, _ARCHIVE, _PART, _DAMAGED = ".result", ".done", ".zip", ".part", ".damaged"
_AT_ONCE = 100
_SET_ASIDE = "damaged result in the spool set aside"
_T = TypeVar("_T")


@dataclass(eq=False)
class SpooledResult:
    """A result in the spool, without its content."""

    job_id: str
    run_id: str
    token: str
    attempt: int
    size: int
    is_worth_keeping: bool
    #: Increases with every result kept here. The files on disk under a JobId belong to the highest number.
    number: int
    is_settled: bool = False
    #: The result itself, if it could not be written to disk.
    in_memory: FinishedJob | None = None


class Spool:
    """The results of one worker on disk.

    All changes run in one thread in order, so no result is settled before it is written.

    A crash leaves a complete result or none: it is written to a temporary file, synced and renamed. The directory is
    not synced: a power failure may undo the last renames, and their jobs are run again.

    Limitation: it cannot store a result when the disk is full. The result then stays in memory, and `has_room` is False
    until it is settled, so that there are never more of them than concurrent programs.
    """

    def __init__(self, folder: Path, bytes_max: int) -> None:
        self._folder, self._bytes_max = folder, bytes_max
        #: By JobId, oldest first: results that no door has settled, and settled ones.
        self._due: dict[str, SpooledResult] = {}
        self._done: dict[str, SpooledResult] = {}
        #: By JobId: the number of the result on disk, or being written.
        self._newest: dict[str, int] = {}
        self._numbers = itertools.count(1)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="spool")
        self._in_memory = 0
        #: Bytes of results not settled, and of settled ones.
        self.bytes_due = 0
        self._bytes_done = 0

    @property
    def has_room(self) -> bool:
        """False: the worker grants no more credits."""
        return self.bytes_due <= self._bytes_max and not self._in_memory

    def get(self, job_id: str) -> SpooledResult | None:
        return self._due.get(job_id) or self._done.get(job_id)

    def due(self) -> list[SpooledResult]:
        """Return the results that no door has settled, oldest first."""
        return list(self._due.values())

    def settled(self) -> list[str]:
        """Return the JobIds of the settled results."""
        return list(self._done)

    async def load(self) -> list[SpooledResult]:
        """Load the results of an earlier worker process, oldest first. Unreadable ones are set aside and logged."""
        for each, size in await self._in_thread(self._load):
            number = self._newest[each.job_id] = next(self._numbers)
            self._add(_kept(each, size, number))
        return self.due()

    async def put(self, finished: FinishedJob) -> tuple[SpooledResult, FinishedJob]:
        """Keep a result, in place of an earlier one of this job. Never raises.

        Returns it with the new path of its archive, in the spool.
        """
        archive, place = finished.archive, self._path(finished.job_id, _ARCHIVE)
        # From here on, settling or forgetting the old result does not touch the files: their names belong to the new
        # one.
        number = self._newest[finished.job_id] = next(self._numbers)
        size = 0
        try:
            if archive is not None and archive.path != place:
                await asyncio.to_thread(_force, archive.path)  # up to a GiB, so not in the spool's thread
                await self._in_thread(lambda: _move(archive.path, place))
                finished = replace(finished, archive=replace(archive, path=place))
            size = await self._in_thread(lambda: self._write(finished))
        except OSError as error:
            log.error("cannot write a result to disk; keeping it in memory", job_id=finished.job_id, error=error)
        kept = _kept(finished, size, number)
        kept.in_memory = None if size else finished
        self._drop(finished.job_id)
        self._add(kept)
        return kept, finished

    async def read(self, kept: SpooledResult) -> FinishedJob | None:
        """Read a result. None: it was damaged and is set aside, or was deleted."""
        if kept.in_memory is not None:
            return kept.in_memory
        name = _DONE if kept.is_settled else _RESULT
        path = self._path(kept.job_id, name)
        try:
            finished = await self._in_thread(lambda: _read_complete(path))
        except (OSError, Damaged) as error:
            if self._is_newest(kept):
                log.warning(_SET_ASIDE, file=path.name, reason=str(error))
                await self.set_aside(kept)
            return None
        return finished.with_token(kept.token, kept.attempt)

    async def retoken(self, kept: SpooledResult, token: str, attempt: int) -> tuple[SpooledResult, FinishedJob] | None:
        """Make the result the answer to a newer attempt, and due again (GRID-107). None: as in `read`."""
        finished = await self.read(kept)
        return None if finished is None else await self.put(finished.with_token(token, attempt))

    async def settle(self, kept: SpooledResult) -> None:
        """Mark a result as settled. It is kept while there is room, to answer a repeated AssignJob.

        A result that could not be written to disk is dropped instead.
        """
        if kept.is_settled or self.get(kept.job_id) is not kept:
            return
        if kept.in_memory is not None:
            await self.forget([kept.job_id])
            return
        self._drop(kept.job_id)
        kept.is_settled = True
        self._add(kept)
        if self._is_newest(kept):
            await self._in_thread(lambda: self._rename(kept.job_id))

    async def forget(self, job_ids: Sequence[str]) -> None:
        """Delete results, settled or not. A hundred at a time, so that a new result does not wait for long."""
        dropped = [kept for kept in map(self._drop, job_ids) if kept is not None]
        gone = [kept.job_id for kept in dropped if self._is_newest(kept)]
        for job_id in gone:
            del self._newest[job_id]
        for start in range(0, len(gone), _AT_ONCE):
            await self._in_thread(functools.partial(self._remove, gone[start : start + _AT_ONCE]))
        for archive in [each.in_memory.archive for each in dropped if each.in_memory is not None]:
            if archive is not None:  # it may not have been moved to the spool
                await self._in_thread(functools.partial(archive.path.unlink, missing_ok=True))

    async def set_aside(self, kept: SpooledResult) -> None:
        """Set a result aside that can no longer be read."""
        if self.get(kept.job_id) is kept and self._is_newest(kept):
            self._drop(kept.job_id)
            del self._newest[kept.job_id]
            name = _DONE if kept.is_settled else _RESULT
            await self._in_thread(lambda: _set_aside(self._path(kept.job_id, name)))

    def surplus(self) -> list[str]:
        """Return the settled results to delete, oldest first, so that the spool stays within its limit."""
        over = self.bytes_due + self._bytes_done - self._bytes_max
        found: list[str] = []
        for each in self._done.values():
            if over <= 0:
                break
            found.append(each.job_id)
            over -= each.size
        return found

    async def close(self) -> None:
        """Close, after all pending changes are done."""
        await self._in_thread(lambda: None)
        self._thread.shutdown(wait=False)

    def _is_newest(self, kept: SpooledResult) -> bool:
        return self._newest.get(kept.job_id) == kept.number

    def _add(self, kept: SpooledResult) -> None:
        (self._done if kept.is_settled else self._due)[kept.job_id] = kept
        self._count(kept, +1)

    def _drop(self, job_id: str) -> SpooledResult | None:
        kept = self._due.pop(job_id, None) or self._done.pop(job_id, None)
        if kept is not None:
            self._count(kept, -1)
        return kept

    def _count(self, kept: SpooledResult, sign: int) -> None:
        if kept.is_settled:
            self._bytes_done += sign * kept.size
        else:
            self.bytes_due += sign * kept.size
            self._in_memory += sign * (kept.in_memory is not None)

    def _path(self, job_id: str, ending: str) -> Path:
        return self._folder / (job_id + ending)

    async def _in_thread(self, work: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    # Methods below run in the spool's thread.

    def _write(self, finished: FinishedJob) -> int:
        data, part = encode(finished), self._path(finished.job_id, _PART)
        with part.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        part.replace(self._path(finished.job_id, _RESULT))
        self._path(finished.job_id, _DONE).unlink(missing_ok=True)
        if finished.archive is None:  # left by an older attempt
            self._path(finished.job_id, _ARCHIVE).unlink(missing_ok=True)
        return len(data) + (finished.archive.size if finished.archive is not None else 0)

    def _load(self) -> list[tuple[FinishedJob, int]]:
        with contextlib.suppress(OSError):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        files = [each for each in self._folder.iterdir() if each.is_file()]
        found: list[tuple[float, FinishedJob, int]] = []
        for path in files:
            if path.suffix == _RESULT:
                try:
                    finished, state = _read_complete(path), path.stat()
                except (OSError, Damaged) as error:
                    log.warning(_SET_ASIDE, file=path.name, reason=str(error))
                    _set_aside(path)
                    continue
                archived = finished.archive.size if finished.archive is not None else 0
                found.append((state.st_mtime, finished, state.st_size + archived))
        due_ids = {finished.job_id for _, finished, _ in found}
        for path in files:  # settled earlier, or an incomplete result that was never sent
            if path.suffix in {_DONE, _PART} or (path.suffix == _ARCHIVE and path.stem not in due_ids):
                path.unlink(missing_ok=True)
        found.sort(key=lambda each: each[0])
        return [(finished, size) for _, finished, size in found]

    def _rename(self, job_id: str) -> None:
        with contextlib.suppress(OSError):  # on failure it is sent and settled again
            self._path(job_id, _RESULT).replace(self._path(job_id, _DONE))

    def _remove(self, job_ids: Sequence[str]) -> None:
        for job_id, ending in itertools.product(job_ids, (_RESULT, _DONE, _ARCHIVE)):
            with contextlib.suppress(OSError):
                self._path(job_id, ending).unlink(missing_ok=True)


def _kept(finished: FinishedJob, size: int, number: int) -> SpooledResult:
    return SpooledResult(
        job_id=finished.job_id,
        run_id=finished.run_id,
        token=finished.token,
        attempt=finished.attempt,
        size=size,
        is_worth_keeping=finished.is_worth_keeping,
        number=number,
    )


def _read_complete(path: Path) -> FinishedJob:
    """Raises OSError or Damaged."""
    archive_path = path.with_suffix(_ARCHIVE)
    finished = decode(path.read_bytes(), archive_path)
    if finished.job_id != path.stem:
        raise Damaged("it is of another job")
    if finished.archive is not None and archive_path.stat().st_size != finished.archive.size:
        raise Damaged("its archive has another size")
    return finished


def _set_aside(path: Path) -> None:
    for each in (path, path.with_suffix(_ARCHIVE)):
        with contextlib.suppress(OSError):
            each.replace(each.with_name(each.name + _DAMAGED))


def _force(path: Path) -> None:
    """Sync a file to disk."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _move(source: Path, target: Path) -> None:
    """Move a file by renaming it, or by copying it to another disk."""
    try:
        source.replace(target)
    except OSError:
        shutil.copyfile(source, target)
        _force(target)
        source.unlink(missing_ok=True)
