"""The worker's side of one host process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace

from pyoco_server.core.outcome import Outcome, Progress
from pyoco_server.errors import UsageError
from pyoco_server.executors.host import wire
from pyoco_server.logs import get_logger

__all__ = ["READY_SECONDS_MAX", "Host"]

log = get_logger(__name__)

#: Imports of flows take seconds, not minutes.
READY_SECONDS_MAX = 120.0
#: Between the polite word and the last one.
_TERM_SECONDS = 1.0
_PROGRESS_SECONDS = 0.4
#: What a host has sent just before its end is still read.
_LAST_WORDS_SECONDS = 0.1


class _Reader(asyncio.Protocol):
    """Hands each body to whoever waits for it, and tells of the end.

    A task can write on these sockets: they are in its process. Whatever was not asked for, or cannot be read, ends the
    connection, and the host with it, so that no run is ever answered for by another.
    """

    def __init__(self) -> None:
        self._frames = wire.Frames()
        self._waiting: asyncio.Future[bytes | None] | None = None
        self._prefix = b""
        self._first: bytes | None = None
        self._transport: asyncio.BaseTransport | None = None
        self.gone = False
        #: It is gone because of what it sent.
        self.gave_up = False

    def next(self, prefix: bytes = b"") -> asyncio.Future[bytes | None]:
        """The next body, which has to begin with `prefix`; None when the host is gone. One reader at a time."""
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
            if self._waiting is None and self._first is None:  # ready before anyone has asked
                self._first = body
            elif self._waiting is None or self._waiting.done() or not body.startswith(self._prefix):
                return self.give_up()
            else:
                self._waiting.set_result(body[len(self._prefix) :])
        return None

    def give_up(self) -> None:
        log.warning("a host sent what nobody asked for; it is given up")
        self.gone = self.gave_up = True
        if self._transport is not None:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone = True
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)


class Host:
    """One child process. Make it with `spawn`; it is warm when `ready` returns."""

    def __init__(
        self, process: asyncio.subprocess.Process, work: tuple[asyncio.WriteTransport, _Reader],
        control: tuple[asyncio.WriteTransport, _Reader], settings: wire.Settings,
    ) -> None:  # fmt: skip
        self._process = process
        #: What it was started with. The very object: whose settings are not the pool's own is of another time.
        self.settings = settings
        self._work, self._work_reader = work
        self._control, self._control_reader = control
        self._asking = asyncio.Lock()
        self._unanswered: asyncio.Future[bytes | None] | None = None
        #: The run that the unanswered question was asked about.
        self._asked_about = 0
        #: Of the flow that runs, once the host has told it.
        self._graph: Mapping[str, Sequence[str]] = {}
        self._killed_because: str | None = None
        self.runs = 0
        #: What is wrong with plug-ins in wheels, by the directory of the wheel. Runs that do not want them are fine.
        self.faults: dict[str, str] = {}
        # A process that the tasks have started may hold our sockets open: the end is seen without them, too.
        self._exit = asyncio.ensure_future(process.wait())
        self._exit.add_done_callback(self._on_exit)
        self._is_swept = False

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        gone = self._work_reader.gone or self._control_reader.gone or self._exit.done()
        return not gone and self._killed_because is None

    @classmethod
    async def spawn(cls, settings: wire.Settings) -> Host:
        """A new process with its own process group, so that it can be killed with all it started."""
        spawning = asyncio.ensure_future(cls._spawn(settings))
        try:
            return await asyncio.shield(spawning)
        except asyncio.CancelledError:  # not half-way: nobody would know of the process
            host = await spawning
            host.kill_now()
            await host.wait()
            raise

    @classmethod
    async def _spawn(cls, settings: wire.Settings) -> Host:
        ours_work, theirs_work = socket.socketpair()
        ours_control, theirs_control = socket.socketpair()
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "pyoco_server.executors.host.child",
                str(theirs_work.fileno()),
                str(theirs_control.fileno()),
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=(theirs_work.fileno(), theirs_control.fileno()),
                start_new_session=True,
            )
        except OSError:
            ours_work.close()
            ours_control.close()
            raise
        finally:
            theirs_work.close()
            theirs_control.close()
        host = cls(process, await _connect(ours_work), await _connect(ours_control), settings)
        host._work.write(wire.frame(settings.pack()))
        return host

    async def ready(self, seconds: float = READY_SECONDS_MAX) -> None:
        """Returns when the host is warm. Raises UsageError when it cannot load the resolver or takes too long, OSError
        when it died."""
        try:
            async with asyncio.timeout(seconds):
                word = await self._work_reader.next()
        except TimeoutError:
            raise UsageError(f"a host process did not get ready within {seconds:g} s; is an import hanging?") from None
        if word is not None and word.startswith(wire.FAULT):
            raise UsageError(word[1:].decode("utf-8", "replace"))
        if word is not None:
            try:
                self.faults = wire.unpack_ready(word)
            except ValueError:
                self._give_up(self._work_reader)
            else:
                return
        raise OSError(f"a host process ended before it was ready: {await self.how_it_ended()}")

    def run(self, data: bytes) -> asyncio.Future[bytes | None]:
        """One job, as it came from the queue. The answer is a packed outcome; None: the host is gone."""
        self.runs += 1
        self._graph = {}
        self._work.write(wire.frame(data))
        return self._work_reader.next(wire.number(self.runs))

    def read_outcome(self, body: bytes) -> Outcome | None:
        """What the answer to `run` says. None: nothing that can be read; then a task has written it, and the host is
        given up."""
        try:
            return wire.unpack_outcome(body)
        except ValueError:
            self._give_up(self._work_reader)
            return None

    async def progress(self) -> Progress | None:
        """None when the host does not answer: busy in code that holds the interpreter, or about to end."""
        async with self._asking:
            if self._unanswered is None:
                word = wire.PROGRESS if self._graph else wire.GRAPH
                self._control.write(wire.frame(word + wire.number(self.runs)))
                self._unanswered, self._asked_about = self._control_reader.next(), self.runs
            done, _ = await asyncio.wait({self._unanswered}, timeout=_PROGRESS_SECONDS)
            if not done:  # the question stands; the next call waits for the same answer
                return None
            body, self._unanswered = self._unanswered.result(), None
            if not body or self._asked_about != self.runs:  # about an earlier run: it tells nothing of this one
                return None
            try:
                progress = wire.unpack_progress(body)
            except ValueError:
                self._give_up(self._control_reader)
                return None
            self._graph = self._graph or progress.graph
            return replace(progress, graph=self._graph)  # each time: the write that carries it may fail

    def ask_cancel(self) -> None:
        self._control.write(wire.frame(wire.CANCEL + wire.number(self.runs)))

    def kill(self, because: str) -> None:
        """End the whole process group: politely, and a second later for good."""
        if self._killed_because is not None or self._exit.done():
            return
        self._killed_because = because
        self._signal(signal.SIGTERM)
        asyncio.get_running_loop().call_later(_TERM_SECONDS, self._signal, signal.SIGKILL)

    def kill_now(self) -> None:
        if self.is_alive:  # otherwise it has a reason of its own
            self._killed_because = "the worker stopped"
        self._signal(signal.SIGKILL)

    def _give_up(self, reader: _Reader) -> None:
        reader.give_up()
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        """To the whole group, until the process has ended: from then on the number may be somebody else's."""
        if self._is_swept:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):  # the group is gone already
            os.killpg(self.pid, number)

    async def wait(self) -> int:
        """Waits for the end of the process and lets go of it. Returns its exit status."""
        self._work.close()
        self._control.close()
        return await asyncio.shield(self._exit)

    def _on_exit(self, _: object) -> None:
        self._signal(signal.SIGKILL)  # whatever its tasks had started goes with it
        self._is_swept = True
        for transport in (self._work, self._control):
            asyncio.get_running_loop().call_later(_LAST_WORDS_SECONDS, transport.close)

    async def how_it_ended(self) -> str:
        """Waits for the end of the process."""
        status = await self.wait()
        if self._killed_because is not None:
            return self._killed_because
        if self._work_reader.gave_up or self._control_reader.gave_up:
            return "it sent what nobody had asked for or can read; did a task write on the worker's line?"
        if status < 0:
            name = signal.Signals(-status).name if -status in set(signal.Signals) else str(-status)
            return f"killed by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")
        return f"it left with exit status {status}"


async def _connect(ours: socket.socket) -> tuple[asyncio.WriteTransport, _Reader]:
    ours.setblocking(False)
    transport, reader = await asyncio.get_running_loop().create_connection(_Reader, sock=ours)
    return transport, reader
