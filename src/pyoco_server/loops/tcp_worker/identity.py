"""The id of a worker, unique on this machine (GRID-104)."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from pyoco_server.errors import UsageError

__all__ = ["SPOOL", "WorkerIdentity", "take_identity"]

#: Below the root of job directories: undelivered results, one directory per worker.
SPOOL = ".spool"
_NAMES_MAX = 10_000
_LENGTH_MAX = 64
_NOT_ALLOWED = re.compile(r"[^A-Za-z0-9_-]", re.ASCII)


@dataclass(frozen=True)
class WorkerIdentity:
    """A worker's id and its spool, locked by this process until `release`.

    The kernel releases the locks if it is killed.
    """

    worker_id: str
    spool: Path
    _locks: tuple[int, ...] = field(repr=False, default=())

    def release(self) -> None:
        """Release the locks. To be called once: the file descriptors may be reused afterwards."""
        for lock in self._locks:
            os.close(lock)


def take_identity(root: Path, wanted: str | None, host: str) -> WorkerIdentity:
    """Take the wanted id, or `<host>-<n>` with the first free n: a restarted worker gets its old id back.

    Raises UsageError if another process has the wanted id, or the root is not writable. Blocks for a moment.
    """
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        if wanted is not None:
            spool, lock = _take_spool(root, wanted)
            if lock is None:
                raise UsageError(
                    f"another worker with the id {wanted} is at work in {root}; give this one another --id"
                )
            return WorkerIdentity(wanted, spool, (lock,))
        return _take_first(root, host)
    except OSError as error:
        raise UsageError(f"the directory of jobs {root} cannot be used: {error.strerror}") from error


def _take_first(root: Path, host: str) -> WorkerIdentity:
    for number in range(1, _NAMES_MAX + 1):
        ending = f"-{number}"
        worker_id = _NOT_ALLOWED.sub("_", host or "worker")[: _LENGTH_MAX - len(ending)] + ending
        name = _lock(root / f".worker-{number}")
        if name is None:
            continue
        spool, lock = _take_spool(root, worker_id)
        if lock is not None:
            return WorkerIdentity(worker_id, spool, (name, lock))
        os.close(name)  # this id was given to another worker explicitly
    raise UsageError(f"{_NAMES_MAX} workers are at work in {root}; give this one an --id")


def _take_spool(root: Path, worker_id: str) -> tuple[Path, int | None]:
    spool = root / SPOOL / worker_id
    spool.mkdir(mode=0o700, parents=True, exist_ok=True)
    return spool, _lock(spool / ".lock")


def _lock(path: Path) -> int | None:
    """Returns None if another process holds the lock. Programs do not inherit it: it is closed on exec."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return handle
    os.close(handle)
    return None
