"""Finds strays whose reaper was killed, by a variable in the environment they were started with.

No state is stored per process, and a reused process id cannot match.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path

from pyoco_server.executors.strays.owners import is_gone, own_text

__all__ = [
    "end_abandoned",
    "end_marked",
    "end_matching",
    "environment_of",
    "is_guard",
    "name_guard",
    "new_mark",
    "with_mark",
]

#: Set in every host and pack process, and so in what they start: `<owner>.<n>`, with n counted by the worker.
_MARK = "_PYOCO_STARTED_BY"
_GUARD_NAME = b"pyoco-guard"
#: A process that is killed may have started another in the meantime.
_ROUNDS_MAX = 10
_ROUND_SECONDS = 0.05
#: A guard whose worker has exited kills everything below it, also what has no mark. It is killed only if it takes
#: longer than this.
_GUARD_SECONDS = 5.0
_counter = itertools.count(1)


def new_mark() -> str:
    """Return a new mark for a child process of this worker."""
    return f"{own_text()}.{next(_counter)}"


def with_mark(variables: Mapping[str, str], mark: str) -> dict[str, str]:
    return {**variables, _MARK: mark}


def end_marked(mark: str) -> None:
    """Kill what was started below the process with this mark. O(processes of the machine)."""
    variable = os.fsencode(f"{_MARK}={mark}")
    end_matching(lambda environment: variable in environment)


def end_abandoned() -> None:
    """Kill what was started below host and pack processes of dead workers of this machine. O(its processes).

    Guards that are still there get time to do it, since a mark does not reach a process with an environment of its own.
    """
    prefix = os.fsencode(f"{_MARK}=")
    known: dict[str, bool] = {}

    def is_abandoned(environment: Collection[bytes]) -> bool:
        for variable in environment:
            if variable.startswith(prefix):
                owner = os.fsdecode(variable[len(prefix) :]).partition(".")[0]
                if owner not in known:
                    known[owner] = is_gone(owner, time.time())
                return known[owner]
        return False

    until = time.monotonic() + _GUARD_SECONDS
    while any(is_guard(pid) and is_abandoned(environment_of(pid)) for pid in _processes()):
        if time.monotonic() > until:
            break
        time.sleep(_ROUND_SECONDS)
    end_matching(is_abandoned)


def end_matching(is_one: Callable[[Collection[bytes]], bool]) -> None:
    """Kill each process whose initial variables (`NAME=value`) match. O(processes), at most ten scans."""
    for _ in range(_ROUNDS_MAX):
        found = False
        for pid in _processes():
            found |= _end(pid, is_one)
        if not found:
            return
        time.sleep(_ROUND_SECONDS)


def name_guard() -> None:
    """Give this process the name by which `end_abandoned` knows a guard. `ps` and `top` show it."""
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_bytes(_GUARD_NAME)


def is_guard(pid: int) -> bool:
    """Whether this process is a guard that has not exited."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False
    name, _, rest = fields.partition(b"(")[2].rpartition(b")")
    return name == _GUARD_NAME and rest.split()[0] not in {b"Z", b"X"}


def _end(pid: int, is_one: Callable[[Collection[bytes]], bool]) -> bool:
    """Kill the process if it matches. The pidfd identifies the process even if its id is reused."""
    if not is_one(environment_of(pid)):
        return False
    with contextlib.suppress(OSError):
        process = os.pidfd_open(pid)
        try:
            if not is_one(environment_of(pid)):
                return False
            signal.pidfd_send_signal(process, signal.SIGKILL)
        finally:
            os.close(process)
        return True
    return False


def environment_of(pid: int) -> list[bytes]:
    """The initial environment of a process; empty if it has exited or belongs to another user."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read().split(b"\0")
    except OSError:
        return []


def _processes() -> Iterator[int]:
    own = os.getpid()
    for name in os.listdir("/proc"):
        if name.isdecimal() and int(name) != own:
            yield int(name)
