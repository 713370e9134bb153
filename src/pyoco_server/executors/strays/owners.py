"""The owner of a directory or a process: a worker, named by process id and start time, for ids are reused."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

__all__ = ["is_gone", "own_text"]

#: A job may run for a day (TimeoutSec); after a little more nobody of a namespace we cannot look into is at work.
_FOREIGN_SECONDS = 90_000.0
#: Long enough for the step between making a directory and saying whose it is.
_NAMELESS_SECONDS = 3_600.0


def own_text() -> str:
    """This process, as the text of an owner."""
    return f"{os.getpid()}-{_started(os.getpid())}-{_namespace()}-{_boot()}"


def is_gone(owner: str, changed_at: float) -> bool:
    """Whether nobody is behind what this owner has left; `changed_at` is when its directory was last changed.

    Process numbers of another container mean nothing here: its directories count as in use for as long as a job can
    take. So do those without an owner, for an hour.
    """
    age = time.time() - changed_at
    try:
        pid, started, namespace, boot = owner.split("-")
        number = int(pid)
    except ValueError:
        return age > _NAMELESS_SECONDS
    if boot != _boot():
        return True
    if namespace != _namespace():
        return age > _FOREIGN_SECONDS
    return _started(number) != started


def _started(pid: int) -> str:
    """In ticks since the machine started; empty: there is no such process, or only its remains."""
    with contextlib.suppress(OSError, IndexError):
        # The name of the program may hold spaces and parentheses: what counts comes after the last of them.
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return "" if fields[0] in {b"Z", b"X"} else fields[19].decode()
    return ""


def _namespace() -> str:
    try:
        return str(os.stat("/proc/self/ns/pid").st_ino)
    except OSError:
        return "0"


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().partition("-")[0]
    except OSError:
        return "0"
