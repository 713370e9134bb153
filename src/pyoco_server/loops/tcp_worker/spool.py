"""Finished results on this machine's disk, each until a door has said that it is settled (GRID-109).

One directory per worker, two files per result: `<JobId>.result`, and `<JobId>.zip` when the program made files. Once
settled it becomes `<JobId>.done`: nobody sends it any more, and a repeated AssignJob is answered from it.
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
from pyoco_server.loops.tcp_worker.finished import Damaged, Finished, decode, encode

__all__ = ["Kept", "Spool"]

log = get_logger(__name__)

_RESULT, _DONE, _ARCHIVE, _PART, _DAMAGED = ".result", ".done", ".zip", ".part", ".damaged"
_AT_ONCE = 100
_SET_ASIDE = "a result of the spool is damaged and set aside"
_T = TypeVar("_T")


@dataclass(eq=False)
class Kept:
    """A result in the spool: what must be known of it without reading it."""

    job_id: str
    run_id: str
    token: str
    attempt: int
    size: int
    is_worth_keeping: bool
    #: Of all that was ever kept here. What is on disk under the job's name is of the newest one.
    number: int
    is_settled: bool = False
    #: The result itself, when the disk did not take it.
    in_memory: Finished | None = None


class Spool:
    """Every change goes to one thread, in the order it was asked for, so a result cannot be settled before it is
    written. A crash leaves a whole result or none: it is written beside, forced to disk and renamed. The name itself is
    not forced: a power cut may undo the last ones, and their jobs are run again.

    What it cannot do: keep a result when the disk is full. Such a one stays in memory, and `has_room` says no until it
    is settled, so that there are no more of them than programs at once.
    """

    def __init__(self, folder: Path, bytes_max: int) -> None:
        self._folder, self._bytes_max = folder, bytes_max
        #: By JobId, oldest first: those that no door has settled, and those that one has.
        self._due: dict[str, Kept] = {}
        self._done: dict[str, Kept] = {}
        #: By JobId, the number of what is on disk, or on its way there.
        self._newest: dict[str, int] = {}
        self._numbers = itertools.count(1)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="spool")
        self._in_memory = 0
        #: Bytes of what is not settled, and of what is.
        self.bytes_due = 0
        self._bytes_done = 0

    @property
    def has_room(self) -> bool:
        """False: the worker asks for no more work."""
        return self.bytes_due <= self._bytes_max and not self._in_memory

    def get(self, job_id: str) -> Kept | None:
        return self._due.get(job_id) or self._done.get(job_id)

    def due(self) -> list[Kept]:
        """Those that no door has settled, oldest first."""
        return list(self._due.values())

    def settled(self) -> list[str]:
        """The JobIds of the others."""
        return list(self._done)

    async def load(self) -> list[Kept]:
        """What the worker before this one left, oldest first. What cannot be read is set aside and logged."""
        for each, size in await self._in_line(self._load):
            number = self._newest[each.job_id] = next(self._numbers)
            self._add(_kept(each, size, number))
        return self.due()

    async def put(self, finished: Finished) -> tuple[Kept, Finished]:
        """Keep it, in place of what was kept of this job. Returns it with the place that its archive has now: in the
        spool. Never raises."""
        archive, place = finished.archive, self._path(finished.job_id, _ARCHIVE)
        # From here on, whoever settles or forgets the old one leaves the disk alone: it has the new one's name.
        number = self._newest[finished.job_id] = next(self._numbers)
        size = 0
        try:
            if archive is not None and archive.path != place:
                await asyncio.to_thread(_force, archive.path)  # up to a GiB: not in the line
                await self._in_line(lambda: _move(archive.path, place))
                finished = replace(finished, archive=replace(archive, path=place))
            size = await self._in_line(lambda: self._write(finished))
        except OSError as error:
            log.error("a result cannot be written to disk; it is kept in memory", job_id=finished.job_id, error=error)
        kept = _kept(finished, size, number)
        kept.in_memory = None if size else finished
        self._drop(finished.job_id)
        self._add(kept)
        return kept, finished

    async def read(self, kept: Kept) -> Finished | None:
        """The result itself. None: it was damaged meanwhile and is set aside, or gone."""
        if kept.in_memory is not None:
            return kept.in_memory
        name = _DONE if kept.is_settled else _RESULT
        path = self._path(kept.job_id, name)
        try:
            finished = await self._in_line(lambda: _whole(path))
        except (OSError, Damaged) as error:
            if self._is_newest(kept):
                log.warning(_SET_ASIDE, file=path.name, reason=str(error))
                await self.set_aside(kept)
            return None
        return finished.with_token(kept.token, kept.attempt)

    async def retoken(self, kept: Kept, token: str, attempt: int) -> tuple[Kept, Finished] | None:
        """GRID-107: the same result is now the answer to a newer attempt, and is due again. None: as `read`."""
        finished = await self.read(kept)
        return None if finished is None else await self.put(finished.with_token(token, attempt))

    async def settle(self, kept: Kept) -> None:
        """A door has it. It stays, as long as there is room, to answer a repeated AssignJob; one that the disk did not
        take does not."""
        if kept.is_settled or self.get(kept.job_id) is not kept:
            return
        if kept.in_memory is not None:
            await self.forget([kept.job_id])
            return
        self._drop(kept.job_id)
        kept.is_settled = True
        self._add(kept)
        if self._is_newest(kept):
            await self._in_line(lambda: self._rename(kept.job_id))

    async def forget(self, job_ids: Sequence[str]) -> None:
        """Away with them, settled or not; a hundred at a time, so that a result need not wait for long."""
        dropped = [kept for kept in map(self._drop, job_ids) if kept is not None]
        gone = [kept.job_id for kept in dropped if self._is_newest(kept)]
        for job_id in gone:
            del self._newest[job_id]
        for start in range(0, len(gone), _AT_ONCE):
            await self._in_line(functools.partial(self._remove, gone[start : start + _AT_ONCE]))
        for archive in [each.in_memory.archive for each in dropped if each.in_memory is not None]:
            if archive is not None:  # it may not have reached the spool
                await self._in_line(functools.partial(archive.path.unlink, missing_ok=True))

    async def set_aside(self, kept: Kept) -> None:
        """It cannot be read any more."""
        if self.get(kept.job_id) is kept and self._is_newest(kept):
            self._drop(kept.job_id)
            del self._newest[kept.job_id]
            name = _DONE if kept.is_settled else _RESULT
            await self._in_line(lambda: _set_aside(self._path(kept.job_id, name)))

    def surplus(self) -> list[str]:
        """Settled results that have to go, oldest first, so that all of the spool stays within its limit."""
        over = self.bytes_due + self._bytes_done - self._bytes_max
        found: list[str] = []
        for each in self._done.values():
            if over <= 0:
                break
            found.append(each.job_id)
            over -= each.size
        return found

    async def close(self) -> None:
        """After everything that was asked for has been done."""
        await self._in_line(lambda: None)
        self._thread.shutdown(wait=False)

    def _is_newest(self, kept: Kept) -> bool:
        return self._newest.get(kept.job_id) == kept.number

    def _add(self, kept: Kept) -> None:
        (self._done if kept.is_settled else self._due)[kept.job_id] = kept
        self._count(kept, +1)

    def _drop(self, job_id: str) -> Kept | None:
        kept = self._due.pop(job_id, None) or self._done.pop(job_id, None)
        if kept is not None:
            self._count(kept, -1)
        return kept

    def _count(self, kept: Kept, sign: int) -> None:
        if kept.is_settled:
            self._bytes_done += sign * kept.size
        else:
            self.bytes_due += sign * kept.size
            self._in_memory += sign * (kept.in_memory is not None)

    def _path(self, job_id: str, ending: str) -> Path:
        return self._folder / (job_id + ending)

    async def _in_line(self, work: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    # Below here: in the thread.

    def _write(self, finished: Finished) -> int:
        data, part = encode(finished), self._path(finished.job_id, _PART)
        with part.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        part.replace(self._path(finished.job_id, _RESULT))
        self._path(finished.job_id, _DONE).unlink(missing_ok=True)
        if finished.archive is None:  # what an older attempt had left
            self._path(finished.job_id, _ARCHIVE).unlink(missing_ok=True)
        return len(data) + (finished.archive.size if finished.archive is not None else 0)

    def _load(self) -> list[tuple[Finished, int]]:
        with contextlib.suppress(OSError):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        files = [each for each in self._folder.iterdir() if each.is_file()]
        found: list[tuple[float, Finished, int]] = []
        for path in files:
            if path.suffix == _RESULT:
                try:
                    finished, state = _whole(path), path.stat()
                except (OSError, Damaged) as error:
                    log.warning(_SET_ASIDE, file=path.name, reason=str(error))
                    _set_aside(path)
                    continue
                archived = finished.archive.size if finished.archive is not None else 0
                found.append((state.st_mtime, finished, state.st_size + archived))
        wanted = {finished.job_id for _, finished, _ in found}
        for path in files:  # settled long ago, or half of a result that nobody heard of
            if path.suffix in {_DONE, _PART} or (path.suffix == _ARCHIVE and path.stem not in wanted):
                path.unlink(missing_ok=True)
        found.sort(key=lambda each: each[0])
        return [(finished, size) for _, finished, size in found]

    def _rename(self, job_id: str) -> None:
        with contextlib.suppress(OSError):  # then it is sent once more, and settled once more
            self._path(job_id, _RESULT).replace(self._path(job_id, _DONE))

    def _remove(self, job_ids: Sequence[str]) -> None:
        for job_id, ending in itertools.product(job_ids, (_RESULT, _DONE, _ARCHIVE)):
            with contextlib.suppress(OSError):
                self._path(job_id, ending).unlink(missing_ok=True)


def _kept(finished: Finished, size: int, number: int) -> Kept:
    return Kept(
        job_id=finished.job_id,
        run_id=finished.run_id,
        token=finished.token,
        attempt=finished.attempt,
        size=size,
        is_worth_keeping=finished.is_worth_keeping,
        number=number,
    )


def _whole(path: Path) -> Finished:
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
    """To disk."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _move(source: Path, target: Path) -> None:
    """By its name, or as a whole when the other end is another disk."""
    try:
        source.replace(target)
    except OSError:
        shutil.copyfile(source, target)
        _force(target)
        source.unlink(missing_ok=True)
