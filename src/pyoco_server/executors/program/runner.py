"""The process that starts programs for a worker: `python -m pyoco_server.executors.program.runner FD`.

One process with one thread does everything that is fast, for all programs: it creates their directories, starts them,
reads their output, waits for their exit, and cleans up. The worker's own thread is thus free for the network, there is
no contention for the GIL, and starting a process is as cheap as possible.

It also exits last: the kernel notifies it when the worker exits, however abruptly, and it ends every program with its
process group. A program could request that notification itself, but only for itself and not for the processes it
starts; and it would cost a full fork (GRID-98).
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import socket
import sys
import time
from collections import deque

from pyoco_server.core.run_log.attempt_log import Limits
from pyoco_server.executors.descriptors import close_inherited
from pyoco_server.executors.program.directory import NameTaken, empty, remove
from pyoco_server.executors.program.find import ProgramNotFound
from pyoco_server.executors.program.outputs import LIGHT, Staged, TooMuch, find_outputs, pack
from pyoco_server.executors.program.printing import Printing
from pyoco_server.executors.program.running import NotStarted, Running, Tail, start
from pyoco_server.executors.program.settings import RunnerSettings
from pyoco_server.executors.program.strays import EXITING, end_strays
from pyoco_server.executors.program.wire import BEGIN, CANCEL, READY, Order, ProcessEnded, RunnerFrames, frame
from pyoco_server.executors.strays.reaper import adopt_orphans, die_with_parent, end_children, has_children

__all__ = ["Runner"]

#: Interval of the checks of time limits and of remaining group processes.
_TICK_SECONDS = 0.2
_SOON_SECONDS = 0.005
#: A pipe holds 64 KiB: few programs write more within this time, and those that do block until we read.
_FRESH_SECONDS = 0.002
_RECEIVE_BYTES = 1 << 16


class Runner:
    def __init__(self, line: socket.socket, settings: RunnerSettings) -> None:
        self._line, self._settings = line, settings
        self._frames = RunnerFrames()
        self._unsent = bytearray()
        self._printing = Printing(None if settings.log_limits is None else Limits(*settings.log_limits))
        self._epoll = select.epoll()
        self._by_pid: dict[int, Running] = {}
        self._by_number: dict[int, Running] = {}
        self._by_pipe: dict[int, Tail] = {}
        #: Ended programs with something left running, each with the time at which waiting ends.
        self._lingering: dict[Running, float] = {}
        #: Programs whose pipes are not watched yet: most end before it would be worthwhile.
        self._fresh: deque[Running] = deque()
        self._wanted = select.EPOLLIN
        self._may_have_strays = False
        self._ticked_at = 0.0
        self._is_leaving = False

    def serve(self) -> None:
        """Serve until the worker has exited or requests the end; then no process that was started is left."""
        awake, awake_theirs = os.pipe()
        for fd in (awake, awake_theirs):
            os.set_blocking(fd, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, self._leave)
        signal.signal(signal.SIGINT, lambda *_: None)
        signal.set_wakeup_fd(awake_theirs, warn_on_full_buffer=False)
        self._line.setblocking(False)
        self._epoll.register(self._line.fileno(), select.EPOLLIN)
        self._epoll.register(awake, select.EPOLLIN)
        self._unsent += frame(READY)
        try:
            while not self._is_leaving:
                self._add_lines()
                self._flush()
                for fd, _ in self._epoll.poll(self._poll_timeout()):
                    if fd == awake:
                        os.read(awake, 4096)
                        self._reap()
                    elif fd == self._line.fileno():
                        self._receive_orders()
                    else:
                        self._read_pipe(fd)
                self._tick()
        finally:
            self._end_all()

    def _poll_timeout(self) -> float | None:
        # While a message is pending, the worker's socket ends the wait.
        seconds = self._printing.seconds() if not self._unsent else None
        if self._lingering or self._fresh:
            return min(_SOON_SECONDS, seconds) if seconds is not None else _SOON_SECONDS
        if self._by_pid or self._may_have_strays:
            return min(_TICK_SECONDS, seconds) if seconds is not None else _TICK_SECONDS
        return seconds

    # Messages from and to the worker.

    def _receive_orders(self) -> None:
        try:
            data = self._line.recv(_RECEIVE_BYTES)
        except BlockingIOError:  # only became writable
            return
        except OSError:
            data = b""
        if not data:
            self._is_leaving = True
        for kind, value in self._frames.feed(data):
            if kind == BEGIN:
                self._begin(Order(*value))
                continue
            number, grace_seconds = value
            if (running := self._by_number.get(number)) is None:
                continue  # it has ended: its report is being sent
            if kind == CANCEL:
                running.ask_to_stop("cancel", grace_seconds)
            else:
                running.kill()

    def _add_lines(self) -> None:
        """Add a batch of lines to the messages, if there are none: reports wait for at most one batch."""
        if not self._unsent:
            self._unsent += self._printing.take()

    def _flush(self) -> None:
        """Send pending messages. Never waits: the pipes of programs must be read even while the worker is busy."""
        if not self._unsent:
            return
        try:
            del self._unsent[: self._line.send(self._unsent)]
        except BlockingIOError:
            pass
        except OSError:
            self._is_leaving = True
            return
        wanted = select.EPOLLIN | (select.EPOLLOUT if self._unsent else 0)
        if wanted != self._wanted:
            self._wanted = wanted
            self._epoll.modify(self._line.fileno(), wanted)

    # The life cycle of a program.

    def _begin(self, order: Order) -> None:
        try:
            running = start(order, self._settings, self._printing.feed)
        except NotStarted as fault:
            self._refuse(order, fault.code, fault.text)
        except ProgramNotFound as fault:
            self._refuse(order, "EXEC_NOT_FOUND", str(fault))
        except NameTaken as fault:
            self._refuse(order, "BAD_FILE_NAME", str(fault))
        except OSError as error:
            self._refuse(order, "WORKER_ERROR", f"the worker could not start it: {error.strerror}")
        except ValueError:  # an argument that cannot be passed to a program
            self._refuse(order, "WORKER_ERROR", "the worker could not start it: an argument is not valid")
        else:
            self._by_pid[running.pid] = self._by_number[running.number] = running
            self._fresh.append(running)

    def _refuse(self, order: Order, code: str, text: str) -> None:
        self._unsent += frame(*ProcessEnded(order.number, fault=(code, text)))

    def _watch(self, running: Running) -> None:
        for tail in (running.stdout, running.stderr):
            if tail.is_open and tail.fd not in self._by_pipe:
                self._by_pipe[tail.fd] = tail
                self._epoll.register(tail.fd, select.EPOLLIN)

    def _read_pipe(self, fd: int) -> None:
        tail = self._by_pipe.get(fd)
        if tail is not None:  # otherwise it was closed after the kernel reported the event
            tail.read()
            if not tail.is_open:
                self._hang_up(tail)

    def _hang_up(self, tail: Tail) -> None:
        """Close a pipe. Idempotent. It must be unregistered first: a child that is being started holds a copy of our
        descriptors for a moment, and during that time epoll would keep reporting this pipe."""
        if tail.fd >= 0:
            if self._by_pipe.pop(tail.fd, None) is not None:
                self._epoll.unregister(tail.fd)
            os.close(tail.fd)
            tail.fd = -1

    def _reap(self) -> None:
        """Reap all exited children: programs, and orphans of programs, which the kernel reparents to this process."""
        while True:
            try:
                child = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if child is None:
                return
            if child.si_pid not in self._by_pid:
                os.waitpid(child.si_pid, 0)
                continue
            running = self._by_pid.pop(child.si_pid)
            running.end()
            self._may_have_strays = True
            until = time.monotonic() + self._settings.linger_seconds
            if self._is_over(running, until):
                self._report(running)
            else:
                self._watch(running)
                self._lingering[running] = until

    def _tick(self) -> None:
        now = time.monotonic()
        while self._fresh and (now - self._fresh[0].started >= _FRESH_SECONDS or self._fresh[0].exit_code is not None):
            running = self._fresh.popleft()
            if running.exit_code is None:
                self._watch(running)
        for running, until in list(self._lingering.items()):
            if self._is_over(running, until):
                del self._lingering[running]
                self._report(running)
        if now - self._ticked_at >= _TICK_SECONDS:
            self._ticked_at = now
            for running in self._by_pid.values():
                running.check_time(now)
            if self._may_have_strays:
                self._may_have_strays = bool(self._end_strays())

    def _is_over(self, running: Running, until: float) -> bool:
        """Whether a program that has ended left no process (SAFE-6), in its group or outside.

        Processes that hold its pipes may write until `until`, and are killed then. Those that cannot be killed delay
        the report by the same time again. One system call if no other program runs, otherwise it reads one small file.
        """
        now = time.monotonic()
        if now < until and (running.is_open or not running.is_group_gone()):
            return False
        if now >= until + self._settings.linger_seconds or not has_children():
            return True
        return not {running.place.path, EXITING} & self._end_strays()

    def _end_strays(self) -> set[str | None]:
        now = time.monotonic()
        heard = [each for each, until in self._lingering.items() if each.is_open and now < until]
        return end_strays(self._by_pid, {each.place.path: each.started for each in (*self._by_pid.values(), *heard)})

    def _report(self, running: Running) -> None:
        del self._by_number[running.number]
        for tail in (running.stdout, running.stderr):
            self._hang_up(tail)
        stdout, stderr = running.stdout.take(), running.stderr.take()
        packed, left = self._tidy(running)
        ended = ProcessEnded(
            running.number,
            running.exit_code,
            running.stopped,
            None,
            stdout,
            stderr,
            running.stdout.is_truncated,
            running.stderr.is_truncated,
            running.started_at,
            running.ended_at,
            running.run_seconds,
            packed,
            left,
            self._printing.end(running.number),
        )
        self._unsent += frame(*ended)

    def _tidy(self, running: Running) -> tuple[tuple[str, int, str] | None, tuple[str, str] | None]:
        """Archive a few small files, and return the archive and what is left for the worker to do: the worker has
        threads for slow work, and no limit on file sizes."""
        place, program = running.place, running.program
        left = (place.path, program)
        try:
            if self._settings.keeps_jobs or running.is_heavy:
                return None, left
            if empty(place, running.inputs, program):
                return None, None
            if running.stopped == "kill":
                return None, left
            here = f"/proc/self/fd/{place.descriptor}"
            files = find_outputs(here, Staged(program, running.inputs), LIGHT)
            if not files or sum(size for _, size in files) > self._settings.output_bytes_max:
                return None, left
            target = (
                f"{self._settings.packed_dir}/{place.path[len(self._settings.work_root) + 1 :].replace('/', '-')}.zip"
            )
            packed = pack(here, files, target)
            remove(place.path)
        except (TooMuch, OSError):
            return None, left
        finally:
            place.close()
        return (packed.path, packed.size, packed.sha256), None

    def _reap_quietly(self) -> bool:
        """Reap exited children without reporting them. Returns False if no child is left."""
        try:
            while (child := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
                if child.si_pid in self._by_pid:
                    self._by_pid.pop(child.si_pid).end()
                else:
                    os.waitpid(child.si_pid, 0)
        except ChildProcessError:
            return False
        return True

    # Shutdown.

    def _leave(self, *_: object) -> None:
        self._is_leaving = True

    def _end_all(self) -> None:
        """End every program with its group, and remove their directories, which will not be needed any more."""
        for running in self._by_pid.values():
            running.kill()
        until = time.monotonic() + self._settings.linger_seconds
        while self._by_pid and self._reap_quietly() and time.monotonic() < until:
            time.sleep(_SOON_SECONDS)
        end_children()
        for running in self._by_number.values():
            if not self._settings.keeps_jobs:
                with contextlib.suppress(OSError):
                    remove(running.place.path)


def _bind(settings: RunnerSettings, parent: int) -> None:
    """Set what every program inherits (GRID-103), and bind this process to its worker."""
    os.umask(0o077)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = settings.output_bytes_max if hard == resource.RLIM_INFINITY else min(settings.output_bytes_max, hard)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 3 * settings.slots + 64
    if soft != resource.RLIM_INFINITY and soft < wanted:
        top = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, top), hard))
    adopt_orphans()
    die_with_parent(parent, signal.SIGTERM)


def main() -> None:
    close_inherited(int(sys.argv[1]))
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)  # every program's standard input (GRID-91): inheriting it costs nothing
    os.close(null)
    line = socket.socket(fileno=int(sys.argv[1]))
    line.set_inheritable(False)
    frames = RunnerFrames()
    greeting: list[tuple[object, ...]] = []
    while not greeting:
        data = line.recv(_RECEIVE_BYTES)
        if not data:
            return
        greeting = frames.feed(data)
    values, parent = greeting[0]
    settings = RunnerSettings(**values)  # type: ignore[arg-type]
    runner = Runner(line, settings)
    _bind(settings, int(str(parent)))
    runner.serve()


if __name__ == "__main__":
    main()
