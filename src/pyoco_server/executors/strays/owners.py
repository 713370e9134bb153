"""The owner of a directory or a process: a worker, identified by process id and start time, since ids are reused."""

from __future__ import annotations

import contextlib
import functools
import os
import time
from pathlib import Path

__all__ = ["is_gone", "own_text"]

#: A job may run for a day (TimeoutSec); after a little more, an owner in a namespace that we cannot inspect counts as
#: exited.
_FOREIGN_SECONDS = 90_000.0
#: Enough time between creating a directory and writing its owner.
_NAMELESS_SECONDS = 3_600.0


def own_text() -> str:
    """Return this process as an owner text."""
    return f"{os.getpid()}-{_started(os.getpid())}-{_namespace()}-{_boot()}"


def is_gone(owner: str, changed_at: float) -> bool:
    """Whether this owner has exited; `changed_at` is when its directory was last changed. One that cannot be
    inspected, for example without a free file descriptor, has not: what a living worker has started must not be killed.

    Process ids of another container cannot be checked here: its directories count as in use for as long as a job can
    take, and directories without an owner for an hour.
    """
    age = time.time() - changed_at
    try:
        pid, started, namespace, boot = owner.split("-")
        number = int(pid)
    except ValueError:
        return age > _NAMELESS_SECONDS
    try:
        if boot != _boot():
            return True
        if namespace != _namespace():
            return age > _FOREIGN_SECONDS
        return _started(number) != started
    except OSError:
        return False


def _started(pid: int) -> str:
    """Start time of a process in ticks since boot; empty if it does not exist or is a zombie.

    Raises OSError if it cannot be read.
    """
    with contextlib.suppress(FileNotFoundError, ProcessLookupError, IndexError):
        # The program name may contain spaces and parentheses, so the fields are read after the last parenthesis.
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return "" if fields[0] in {b"Z", b"X"} else fields[19].decode()
    return ""


def _namespace() -> str:
    try:
        return str(os.stat("/proc/self/ns/pid").st_ino)
    except (FileNotFoundError, PermissionError):
        return "0"


@functools.cache
def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().partition("-")[0]
    except (FileNotFoundError, PermissionError):
        return ""
