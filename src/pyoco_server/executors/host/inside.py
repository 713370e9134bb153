"""What every child process does, whatever it runs: its lines to the worker, its share of memory, its end."""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from pyoco_server.executors.descriptors import close_inherited
from pyoco_server.executors.host import wire

__all__ = ["Channel", "Scene", "bound_memory", "end_all", "live", "shed_memory"]

_CHUNK = 1 << 18
#: What the worker was told, too, and decides about.
_OURS = (signal.SIGINT, signal.SIGTERM)


class Channel:
    """A blocking socket that carries frames."""

    def __init__(self, fd: int) -> None:
        self._socket = socket.socket(fileno=fd)
        self._socket.set_inheritable(False)  # what a task starts must not keep the line open after our end
        self._frames = wire.Frames()
        self._ready: list[bytes] = []

    def receive(self) -> bytes | None:
        """The next body; None when the worker is gone."""
        while not self._ready:
            data = self._socket.recv(_CHUNK)
            if not data:
                return None
            self._ready = self._frames.feed(data)
        return self._ready.pop(0)

    def send(self, body: bytes) -> None:
        self._socket.sendall(wire.frame(body))


def bound_memory(bytes_max: int) -> None:
    """A task that eats memory gets a MemoryError; should the machine run dry all the same, we go before the worker."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("800")
    if bytes_max:
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        limit = bytes_max if hard == resource.RLIM_INFINITY else min(bytes_max, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))


def shed_memory(bytes_max: int) -> bool:
    """What a failed task held hangs on its traceback until the collector comes by. False: it still holds too much, and
    the next run deserves a fresh process."""
    gc.collect()
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:  # it has used up its files
        return False
    return not bytes_max or pages * resource.getpagesize() < bytes_max // 2


def _stay(*_: object) -> None:
    """Not for us: the worker was told too, and lets us finish."""


class Scene:
    """What every run of a process has to find as the first one did. Made before that one."""

    def __init__(self) -> None:
        self._home = os.open(".", os.O_PATH)  # it need not be one that we may read
        self._streams = sys.stdout, sys.stderr
        self._files = {number: file for number in range(3) if (file := _file_of(number)) is not None}

    def restore(self) -> bool:
        """After a run. False: something is gone for good, and the next run deserves a fresh process."""
        _tidy_thread()
        signal.setitimer(signal.ITIMER_REAL, 0)  # its alarm would meet the next run
        sys.stdout, sys.stderr = self._streams
        try:
            os.fchdir(self._home)
            is_open = not any(stream.closed for stream in self._streams if stream is not None)
        except (OSError, ValueError):  # the second of a stream that was taken apart
            return False
        # Another file there would get what the next run prints.
        return is_open and all(_file_of(number) == file for number, file in self._files.items())


def _file_of(number: int) -> tuple[int, int] | None:
    """Which file that is, by device and inode. None: it is closed."""
    try:
        found = os.fstat(number)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _tidy_thread() -> None:
    """What a task has left behind in the main thread is not for the next run to find: a handler of one of our signals,
    or an event loop, which it may have closed."""
    for number in _OURS:
        if signal.getsignal(number) is not _stay:
            signal.signal(number, _stay)
    asyncio = sys.modules.get("asyncio")
    if asyncio is not None:
        asyncio.set_event_loop(None)


def live(serve: Callable[[Channel, Channel], None]) -> None:
    """The life of a child process: serve on the two lines it was started with, and go, with all it has started."""
    # The worker decides when a host goes: a Ctrl-C on the terminal, or a service manager that tells every process to
    # stop, must not cut its runs short. A handler and not SIG_IGN, which whatever a task starts would inherit.
    for number in _OURS:
        signal.signal(number, _stay)
    lines = [int(argument) for argument in sys.argv[1:3]]
    close_inherited(*lines)
    work, control = map(Channel, lines)
    try:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the worker is gone; so are we
            serve(work, control)
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        end_all()  # also when a thread of a task would keep a broken process alive


def end_all() -> None:
    """This process and everything its tasks have started. Whichever thread first sees that the worker is gone."""
    os.killpg(os.getpgrp(), signal.SIGKILL)
