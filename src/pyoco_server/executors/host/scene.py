"""Resets the process state between two runs (SAFE-7)."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # as `signal`, without enums: 1 µs for all signals, not 19
import _thread
import os
import signal
import sys
import threading
import time

from pyoco_server.executors.strays.reaper import children, end_children, has_children, reap

__all__ = ["OURS", "Scene", "stay"]

#: The worker receives these signals too, and decides what happens to its hosts.
OURS = (signal.SIGINT, signal.SIGTERM)
_SIGNALS = tuple(sorted(map(int, signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})))
_TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
#: A thread that ends this soon after its run does not require a new process.
_LINGER_SECONDS = 0.1


def stay(*_: object) -> None:
    """Signal handler that keeps the host running: the worker received the signal too, and lets the run finish."""


class Scene:
    """State of the process before its first run. `restore` resets it after each.

    Cost of `restore` if a run has left nothing behind: about 10 µs (0.9 µs of it for processes), without reading /proc.
    """

    def __init__(self) -> None:
        self._home = os.open(".", os.O_PATH)  # works even if the directory is not readable
        self._streams = sys.stdout, sys.stderr
        self._files = {number: file for number in range(3) if (file := _file_of(number)) is not None}
        self._umask = _read_umask()
        self._environment = _environment().copy()
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        self._wakeup_fd = signal.set_wakeup_fd(-1)
        signal.set_wakeup_fd(self._wakeup_fd)
        self._handlers = tuple(map(_signal.getsignal, _SIGNALS))
        #: Threads started by imports, for example pools that a module keeps. Threads of a run are not among them.
        self._threads = frozenset(threading.enumerate())
        self._thread_count = _thread._count()
        self._children = frozenset(children())

    def restore(self) -> bool:
        """Reset the process. Returns False if something cannot be reset, and the next run needs a fresh process."""
        # First, so that nothing of the run can change the rest afterwards.
        is_alone = self._end_processes() and self._have_threads_ended()
        self._restore_signals()
        self._restore_environment()
        os.umask(self._umask)
        _forget_event_loop()
        return self._restore_files() and is_alone

    def _end_processes(self) -> bool:
        """Kill the processes that the run has left behind. Returns False if any was alive."""
        if not self._children and not has_children():
            return True
        try:
            reap([pid for pid in children() if pid not in self._children])
            left = [pid for pid in children() if pid not in self._children]
            if left:
                end_children(self._children)
        except OSError:  # the run has used up its file descriptors; the guard can read /proc
            return False
        return not left

    def _have_threads_ended(self) -> bool:
        if _thread._count() <= self._thread_count and not self._new_threads():
            return True
        until = time.monotonic() + _LINGER_SECONDS
        for thread in self._new_threads():
            thread.join(max(0.0, until - time.monotonic()))
        while _thread._count() > self._thread_count and time.monotonic() < until:
            time.sleep(0.001)
        return _thread._count() <= self._thread_count and not self._new_threads()

    def _new_threads(self) -> list[threading.Thread]:
        """Threads that were started since. Dummy threads stand for threads that Python did not start, and never end."""
        threads = (each for each in threading.enumerate() if each not in self._threads)
        return [each for each in threads if not isinstance(each, threading._DummyThread)]

    def _restore_signals(self) -> None:
        for timer in _TIMERS:  # its alarm would hit the next run
            signal.setitimer(timer, 0)
        signal.set_wakeup_fd(self._wakeup_fd)
        handlers = tuple(map(_signal.getsignal, _SIGNALS))
        if handlers != self._handlers:
            for number, handler, found in zip(_SIGNALS, self._handlers, handlers, strict=True):
                # None: a handler that was not installed by Python, and cannot be installed by it.
                if handler is not found and handler is not None:
                    signal.signal(number, handler)
        if signal.pthread_sigmask(signal.SIG_BLOCK, ()) != self._mask:
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)

    def _restore_environment(self) -> None:
        if _environment() == self._environment:
            return
        for name in set(_environment()).difference(self._environment):
            del os.environb[name]
        os.environb.update(self._environment)
        time.tzset()

    def _restore_files(self) -> bool:
        """Restore the working directory and the standard streams. Returns False if one of them cannot be restored."""
        sys.stdout, sys.stderr = self._streams
        try:
            os.fchdir(self._home)
            is_open = not any(stream.closed for stream in self._streams if stream is not None)
        except (OSError, ValueError):  # ValueError: the stream was detached
            return False
        # If another file had this descriptor, it would receive the output of the next run.
        return is_open and all(_file_of(number) == file for number, file in self._files.items())


def _environment() -> dict[bytes, bytes]:
    """The variables as `os.environ` holds them. A copy through its public methods takes 40 times as long."""
    data: dict[bytes, bytes] = os.environ._data  # type: ignore[attr-defined]
    return data


def _read_umask() -> int:
    umask = os.umask(0o077)
    os.umask(umask)
    return umask


def _file_of(number: int) -> tuple[int, int] | None:
    """Return device and inode of the open file, or None if the descriptor is closed."""
    try:
        found = os.fstat(number)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _forget_event_loop() -> None:
    """Unset the event loop of this thread: a task may have set one and closed it."""
    asyncio = sys.modules.get("asyncio")
    if asyncio is not None:
        asyncio.set_event_loop(None)
