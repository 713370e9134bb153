"""The process between a worker and one of its hosts. It exits last, after killing everything the host has started.

A host cannot do that itself when it is killed, suspended, or stuck in code that never returns to the interpreter. The
guard runs no foreign code. It kills when its host has exited, when the worker requests it, and when the worker has
exited.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
from typing import TYPE_CHECKING, NoReturn

from pyoco_server.executors.descriptors import close_inherited
from pyoco_server.executors.strays.marks import name_guard
from pyoco_server.executors.strays.reaper import adopt_orphans, children, die_with_parent, end_children, reap

if TYPE_CHECKING:
    from pyoco_server.executors.capture.marks import Marks
    from pyoco_server.executors.capture.reader import Reader
    from pyoco_server.executors.capture.setup import Capture

__all__ = ["DONE", "END", "TERMINATE", "guarded"]

#: What the worker writes to the lifeline: send SIGTERM to the host's process group; kill everything. EOF means END.
TERMINATE, END = b"t", b"k"
#: What the guard writes before it exits: no process is left below it.
DONE = b"."


def guarded(lifeline: int, capture: Capture | None = None) -> Marks | None:
    """Fork. The call returns in the child, which has its own session; this process becomes its guard.

    The process must have one thread. The guard exits with the child's status once no process below it is left. With a
    capture it also reads what the child prints, and the child gets the marks for it.
    """
    adopt_orphans()
    guard = os.getpid()
    awake, wakes = os.pipe()
    host = os.fork()
    if not host:
        for fd in (lifeline, awake, wakes):
            os.close(fd)
        os.setsid()
        adopt_orphans()  # the host adopts orphans of a run, and finds them before the next run
        die_with_parent(guard, signal.SIGKILL)
        return capture.in_host() if capture is not None else None
    try:
        name_guard()
        close_inherited(lifeline, awake, wakes, *(capture.guard_descriptors if capture is not None else ()))
        reader = capture.in_guard() if capture is not None else None
        os.set_blocking(wakes, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
        _watch(host, lifeline, awake, reader)
        status = _end(host)
        if reader is not None:
            reader.finish()
        with contextlib.suppress(OSError):  # the worker has exited
            os.write(lifeline, DONE)
        _end_like(status)
    finally:  # after any error: the kernel kills the host with this process
        os._exit(1)


def _watch(host: int, lifeline: int, awake: int, reader: Reader | None) -> None:
    """Return when everything has to be ended."""
    while os.waitid(os.P_PID, host, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        for fd in _ready(lifeline, awake, reader):
            try:
                commands = os.read(fd, 4096)
            except ConnectionResetError:
                commands = b""
            if fd == awake:
                reap([pid for pid in children() if pid != host])
            elif not commands or END in commands:
                return
            else:
                _signal(host, signal.SIGTERM)


def _ready(lifeline: int, awake: int, reader: Reader | None) -> list[int]:
    """Wait until one of the two descriptors can be read, and return those that can; read output meanwhile."""
    while True:
        poll = select.poll()
        for fd in (lifeline, awake):
            poll.register(fd, select.POLLIN)
        if reader is not None:
            for fd, events in reader.wants().items():
                poll.register(fd, events)
        found = {fd for fd, _ in poll.poll(reader.timeout() if reader is not None else None)}
        if reader is not None:
            reader.turn()
        if ours := [fd for fd in (lifeline, awake) if fd in found]:
            return ours


def _end(host: int) -> int:
    """Kill everything below this process and return the host's exit status. The group is killed before the host is
    reaped: until then its number cannot be reused."""
    _signal(host, signal.SIGKILL)
    _, status = os.waitpid(host, 0)
    end_children()
    return os.waitstatus_to_exitcode(status)


def _signal(host: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        try:
            os.killpg(host, number)
        except ProcessLookupError:  # it was just forked and has no group yet
            os.kill(host, number)


def _end_like(status: int) -> NoReturn:
    """Exit with the host's status: the worker reads it as the exit status of the host."""
    if status < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with contextlib.suppress(OSError, ValueError):
            signal.signal(-status, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {-status})
        os.kill(os.getpid(), -status)
    os._exit(status if status >= 0 else 128 - status)
