"""The worker's side of one child process of any kind: its sockets, its exit, and a description of how it ended."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from pyoco_server.core.run_log.shipment import Shipment
from pyoco_server.errors import AppNotLoaded, UsageError
from pyoco_server.executors.capture.port import Captured, Collector
from pyoco_server.executors.capture.wire import Shipments, argument
from pyoco_server.executors.host import wire
from pyoco_server.executors.strays.guard import DONE, END, TERMINATE
from pyoco_server.executors.strays.marks import end_marked, new_mark, with_mark
from pyoco_server.logs import get_logger

__all__ = ["READY_SECONDS_MAX", "ChildProcess", "Launched", "Reader", "completed_start", "launch"]

log = get_logger(__name__)

#: Imports of flows take seconds, not minutes.
READY_SECONDS_MAX = 120.0
#: Delay between SIGTERM and SIGKILL.
_TERM_SECONDS = 1.0
#: A guard ends all processes below it within five seconds. One that takes longer is suspended or was tampered with.
_GUARD_SECONDS = 7.0
#: Data that a host sent just before its exit is still read for this long.
_LAST_WORDS_SECONDS = 0.1


class Reader(asyncio.Protocol):
    """Passes each body to its waiting caller, and reports the end of the connection.

    A task can write to these sockets, since they are in its process. An unexpected or malformed body closes the
    connection and ends the host, so that a run never gets the answer of another.
    """

    def __init__(self, bytes_max: int = wire.FRAME_BYTES_MAX) -> None:
        self._frames = wire.Frames(bytes_max)
        self._waiting: asyncio.Future[bytes | None] | None = None
        self._prefix = b""
        self._first: bytes | None = None
        self._transport: asyncio.BaseTransport | None = None
        self.gone = False
        #: Receives each REMARK, which nobody has asked for. None: there may be none.
        self.on_remark: Callable[[bytes], None] | None = None
        #: The connection was closed because of what it sent.
        self.gave_up = False

    def next(self, prefix: bytes = b"") -> asyncio.Future[bytes | None]:
        """Return a future of the next body, which must begin with `prefix`; None if the host exited. One reader at a
        time."""
        self._waiting, self._prefix = asyncio.get_running_loop().create_future(), prefix
        if self._first is not None:
            self._waiting.set_result(self._first)
            self._first = None
        elif self.gone:
            self._waiting.set_result(None)
        return self._waiting

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        try:
            bodies = self._frames.feed(data)
        except ValueError:
            return self.give_up()
        for body in bodies:
            if self.on_remark is not None and body.startswith(wire.REMARK):
                self.on_remark(body[len(wire.REMARK) :])
            elif self._waiting is None and self._first is None:  # the ready message arrived before the first read
                self._first = body
            elif self._waiting is None or self._waiting.done() or not body.startswith(self._prefix):
                return self.give_up()
            else:
                self._waiting.set_result(body[len(self._prefix) :])
        return None

    def give_up(self) -> None:
        log.warning("host sent an unexpected message; closing its connection")
        self.gone = self.gave_up = True
        if self._transport is not None:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone = True
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)


@dataclass(frozen=True)
class Launched:
    """A child process and its sockets. It is a guard, with the process that does the work below it."""

    process: asyncio.subprocess.Process
    work: tuple[asyncio.WriteTransport, Reader]
    control: tuple[asyncio.WriteTransport, Reader]
    #: To its guard, which kills everything below it when this is closed.
    lifeline: socket.socket
    #: An environment variable of every process started below it.
    mark: str
    #: The lines of its runs; None: they are not captured.
    lines: LineReader | None = None


async def launch(
    module: str,
    *,
    bytes_max: int = wire.FRAME_BYTES_MAX,
    output: int | None = None,
    environment: Mapping[str, str],
    collector: Collector | None = None,
) -> Launched:
    """Start a process of this module below its own guard, so that it can be killed with all it started.

    `bytes_max` bounds one message from it; `output` is where its stdout and stderr go, None being ours; `environment`
    are its variables; `collector` gets what its runs print. Raises OSError if there is no room for it. After any
    exception nothing is left: a process that was started but not returned exits when its sockets are closed.
    """
    try:
        return await _launched(module, bytes_max, output, environment, collector)
    except RuntimeError as error:  # asyncio: no thread for the child watcher; uvloop: the socket is closed
        raise OSError(f"a process cannot be started: {error}") from error


async def _launched(
    module: str, bytes_max: int, output: int | None, environment: Mapping[str, str], collector: Collector | None
) -> Launched:
    mark = new_mark()
    async with contextlib.AsyncExitStack() as undo:
        with contextlib.ExitStack() as theirs:
            ours_work, theirs_work = _line(undo, theirs)
            ours_control, theirs_control = _line(undo, theirs)
            lifeline, theirs_life = _line(undo, theirs)
            fds = [theirs_work.fileno(), theirs_control.fileno(), theirs_life.fileno()]
            arguments = [str(fd) for fd in fds]
            if collector is not None:
                ours_lines, theirs_lines = _line(undo, theirs)
                fds.append(theirs_lines.fileno())
                arguments.append(argument(theirs_lines.fileno(), collector.limits, collector.level))
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                module,
                *arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=fds,
                start_new_session=True,
                env=with_mark(environment, mark),
            )
        undo.push_async_callback(_end, process, lifeline)
        work = await _connect(ours_work, bytes_max)
        undo.callback(work[0].abort)
        control = await _connect(ours_control, bytes_max)
        lines = None
        if collector is not None:
            undo.callback(control[0].abort)
            lines = LineReader(collector)
            await _connect_to(ours_lines, lines)
        undo.pop_all()
        lifeline.setblocking(False)
        return Launched(process, work, control, lifeline, mark, lines)


def _line(ours: contextlib.AsyncExitStack, theirs: contextlib.ExitStack) -> tuple[socket.socket, socket.socket]:
    one, other = socket.socketpair()
    ours.callback(one.close)
    theirs.callback(other.close)
    return one, other


async def _end(process: asyncio.subprocess.Process, lifeline: socket.socket) -> None:
    _send(lifeline, END)
    await process.wait()


def _send(lifeline: socket.socket, message: bytes) -> None:
    with contextlib.suppress(OSError):  # the guard has exited
        lifeline.send(message)


def _has_killed_all(lifeline: socket.socket) -> bool:
    """Whether a guard that has exited left no process."""
    with contextlib.suppress(OSError):
        return lifeline.recv(1) == DONE
    return False


async def _connect(ours: socket.socket, bytes_max: int) -> tuple[asyncio.WriteTransport, Reader]:
    reader = Reader(bytes_max)
    return await _connect_to(ours, reader), reader


async def _connect_to(ours: socket.socket, protocol: asyncio.Protocol) -> asyncio.WriteTransport:
    ours.setblocking(False)
    transport, _ = await asyncio.get_running_loop().create_connection(lambda: protocol, sock=ours)
    return transport


class LineReader(asyncio.Protocol):
    """Receives the lines of a host from its guard, and passes them on with the run that they belong to.

    Whose lines they are is decided here, by the number of the run on this host: code of a run cannot name another.
    """

    #: The runs whose lines may still arrive: a guard is at most a moment behind its host.
    _RUNS_MAX = 4096

    def __init__(self, collector: Collector) -> None:
        self._collector, self._shipments = collector, Shipments()
        self._runs: dict[int, Captured] = {}
        self._transport: asyncio.BaseTransport | None = None

    def expect(self, number: int, run: Captured) -> None:
        """This run begins on the host."""
        self._runs[number] = run
        if len(self._runs) > self._RUNS_MAX:
            del self._runs[next(iter(self._runs))]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        try:
            for number, shipment in self._shipments.feed(data):
                self._pass_on(number, shipment)
        except ValueError as error:
            log.warning("the guard of a host sent unreadable lines; dropping the rest", error=error)
            if self._transport is not None:
                self._transport.close()

    def _pass_on(self, number: int, shipment: Shipment) -> None:
        run = self._runs.get(number)
        if run is None:
            return
        self._collector.collect(run, shipment)
        if shipment.is_last:
            for earlier in [each for each in self._runs if each <= number]:
                del self._runs[earlier]


class ChildProcess:
    """One child process. It is warm once its ready message has arrived."""

    def __init__(self, launched: Launched, settings: Any) -> None:
        #: What it was started with, and whether it has ever been ready.
        self.settings = settings
        self.is_warm = False
        self._process, self._lifeline, self._mark = launched.process, launched.lifeline, launched.mark
        self._work, self._work_reader = launched.work
        self._control, self._control_reader = launched.control
        self._lines = launched.lines
        self._killed_because: str | None = None
        self._is_leaving = False
        self.runs = 0
        #: Its exit status, or the negative number of the signal that killed it, if nobody here ended it.
        self.own_status: int | None = None
        #: The guard has been sent END.
        self._is_ending = False
        self._is_over = False
        # A process that the tasks have started may hold our sockets open: the exit is detected without them, too.
        self._exit = asyncio.ensure_future(self._await_exit())
        self._exit.add_done_callback(self._on_exit)

    @property
    def pid(self) -> int:
        """Process id of the guard: the parent of the host and the root of everything it has started."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether it can take more work. False also after it has announced its exit."""
        is_disconnected = self._work_reader.gone or self._control_reader.gone or self._is_over
        return not is_disconnected and not self._is_leaving and self._killed_because is None

    @classmethod
    async def spawn(cls, settings: Any, collector: Collector | None = None) -> Self:
        """Start a process in its own process group, so that it can be killed with all it started. Raises OSError.

        `collector` gets what its runs print; None: that is not captured.
        """
        return await completed_start(cls._spawn(settings, collector))

    @classmethod
    async def _spawn(cls, settings: Any, collector: Collector | None) -> Self:
        raise NotImplementedError

    async def ready(self, seconds: float) -> None:
        """Return when it is warm. Raises UsageError if it cannot do its work or takes too long, OSError if it died."""
        raise NotImplementedError

    def _expect(self, captured: Captured) -> None:
        """What the run that begins now prints belongs to this attempt."""
        if self._lines is not None:
            self._lines.expect(self.runs, captured)

    def _greet(self, body: bytes) -> None:
        """Send the settings. If the process has exited already, `_ready_message` reports it."""
        with contextlib.suppress(RuntimeError):  # raised by uvloop if the socket is closed
            self._work.write(wire.frame(body))

    async def _ready_message(self, seconds: float) -> bytes | None:
        """Wait for the ready message. Returns None if the process exited. Raises UsageError if it reports a fault or
        sends nothing in time."""
        try:
            async with asyncio.timeout(seconds):
                message = await self._work_reader.next()
        except TimeoutError:
            raise UsageError(f"a host process did not get ready within {seconds:g} s; is an import hanging?") from None
        if message is not None and message.startswith(wire.FAULT):
            raise UsageError(message[1:].decode("utf-8", "replace"))
        if message is not None and message.startswith(wire.APP_FAULT):
            raise AppNotLoaded(message[1:].decode("utf-8", "replace"))
        return message

    def _unmarked(self, body: bytes) -> bytes:
        """Strip the mark of an answer and remember it: after LAST the process gets no more work."""
        self._is_leaving = not body.startswith(wire.MORE)
        return body[1:]

    def ask_cancel(self) -> None:
        self._control.write(wire.frame(wire.CANCEL + wire.number(self.runs)))

    def kill(self, because: str) -> None:
        """End it: SIGTERM to its process group, and a second later SIGKILL to everything it has started."""
        if self._killed_because is not None or self._is_over:
            return
        self._killed_because = because
        _send(self._lifeline, TERMINATE)
        asyncio.get_running_loop().call_later(_TERM_SECONDS, self._end_all)

    def kill_now(self, because: str = "the worker stopped") -> None:
        if self.is_alive:  # otherwise the reason is known already
            self._killed_because = because
        self._end_all()

    def _give_up(self, reader: Reader) -> None:
        reader.give_up()
        self._end_all()

    def _end_all(self) -> None:
        if self._is_over or self._is_ending:
            return
        self._is_ending = True
        _send(self._lifeline, END)
        asyncio.get_running_loop().call_later(_GUARD_SECONDS, self._end_guard)

    def _end_guard(self) -> None:
        """Kill the guard, which did not exit in time. `_await_exit` then finds the processes below it by their mark."""
        if not self._is_over:
            log.error("the guard of a host process did not exit in time; killing it", pid=self.pid)
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    async def _await_exit(self) -> int:
        """Return its exit status, once nothing that it has started is left (SAFE-6)."""
        try:
            status = await self._process.wait()
            has_killed_all = _has_killed_all(self._lifeline)
        finally:
            self._is_over = True
            self._lifeline.close()
        if not has_killed_all:  # the guard itself was killed
            await asyncio.to_thread(end_marked, self._mark)
        return status

    async def wait(self) -> int:
        """Close the sockets, wait for the exit and return the exit status."""
        self._work.close()
        self._control.close()
        return await asyncio.shield(self._exit)

    def _on_exit(self, _: object) -> None:
        for transport in (self._work, self._control):
            asyncio.get_running_loop().call_later(_LAST_WORDS_SECONDS, transport.close)

    async def how_it_ended(self) -> str:
        """Wait for the exit and describe it."""
        status = await self.wait()
        if self._killed_because is not None:
            return self._killed_because
        if self._work_reader.gave_up or self._control_reader.gave_up:
            return "it sent an unexpected or invalid message; did a task write to the worker's socket?"
        self.own_status = status
        if status < 0:
            name = signal.Signals(-status).name if -status in set(signal.Signals) else str(-status)
            return f"killed by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")
        return f"it ended with exit status {status}"


C = TypeVar("C", bound=ChildProcess)


async def completed_start(spawning: Coroutine[Any, Any, C]) -> C:
    """Complete a start even if the caller is cancelled, however often: otherwise the process would be lost."""
    task = asyncio.ensure_future(spawning)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        ending = asyncio.ensure_future(_end_started(task))
        while not ending.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.shield(ending)
        raise


async def _end_started(starting: asyncio.Future[C]) -> None:
    with contextlib.suppress(OSError):  # then there is no process
        child = await starting
        child.kill_now()
        await child.wait()
