"""One running program, inside the runner: how it is started, read and stopped (GRID-98 to GRID-103)."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import time
from collections import deque
from collections.abc import Callable
from functools import partial

from pyoco_server.core.run_log.line import Stream
from pyoco_server.executors.program.directory import TMP, WorkDirectory, copy_program, make, remove
from pyoco_server.executors.program.find import FoundProgram, find
from pyoco_server.executors.program.settings import RunnerSettings
from pyoco_server.executors.program.wire import Order, Stopped

__all__ = ["Feed", "NotStarted", "Running", "Tail", "start"]

_PIECE_BYTES = 1 << 16
#: Limit of the pieces read at the end of a program: other holders of its pipe may write without end.
_LAST_PIECES_MAX = 32
#: Python ignores the first two, and a shell the others for background processes; programs expect the default actions.
_SIGNALS_DEFAULT = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM)
#: This machine cannot run the file: retrying would not help.
_NEVER = frozenset({errno.ENOEXEC, errno.ENOENT, errno.ELIBBAD, errno.ENOTDIR, errno.EISDIR})


class NotStarted(Exception):
    """The program could not be started: an error code and one line for users."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code, self.text = code, text


#: Gets what is read: the number of the attempt, the stream and the bytes.
Feed = Callable[[int, Stream, bytes], None]


class Tail:
    """The last bytes of a pipe; earlier ones are dropped. The owner of this object closes the pipe."""

    __slots__ = ("_bytes_max", "_feed", "_held", "_pieces", "fd", "is_open", "is_truncated")

    def __init__(self, fd: int, bytes_max: int, feed: Callable[[bytes], None]) -> None:
        """`feed` gets every piece that is read."""
        self.fd, self._bytes_max, self._feed = fd, bytes_max, feed
        self._pieces: deque[bytes] = deque()
        self._held = 0
        #: Whether more data may follow.
        self.is_open = True
        self.is_truncated = False

    def read(self) -> bool:
        """Read available data, up to one piece. Returns False if there is none now, or the pipe was closed."""
        try:
            piece = os.read(self.fd, _PIECE_BYTES)
        except BlockingIOError:
            return False
        if not piece:
            self.is_open = False
            return False
        self._feed(piece)
        self._pieces.append(piece)
        self._held += len(piece)
        while self._held - len(self._pieces[0]) >= self._bytes_max:
            self._held -= len(self._pieces.popleft())
            self.is_truncated = True
        return True

    def drain(self) -> None:
        for _ in range(_LAST_PIECES_MAX):
            if not self.is_open or not self.read():
                return

    def take(self) -> bytes:
        """Return the collected bytes. Call it once, before `is_truncated`."""
        data = b"".join(self._pieces)
        self._pieces.clear()
        if len(data) > self._bytes_max:
            self.is_truncated = True
            data = data[-self._bytes_max :]
        return data


class Running:
    """A program, from just before its start until nothing of it is left."""

    __slots__ = (
        "_asked_at",
        "_kill_seconds",
        "ended_at",
        "exit_code",
        "inputs",
        "is_heavy",
        "kill_at",
        "number",
        "pid",
        "place",
        "program",
        "run_seconds",
        "started",
        "started_at",
        "stderr",
        "stdout",
        "stop_at",
        "stopped",
    )

    def __init__(
        self,
        order: Order,
        settings: RunnerSettings,
        place: WorkDirectory,
        program: str,
        pipes: tuple[int, int],
        feed: Feed,
    ) -> None:
        self.number, self._kill_seconds = order.number, settings.kill_seconds
        #: Size and sha256 of each input, without its bytes.
        self.inputs = {name: (size, sha256) for name, size, sha256, _ in order.inputs}
        #: Its inputs are large, so removing or reading them may take long.
        self.is_heavy = order.is_made
        self.place, self.program = place, program
        self.pid = 0
        self.stdout, self.stderr = (
            Tail(pipe, settings.stdio_bytes_max, partial(feed, order.number, stream))
            for pipe, stream in zip(pipes, (Stream.STDOUT, Stream.STDERR), strict=True)
        )
        self.started_at, self.started = time.time(), time.monotonic()
        #: By the monotonic clock: when its time limit ends, and when its grace period ends.
        self.stop_at: float | None = self.started + order.timeout_sec
        self.kill_at: float | None = None
        self._asked_at = 0.0
        self.stopped: Stopped | None = None
        self.exit_code: int | None = None
        self.ended_at = self.run_seconds = 0.0

    @property
    def is_open(self) -> bool:
        """Whether a process may still write to its pipes."""
        return self.stdout.is_open or self.stderr.is_open

    def has_ended(self) -> bool:
        """Whether the program has exited, though this has not been processed yet."""
        return (
            self.exit_code is not None
            or os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        )

    def ask_to_stop(self, why: Stopped, grace_seconds: float | None = None) -> None:
        """Send SIGTERM now, and SIGKILL after the grace period. A program that has ended, or was stopped before, keeps
        its reason (GRID-161).

        `grace_seconds`: a shorter grace period, from the first request on; later requests may shorten it further.
        """
        if self.stopped is None and not self.has_ended():
            self.stopped, self.stop_at = why, None
            self._asked_at = time.monotonic()
            self.kill_at = self._asked_at + self._kill_seconds
            self._signal(signal.SIGTERM)
            self._signal(signal.SIGCONT)  # a stopped process would not handle the SIGTERM
        if grace_seconds is not None and self.kill_at is not None:
            self.kill_at = min(self.kill_at, self._asked_at + grace_seconds)

    def kill(self) -> None:
        self.stopped, self.stop_at, self.kill_at = "kill", None, None
        self._signal(signal.SIGKILL)

    def check_time(self, now: float) -> None:
        if self.stop_at is not None and now >= self.stop_at:
            self.ask_to_stop("timeout")
            self.stop_at = None
        if self.kill_at is not None and now >= self.kill_at:
            self.kill_at = None
            self._signal(signal.SIGKILL)

    def end(self) -> None:
        """End the rest of its process group and release it. The program has exited and is not yet reaped, so its
        process id cannot have been reused."""
        self._signal(signal.SIGKILL)
        _, status = os.waitpid(self.pid, 0)
        self.exit_code = os.waitstatus_to_exitcode(status)
        self.ended_at, self.run_seconds = time.time(), time.monotonic() - self.started
        self.stdout.drain()
        self.stderr.drain()

    def is_group_gone(self) -> bool:
        """Whether no process of its group is left. Signal 0 is harmless, should the id be reused by now."""
        try:
            os.killpg(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:  # a group with that id belongs to another user
            return True
        return False

    def _signal(self, number: signal.Signals) -> None:
        """Signal the whole group. Only until the program is reaped: after that, the id may be reused."""
        if self.exit_code is None:
            # All processes of the group have changed their user.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)


def start(order: Order, settings: RunnerSettings, feed: Feed) -> Running:
    """Create the directory, put in the inputs, the program and `tmp/`, and start it there. `feed` gets what it prints.

    Standard input, the limits and the umask are those of this process: set once, inherited by all (GRID-103). Raises
    NotStarted, NotFound, NameTaken, OSError. After any exception neither directory nor process is left.
    """
    place = _open(order, settings) if order.is_made else None
    found: FoundProgram | None = None
    try:
        found = find(settings.exec_dir, order.exec_name)
        if place is None:
            place = make(settings.work_root, order.job_id, order.attempt, settings.owner)
        for name, _, _, data in order.inputs:
            if data is not None:
                place.write(name, data)
        copy_program(place, found)
        place.make_tmp()
        return _spawn(order, settings, place, found, feed)
    except BaseException:
        if place is not None:
            place.close()
            with contextlib.suppress(OSError):  # it is then removed at the next start
                remove(place.path)
        raise
    finally:
        if found is not None:
            os.close(found.descriptor)


def _open(order: Order, settings: RunnerSettings) -> WorkDirectory:
    path = f"{settings.work_root}/{order.job_id}/a{order.attempt}"
    return WorkDirectory(path, os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC))


def _spawn(order: Order, settings: RunnerSettings, place: WorkDirectory, found: FoundProgram, feed: Feed) -> Running:
    out, out_theirs = os.pipe()
    try:
        err, err_theirs = os.pipe()
    except OSError:
        os.close(out)
        os.close(out_theirs)
        raise
    os.set_blocking(out, False)
    os.set_blocking(err, False)
    try:
        argv = (*found.interpreter, f"{place.path}/{found.file_name}", *order.args)
        os.fchdir(place.descriptor)  # of this process, which has one thread: the child inherits it
        running = Running(order, settings, place, found.file_name, (out, err), feed)
        running.pid = _posix_spawn(argv, _environment(order, settings, place), (out_theirs, err_theirs), place)
    except BaseException:
        os.close(out)
        os.close(err)
        raise
    finally:
        os.chdir("/")  # otherwise we would hold the directory after its end
        os.close(out_theirs)
        os.close(err_theirs)
    return running


def _posix_spawn(argv: tuple[str, ...], env: dict[str, str], pipes: tuple[int, int], place: WorkDirectory) -> int:
    actions = ((os.POSIX_SPAWN_DUP2, pipes[0], 1), (os.POSIX_SPAWN_DUP2, pipes[1], 2))
    try:
        # Like vfork: a real fork of this process would cost as much as all the rest (measured: 0.4 ms more).
        return os.posix_spawn(argv[0], argv, env, file_actions=actions, setsid=True, setsigdef=_SIGNALS_DEFAULT)
    except OSError as error:
        if error.errno in _NEVER:
            raise NotStarted("EXEC_NOT_FOUND", f"it is no program for this machine: {error.strerror}") from error
        if error.errno in {errno.EACCES, errno.EPERM} and os.fstatvfs(place.descriptor).f_flag & os.ST_NOEXEC:
            text = "nothing may be executed below WORK_ROOT: its file system is mounted noexec"
            raise NotStarted("WORKER_ERROR", text) from error
        raise


def _environment(order: Order, settings: RunnerSettings, place: WorkDirectory) -> dict[str, str]:
    """GRID-94"""
    return {
        **settings.environment,
        "HOME": place.path,
        "TMPDIR": f"{place.path}/{TMP}",
        "JOB_ID": order.job_id,
        "RUN_ID": order.run_id,
        "CLIENT_ID": order.client_id,
        "EXEC_NAME": order.exec_name,
        "ATTEMPT": str(order.attempt),
    }
