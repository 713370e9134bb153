"""The worker's side of one host process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys

from pyoco_server.core.outcome import Progress
from pyoco_server.errors import UsageError
from pyoco_server.executors.host import wire
from pyoco_server.logs import get_logger

__all__ = ["Host"]

log = get_logger(__name__)

#: Between the polite word and the last one.
_TERM_SECONDS = 1.0
_PROGRESS_SECONDS = 0.4


class _Reader(asyncio.Protocol):
    """Hands each body to whoever waits for it, and tells of the end."""

    def __init__(self) -> None:
        self._frames = wire.Frames()
        self._waiting: asyncio.Future[bytes | None] | None = None
        self._early: list[bytes] = []
        self.gone = False

    def next(self) -> asyncio.Future[bytes | None]:
        """The next body; None when the host is gone. One reader at a time."""
        self._waiting = asyncio.get_running_loop().create_future()
        if self._early:
            self._waiting.set_result(self._early.pop(0))
        elif self.gone:
            self._waiting.set_result(None)
        return self._waiting

    def data_received(self, data: bytes) -> None:
        for body in self._frames.feed(data):
            if self._waiting is not None and not self._waiting.done():
                self._waiting.set_result(body)
            else:
                self._early.append(body)

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone = True
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)


class Host:
    """One child process. Make it with `spawn`; it is warm when `ready` returns."""

    def __init__(
        self, process: asyncio.subprocess.Process, work: tuple[asyncio.WriteTransport, _Reader],
        control: tuple[asyncio.WriteTransport, _Reader],
    ) -> None:  # fmt: skip
        self._process = process
        self._work, self._work_reader = work
        self._control, self._control_reader = control
        self._asking = asyncio.Lock()
        self._unanswered: asyncio.Future[bytes | None] | None = None
        self._killed_because: str | None = None
        self.runs = 0

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.returncode is None and self._killed_because is None and not self._work_reader.gone

    @classmethod
    async def spawn(cls, settings: wire.Settings) -> Host:
        """A new process with its own process group, so that it can be killed with all it started."""
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
        finally:
            theirs_work.close()
            theirs_control.close()
        host = cls(process, await _connect(ours_work), await _connect(ours_control))
        host._work.write(wire.frame(settings.pack()))
        return host

    async def ready(self) -> None:
        """Returns when the host is warm. Raises UsageError when it cannot load the resolver, OSError when it died."""
        word = await self._work_reader.next()
        if word == b"R":
            return
        if word is not None and word.startswith(b"!"):
            raise UsageError(word[1:].decode())
        raise OSError(f"a host process ended before it was ready: {await self.how_it_ended()}")

    def run(self, data: bytes) -> asyncio.Future[bytes | None]:
        """One job, as it came from the queue. The answer is a packed outcome; None: the host is gone."""
        self.runs += 1
        self._work.write(wire.frame(data))
        return self._work_reader.next()

    async def progress(self) -> Progress | None:
        """None when the host does not answer: busy in code that holds the interpreter, or about to end."""
        async with self._asking:
            if self._unanswered is None:
                self._control.write(wire.PROGRESS)
                self._unanswered = self._control_reader.next()
            done, _ = await asyncio.wait({self._unanswered}, timeout=_PROGRESS_SECONDS)
            if not done:  # the question stands; the next call waits for the same answer
                return None
            body, self._unanswered = self._unanswered.result(), None
            return wire.unpack_progress(body) if body else None

    def ask_cancel(self) -> None:
        self._control.write(wire.CANCEL)

    def kill(self, because: str) -> None:
        """End the whole process group: politely, and a second later for good."""
        if self._killed_because is not None or self._process.returncode is not None:
            return
        self._killed_because = because
        self._signal(signal.SIGTERM)
        asyncio.get_running_loop().call_later(_TERM_SECONDS, self._signal, signal.SIGKILL)

    def kill_now(self) -> None:
        self._killed_because = self._killed_because or "the worker stopped"
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # the group is gone already
            os.killpg(self.pid, number)

    async def wait(self) -> int:
        """Waits for the end of the process and lets go of it. Returns its exit status."""
        self._work.close()
        self._control.close()
        return await self._process.wait()

    async def how_it_ended(self) -> str:
        """Waits for the end of the process. Whatever its tasks had started goes with it."""
        status = await self.wait()
        self._signal(signal.SIGKILL)
        if self._killed_because is not None:
            return self._killed_because
        if status < 0:
            name = signal.Signals(-status).name if -status in set(signal.Signals) else str(-status)
            return f"killed by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")
        return f"it left with exit status {status}"


async def _connect(ours: socket.socket) -> tuple[asyncio.WriteTransport, _Reader]:
    ours.setblocking(False)
    transport, reader = await asyncio.get_running_loop().create_connection(_Reader, sock=ours)
    return transport, reader
