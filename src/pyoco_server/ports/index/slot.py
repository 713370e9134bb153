"""A file per gateway for its index. Gateways that share a directory take one each, and reuse it after a restart."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from pyoco_server.errors import UsageError

__all__ = ["index_slot"]

_SLOTS_MAX = 64


@contextlib.contextmanager
def index_slot(directory: Path, name: str) -> Iterator[Path]:
    """Lock the first free file of this name, until the block ends or the process exits.

    Raises UsageError if the directory is not writable, or if all 64 files are in use.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for number in range(_SLOTS_MAX):
            path = directory / f"{name}-{number}.sqlite"
            lock = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lock)
                continue
            break
        else:
            raise UsageError(f"{_SLOTS_MAX} gateways use {directory} already; set PYOCO_DATA_DIR to another one")
    except OSError as error:
        raise UsageError(f"cannot keep an index of runs in {directory}: {error}; set PYOCO_DATA_DIR") from error
    try:
        yield path
    finally:
        os.close(lock)
