"""Adopts the orphans below this process, and kills them.

Linux reparents an orphan to its nearest ancestor that is a subreaper (PR_SET_CHILD_SUBREAPER).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Collection

__all__ = ["adopt_orphans", "children", "die_with_parent", "end_children", "has_children", "reap"]

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
#: Also wait for children that were cloned with another signal than SIGCHLD, or with none.
_WALL = 0x40000000
_PAUSE_SECONDS = 0.002


def adopt_orphans() -> None:
    """From here on, orphans among the descendants of this process become its children."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_parent(parent: int, how: signal.Signals) -> None:
    """Deliver this signal to this process when the thread that started it ends. Exits if it has ended already."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, how, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def has_children() -> bool:
    """Whether this process has any child, alive or a zombie. One system call (0.5 µs)."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT | _WALL)
    except ChildProcessError:
        return False
    return True


def children() -> list[int]:
    """Children of all threads of this process, zombies included. One small file per thread. Raises OSError."""
    found: list[int] = []
    for thread in os.listdir("/proc/self/task"):
        with (
            contextlib.suppress(FileNotFoundError, ProcessLookupError),
            open(f"/proc/self/task/{thread}/children", "rb") as file,
        ):
            found += map(int, file.read().split())
    return found


def reap(pids: Collection[int]) -> None:
    """Reap those of these children that have exited. Never waits."""
    for pid in pids:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG | _WALL)


def end_children(spared: Collection[int] = (), seconds: float = 5.0) -> bool:
    """Kill all children of this process but the spared ones, and then the orphans it adopts from them, until none is
    left.

    Returns False if some are left after this time: they run as another user, or are stuck in the kernel.
    """
    until = time.monotonic() + seconds
    while left := [pid for pid in children() if pid not in spared]:
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        reap(left)
        if time.monotonic() > until:
            return False
        time.sleep(_PAUSE_SECONDS)
    return True
