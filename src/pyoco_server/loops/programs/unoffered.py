"""Ends waiting jobs whose program no worker of the group has (FIND-14)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from pyoco_server.actions.programs.reach import programs_of
from pyoco_server.actions.programs.unoffered import end_unoffered, verdict_on
from pyoco_server.core.programs.report import ErrorCode
from pyoco_server.core.run import Run
from pyoco_server.errors import Unavailable
from pyoco_server.logs import get_logger
from pyoco_server.loops.loop import Loop
from pyoco_server.loops.programs.client_queues import ClientQueues, ClientQueueState
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.program_queue.port import ClientQueue

__all__ = ["Offers", "UnofferedJobs"]

log = get_logger(__name__)

_EVERY_SECONDS = 1.0
#: A queue found empty is polled again after this, or when a job is queued.
_EMPTY_SECONDS = 30.0
_BATCH = 32
_QUEUES_MAX = 256


class Offers(Protocol):
    """The programs that the workers of this process take and have. No method may block."""

    def takes(self, exec_name: str) -> bool:
        """Return whether a worker here would run it according to its patterns, if it had it."""

    def serves(self, exec_name: str) -> bool:
        """Return whether a worker here takes the program and has it."""


class UnofferedJobs(Loop):
    """Ends jobs of programs that workers here take by pattern, and no worker of the group has.

    A job first waits for `EXEC_WORKER_DOWN_DELAY_SEC` while no worker here has its program; then the registry is
    checked for the complete group. This costs nothing while every program is offered.

    Limitation: it does not judge programs that no worker here takes; their jobs wait.
    """

    def __init__(
        self,
        backend: Backend,
        offers: Offers,
        queues: ClientQueues,
        *,
        on_end: Callable[[Run], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(every_seconds=_EVERY_SECONDS)
        self._backend, self._offers, self._queues, self._on_end = backend, offers, queues, on_end
        self._clock = clock
        #: Since when no worker here has had a program.
        self._since: dict[str, float] = {}
        #: Lanes found empty: their counter of wakeups then, and when.
        self._empty: dict[ClientQueue, tuple[int, float]] = {}

    async def turn(self) -> None:
        now = self._clock()
        queues: dict[str, list[ClientQueueState]] = {}
        for state in self._queues.waiting():
            name = state.queue.exec_name
            if name in queues or (self._offers.takes(name) and not self._offers.serves(name)):
                queues.setdefault(name, []).append(state)
        self._since = {name: self._since.get(name, now) for name in queues}
        grace_seconds = programs_of(self._backend).config.exec_worker_down_delay_sec
        for name, states in queues.items():
            if now - self._since[name] < grace_seconds:
                continue
            code = await verdict_on(self._backend, name)
            if code is not None:
                await self._end_all(states, code, now)

    async def _end_all(self, states: list[ClientQueueState], code: ErrorCode, now: float) -> None:
        due = [state for state in states if self._is_due(state, now)]
        for state in due[:_QUEUES_MAX]:
            heard = state.heard
            try:
                if not await self._end_queue(state.queue, code):
                    self._empty[state.queue] = heard, now
            except Unavailable as error:
                log.warning("could not end jobs without a program yet", exec_name=state.queue.exec_name, error=error)

    def _is_due(self, state: ClientQueueState, now: float) -> bool:
        heard, at = self._empty.get(state.queue, (-1, now))
        return heard != state.heard or now - at >= _EMPTY_SECONDS

    async def _end_queue(self, queue: ClientQueue, code: ErrorCode) -> bool:
        """End up to a batch of the queue's jobs. Returns False if the queue is empty. Raises Unavailable."""
        deliveries = await programs_of(self._backend).queue.take(queue, _BATCH)
        for delivery in deliveries:
            ended = await end_unoffered(self._backend, delivery, code)
            if ended is not None:
                self._on_end(ended)
        return bool(deliveries)
