"""Processes that have left the group of their program: daemons, and what runs under `timeout`, which makes its own.

The runner is the reaper of all it started: the orphans of its programs become its children. So they can be found, and
while they are not reaped their numbers are nobody else's.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Container

__all__ = ["end_strays"]


def end_strays(programs: Container[int], places: Container[str]) -> bool:
    """Kill each child that is no program itself, and whose program is over: its HOME is none of `places`.

    Whether there are such children still, living or not. O(children).
    """
    children = [pid for pid in _children() if pid not in programs]
    for pid in children:
        home = _home(pid)
        if home is not None and home not in places:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
    return bool(children)


def _children() -> list[int]:
    """Of this process, which has one thread. None, where the kernel does not tell."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", "rb") as file:
            return [int(pid) for pid in file.read().split()]
    except OSError:
        return []


def _home(pid: int) -> str | None:
    """None: it is over, or its variables are not those it was started with; then nobody knows whose it is."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            variables = file.read().split(b"\0")
    except OSError:
        return None
    homes = [variable for variable in variables if variable.startswith(b"HOME=")]
    return os.fsdecode(homes[0][len(b"HOME=") :]) if homes else None
