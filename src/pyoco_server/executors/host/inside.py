"""Code shared by all child processes: connections to the worker, memory limit, shutdown."""

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
from typing import TYPE_CHECKING

from pyoco_server.executors.descriptors import close_inherited
from pyoco_server.executors.host import wire
from pyoco_server.executors.host.scene import OURS, stay
from pyoco_server.executors.strays.guard import guarded

if TYPE_CHECKING:
    from pyoco_server.executors.capture.marks import Marks

__all__ = ["Channel", "bound_memory", "end_all", "live", "shed_memory"]

_CHUNK = 1 << 18


class Channel:
    """A blocking socket that carries frames."""

    def __init__(self, fd: int) -> None:
        self._socket = socket.socket(fileno=fd)
        # A process started by a task must not keep the connection open after we exit.
        self._socket.set_inheritable(False)
        self._frames = wire.Frames()
        self._ready: list[bytes] = []

    def receive(self) -> bytes | None:
        """Return the next body, or None if the worker has exited."""
        while not self._ready:
            data = self._socket.recv(_CHUNK)
            if not data:
                return None
            self._ready = self._frames.feed(data)
        return self._ready.pop(0)

    def send(self, body: bytes) -> None:
        self._socket.sendall(wire.frame(body))


def bound_memory(bytes_max: int) -> None:
    """Limit memory: a task that exceeds it gets a MemoryError. If the machine still runs out, this process is killed
    before the worker."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("800")
    if bytes_max:
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        limit = bytes_max if hard == resource.RLIM_INFINITY else min(bytes_max, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))


def shed_memory(bytes_max: int) -> bool:
    """Collect garbage: the traceback of a failed task keeps its objects alive until then. Returns False if the process
    still uses too much memory, and should be replaced before the next run."""
    gc.collect()
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:  # the run has used up its file descriptors
        return False
    return not bytes_max or pages * resource.getpagesize() < bytes_max // 2


def live(serve: Callable[[Channel, Channel, Marks | None], None]) -> None:
    """Main function of a child process: serve on its two sockets, then exit with all processes it has started.

    Arguments: the descriptors of the sockets and of the lifeline; a fourth one if its output is to be captured.
    """
    # The worker decides when a host exits: a Ctrl-C on the terminal, or a service manager that signals every process,
    # must not cut its runs short. A handler and not SIG_IGN, which processes started by a task would inherit.
    for number in OURS:
        signal.signal(number, stay)
    work_fd, control_fd, lifeline = (int(argument) for argument in sys.argv[1:4])
    capture = None
    if len(sys.argv) > 4:
        # Only if it is used: this module and what it needs stay in the memory of every guard.
        from pyoco_server.executors.capture.setup import Capture  # noqa: PLC0415
        from pyoco_server.executors.capture.wire import read_argument  # noqa: PLC0415

        close_inherited(work_fd, control_fd, lifeline, read_argument(sys.argv[4])[0])
        capture = Capture(sys.argv[4])
    else:
        close_inherited(work_fd, control_fd, lifeline)
    marks = guarded(lifeline, capture)
    work, control = Channel(work_fd), Channel(control_fd)
    try:
        # The worker has exited, so this process exits too.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            serve(work, control, marks)
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        end_all()  # even if a task's thread would keep a failed process alive


def end_all() -> None:
    """Kill this process with its group; its guard then ends everything else that its tasks have started (SAFE-6).

    Called by the first thread that detects the worker's exit.
    """
    os.killpg(os.getpgrp(), signal.SIGKILL)
