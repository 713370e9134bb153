"""The worker's side of one process that runs flows."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

from pyoco_server.core.offered_flow import OfferedFlow
from pyoco_server.core.outcome import Outcome, Progress
from pyoco_server.executors.capture.port import Captured, Collector
from pyoco_server.executors.host import wire
from pyoco_server.executors.host.environment import flow_environment
from pyoco_server.executors.host.process import READY_SECONDS_MAX, ChildProcess, Launched, launch

__all__ = ["READY_SECONDS_MAX", "Host"]

_PROGRESS_SECONDS = 0.4


class Host(ChildProcess):
    """One child process. Create it with `spawn`; it is warm when `ready` returns."""

    def __init__(self, launched: Launched, settings: wire.Settings) -> None:
        super().__init__(launched, settings)
        self._asking = asyncio.Lock()
        self._unanswered: asyncio.Future[bytes | None] | None = None
        #: The run that the pending progress request is about.
        self._asked_about = 0
        #: Task graph of the running flow, once the host has sent it.
        self._graph: Mapping[str, Sequence[str]] = {}
        self._told: Callable[[wire.Remark], None] = lambda _: None
        self._control_reader.on_remark = self._on_remark
        #: Faults of plug-ins in wheels, by the directory of the wheel. Runs that do not use them are unaffected.
        self.faults: dict[str, str] = {}
        #: The flows of the app. None: it has a resolver, or it is not ready.
        self.offered: tuple[OfferedFlow, ...] | None = None

    @classmethod
    async def _spawn(cls, settings: wire.Settings, collector: Collector | None) -> Self:
        environment = flow_environment(os.environ)
        launched = await launch("pyoco_server.executors.host.child", environment=environment, collector=collector)
        host = cls(launched, settings)
        host._greet(settings.pack())
        return host

    async def ready(self, seconds: float = READY_SECONDS_MAX) -> None:
        """Return when the host is warm. Raises UsageError if it cannot load its flows or takes too long, OSError if
        it died."""
        message = await self._ready_message(seconds)
        if message is not None:
            try:
                self.faults, self.offered = wire.unpack_ready(message)
            except ValueError:
                self._give_up(self._work_reader)
            else:
                return
        raise OSError(f"a host process ended before it was ready: {await self.how_it_ended()}")

    def run(
        self,
        data: bytes,
        captured: Captured | None = None,
        task_tries: Mapping[str, Any] | None = None,
        told: Callable[[wire.Remark], None] = lambda _: None,
    ) -> asyncio.Future[bytes | None]:
        """Run one job, as it came from the queue. The future yields a packed outcome, or None if the host exited.

        `captured`: the run that its lines belong to. `told` receives what the host says until then.
        """
        self.runs += 1
        self._told = told
        if captured is not None:
            self._expect(captured)
        self._graph = {}
        self._work.write(wire.frame(wire.pack_work(data, task_tries or {})))
        return self._work_reader.next(wire.number(self.runs))

    def _on_remark(self, body: bytes) -> None:
        about = wire.number(self.runs)
        if not body.startswith(about):  # an earlier run, whose thread is still at work
            return
        try:
            remark = wire.unpack_remark(body[len(about) :])
        except ValueError:
            self._give_up(self._control_reader)
        else:
            self._told(remark)

    def read_outcome(self, body: bytes) -> Outcome | None:
        """Decode the answer to `run`. Returns None if it is malformed: a task has written to the socket, and the host
        is killed."""
        try:
            return wire.unpack_outcome(self._unmarked(body))
        except ValueError:
            self._give_up(self._work_reader)
            return None

    async def progress(self) -> Progress | None:
        """Return the progress, or None if the host does not answer: it runs code that holds the GIL, or it is about to
        exit."""
        async with self._asking:
            if self._unanswered is None:
                request = wire.PROGRESS if self._graph else wire.GRAPH
                self._control.write(wire.frame(request + wire.number(self.runs)))
                self._unanswered, self._asked_about = self._control_reader.next(), self.runs
            done, _ = await asyncio.wait({self._unanswered}, timeout=_PROGRESS_SECONDS)
            if not done:  # the request is still pending; the next call waits for the same answer
                return None
            body, self._unanswered = self._unanswered.result(), None
            if not body or self._asked_about != self.runs:  # about an earlier run, so it does not apply
                return None
            try:
                progress = wire.unpack_progress(body)
            except ValueError:
                self._give_up(self._control_reader)
                return None
            self._graph = self._graph or progress.graph
            # Every time: the write of the record that carries the graph may fail.
            return replace(progress, graph=self._graph)
