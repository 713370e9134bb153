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
from pyoco_server.executors.host.scene import OURS, stay
from pyoco_server.executors.strays.guard import guarded

__all__ = ["Channel", "bound_memory", "end_all", "live", "shed_memory"]

_CHUNK = 1 << 18


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


def live(serve: Callable[[Channel, Channel], None]) -> None:
    """The life of a child process: serve on the two lines it was started with, and go, with all it has started."""
    # The worker decides when a host goes: a Ctrl-C on the terminal, or a service manager that tells every process to
    # stop, must not cut its runs short. A handler and not SIG_IGN, which whatever a task starts would inherit.
    for number in OURS:
        signal.signal(number, stay)
    work_fd, control_fd, lifeline = (int(argument) for argument in sys.argv[1:4])
    close_inherited(work_fd, control_fd, lifeline)
    guarded(lifeline)
    work, control = Channel(work_fd), Channel(control_fd)
    try:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the worker is gone; so are we
            serve(work, control)
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        end_all()  # also when a thread of a task would keep a broken process alive


def end_all() -> None:
    """This process with its group; its guard then ends everything else that its tasks have started (SAFE-6).

    Called by whichever thread first sees that the worker is gone.
    """
    os.killpg(os.getpgrp(), signal.SIGKILL)
