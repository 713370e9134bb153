"""Finds the program that left a process behind: a daemon, or a process under `timeout`, which creates its own group.

The runner adopts the orphans of all its programs, so the process tree does not show which program an orphan belongs to.
Its HOME does, which is the directory of the attempt, unless the program cleared the environment.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Container, Mapping

from pyoco_server.executors.strays.marks import environment_of
from pyoco_server.executors.strays.reaper import children

__all__ = ["EXITING", "end_strays"]

#: Stands for a child that is exiting: it has no environment any more, and its own children are not adopted yet.
EXITING = ""

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def end_strays(programs: Container[int], running: Mapping[str, float]) -> set[str | None]:
    """Kill each child that is not itself a program and whose program is over. O(children).

    `running`: directories of programs that are not over, each with its start by the monotonic clock. Returns the
    directories that children belong to, killed or not; None stands for children of an unknown program. Those are killed
    once no program is left that could have started them. With EXITING, another call is needed to see what is left.
    """
    left: set[str | None] = set()
    for pid in children():
        if pid in programs:
            continue
        home = _home(pid)
        if home is None and _is_exiting(pid):
            left.add(EXITING)
            continue
        left.add(home)
        if home not in running if home is not None else not _has_older(pid, running):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
    return left


def _home(pid: int) -> str | None:
    """Return the HOME of a process, or None if it is a zombie or was started with its own environment."""
    homes = [variable for variable in environment_of(pid) if variable.startswith(b"HOME=")]
    return os.fsdecode(homes[0][len(b"HOME=") :]) if homes else None


def _is_exiting(pid: int) -> bool:
    """Whether the memory of a process is released: it is a zombie, or about to be one."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return not file.read(1)
    except OSError:  # it has exited
        return True


def _has_older(pid: int, running: Mapping[str, float]) -> bool:
    """Whether a program that was started before this process is still running."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:  # it has exited
        return True
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - (int(fields[19]) + 1) / _TICKS_PER_SECOND
    return any(started <= time.monotonic() - age for started in running.values())
