"""The worker's side of one process that executes packs, and of one call on it."""

from __future__ import annotations

import asyncio
import enum
import os
import signal
from collections.abc import Callable
from typing import Self

from pyoco_server.executors.capture.port import Captured, Collector
from pyoco_server.executors.host.environment import pack_environment
from pyoco_server.executors.host.process import READY_SECONDS_MAX, ChildProcess, Launched, launch
from pyoco_server.executors.host.wire import CANCEL, MORE, frame, number
from pyoco_server.executors.packs import wire
from pyoco_server.executors.packs.port import Call, Executed, Faulted, Outcome, Stopped, TimedOut

__all__ = ["KILL_SECONDS", "PackExecution", "PackHost"]

#: PRICED-124: a pack that is still running this long after its cancel request is killed.
KILL_SECONDS = 5.0
#: Answers larger than this are decoded in a thread, so that heartbeats of other runs are not delayed.
_LARGE_BYTES = 262_144
#: Time between the closing of the sockets and the exit of the process.
_LINGER_SECONDS = 1.0
#: A pack is executed once at most.
_ATTEMPT = 1
#: Length of the call number and the mark that precede each answer.
_FRONT_BYTES = len(number(0) + MORE)


class PackHost(ChildProcess):
    """One child process. Create it with `spawn`; it is warm when `ready` returns."""

    def __init__(self, launched: Launched, greeting: wire.Greeting) -> None:
        super().__init__(launched, greeting)

    @classmethod
    async def _spawn(cls, greeting: wire.Greeting, collector: Collector | None) -> Self:
        launched = await launch(
            "pyoco_server.executors.packs.child",
            bytes_max=_FRONT_BYTES + wire.ANSWER_BYTES_MAX,
            output=asyncio.subprocess.DEVNULL,  # what a pack prints may contain tenant data
            environment=pack_environment(os.environ),
            collector=collector,
        )
        host = cls(launched, greeting)
        host._greet(greeting.pack())
        return host

    async def ready(self, seconds: float = READY_SECONDS_MAX) -> None:
        """Return when the host is warm. Raises UsageError if the packs cannot be loaded or that takes too long, OSError
        if it died or reports other packs than it was sent."""
        message = await self._ready_message(seconds)
        if message is not None:
            try:
                wire.check_ready(message, self.settings.packs)
            except ValueError:
                self._give_up(self._work_reader)
            else:
                return
        raise OSError(f"a pack process ended before it was ready: {await self.how_it_ended()}")

    def call(self, call: Call) -> asyncio.Future[bytes | None]:
        """Send a call. The future yields the packed answer, or None if the host exited."""
        self.runs += 1
        self._expect(Captured(call.run_id, _ATTEMPT))
        self._work.write(frame(wire.pack_call(call)))
        return self._work_reader.next(number(self.runs))

    def ask_cancel(self) -> None:
        if self.is_alive:
            self._control.write(frame(CANCEL + number(self.runs)))

    async def read_answer(self, body: bytes) -> Executed | Faulted | None:
        """Decode an answer. Returns None if it is malformed: the pack has written to the socket, and the host is
        killed."""
        body = self._unmarked(body)
        try:
            if len(body) < _LARGE_BYTES:
                return wire.unpack_answer(body)
            return await asyncio.to_thread(wire.unpack_answer, body)
        except ValueError:
            self._give_up(self._work_reader)
            return None

    @property
    def was_killed(self) -> bool:
        """Whether the worker killed it: then its exit is not the pack's fault."""
        return self._killed_because is not None

    async def last_words(self) -> str:
        """Describe how it ended, for the owner of the run. Waits for the exit and forces it: a pack may have closed the
        sockets and continued to run."""
        await asyncio.wait({self._exit}, timeout=_LINGER_SECONDS)
        self._end_all()
        status = await self.wait()
        if self._work_reader.gave_up or self._control_reader.gave_up:
            return "the pack's process sent an invalid message"
        if status < 0:
            name = signal.Signals(-status).name if -status in set(signal.Signals) else str(-status)
            return f"the pack's process ended by {name}"
        return f"the pack's process ended with exit status {status}"


class _Verdict(enum.Enum):
    """A decision about a call that was made before it ended. The first one stays."""

    TIMED_OUT = enum.auto()
    STOPPED = enum.auto()


class PackExecution:
    """One call on one host. Its timebox begins when it is created."""

    def __init__(self, host: PackHost, call: Call, when_over: Callable[[], None]) -> None:
        self._host = host
        self._verdict: _Verdict | None = None
        self._killing: asyncio.TimerHandle | None = None
        loop = asyncio.get_running_loop()
        self._answer = host.call(call)
        self._timebox = loop.call_later(call.timebox_seconds, self._end, _Verdict.TIMED_OUT)
        self._outcome = loop.create_task(self._conclude(when_over), name=f"pack {call.run_id}")

    async def outcome(self) -> Outcome:
        return await asyncio.shield(self._outcome)

    def cancel(self) -> None:
        self._end(_Verdict.STOPPED)

    def kill(self) -> None:
        self._verdict = self._verdict or _Verdict.STOPPED
        self._kill()

    def _end(self, verdict: _Verdict) -> None:
        if self._answer.done() or self._verdict is not None:
            return
        self._verdict = verdict
        self._host.ask_cancel()
        self._killing = asyncio.get_running_loop().call_later(KILL_SECONDS, self._kill)

    def _kill(self) -> None:
        if not self._answer.done():
            self._host.kill_now("it did not stop on request")

    async def _conclude(self, when_over: Callable[[], None]) -> Outcome:
        """Determine the outcome. A result that arrives after the timebox or a stop is discarded: the verdict stands
        (PRICED-118)."""
        try:
            body = await self._answer
            self._timebox.cancel()
            if self._killing is not None:
                self._killing.cancel()
            answer = None if body is None else await self._host.read_answer(body)
            # Without an answer, wait for the process to exit, so that none of it is left when the outcome is reported.
            ended = Faulted(await self._host.last_words()) if answer is None else answer
            if self._verdict is _Verdict.TIMED_OUT:
                return TimedOut()
            if self._verdict is _Verdict.STOPPED or (answer is None and self._host.was_killed):
                return Stopped()
            return ended
        finally:
            when_over()
