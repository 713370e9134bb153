"""The worker's side of one process that runs flows."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace

from pyoco_server.core.outcome import Outcome, Progress
from pyoco_server.executors.host import wire
from pyoco_server.executors.host.environment import flow_environment
from pyoco_server.executors.host.process import READY_SECONDS_MAX, ChildProcess, Launched, launch, whole

__all__ = ["READY_SECONDS_MAX", "Host"]

_PROGRESS_SECONDS = 0.4


class Host(ChildProcess):
    """One child process. Make it with `spawn`; it is warm when `ready` returns."""

    def __init__(self, launched: Launched, settings: wire.Settings) -> None:
        super().__init__(launched)
        #: What it was started with. The very object: whose settings are not the pool's own is of another time.
        self.settings = settings
        self._asking = asyncio.Lock()
        self._unanswered: asyncio.Future[bytes | None] | None = None
        #: The run that the unanswered question was asked about.
        self._asked_about = 0
        #: Of the flow that runs, once the host has told it.
        self._graph: Mapping[str, Sequence[str]] = {}
        #: What is wrong with plug-ins in wheels, by the directory of the wheel. Runs that do not want them are fine.
        self.faults: dict[str, str] = {}
        #: It was warm once.
        self.is_warm = False

    @classmethod
    async def spawn(cls, settings: wire.Settings) -> Host:
        """A new process with its own process group, so that it can be killed with all it started."""
        return await whole(cls._spawn(settings))

    @classmethod
    async def _spawn(cls, settings: wire.Settings) -> Host:
        environment = flow_environment(os.environ)
        host = cls(await launch("pyoco_server.executors.host.child", environment=environment), settings)
        host._greet(settings.pack())
        return host

    async def ready(self, seconds: float = READY_SECONDS_MAX) -> None:
        """Returns when the host is warm. Raises UsageError when it cannot load the resolver or takes too long, OSError
        when it died."""
        word = await self._first_word(seconds)
        if word is not None:
            try:
                self.faults = wire.unpack_ready(word)
            except ValueError:
                self._give_up(self._work_reader)
            else:
                self.is_warm = True
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
            return wire.unpack_outcome(self._unmarked(body))
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
