"""The queues known to a process: which may contain jobs, and when to poll the others. Nothing here waits."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from pyoco_server.core.programs.turns import Turn, TurnOrder
from pyoco_server.ports.program_queue.port import ClientQueue

__all__ = ["IDLE_SECONDS_MAX", "ClientQueueState", "ClientQueues"]

T = TypeVar("T")

#: GRID-60: an idle queue is polled after 1, 2, 4 … 30 s.
IDLE_SECONDS_MAX = 30.0
#: A job that is due may reach the queue slightly late: poll a few times in quick succession, then at the usual rate.
_QUICK_LOOKS, _QUICK_SECONDS = 5, 0.05


@dataclass(eq=False)
class ClientQueueState:
    """The assumed state of one queue. A wrong assumption costs a poll, and nothing else."""

    queue: ClientQueue
    #: Waiting jobs, excluding those being requested.
    depth: int = 0
    #: Jobs being requested.
    asked: int = 0
    #: Grows with each wakeup for a new job, so that one received during a poll is not forgotten after it.
    heard: int = 0
    #: Polls in a row that found nothing.
    empty_looks: int = 0
    quick_looks: int = 0
    #: No wakeup announced a job: read the counts first (GRID-60).
    must_count: bool = True
    #: When it is polled next; infinity: it is not resting.
    due_at: float = math.inf


class ClientQueues:
    """Each queue is ready, full (its client is at its cap), being polled, or resting until it is due."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._order = TurnOrder()
        self._states: dict[ClientQueue, ClientQueueState] = {}
        self._by_name: dict[tuple[str, str], ClientQueueState] = {}
        self._by_client: dict[str, list[ClientQueueState]] = {}
        self._full: set[str] = set()
        #: (due time, tie-break, queue, whether a job was put off until then).
        self._due: list[tuple[float, int, ClientQueueState, bool]] = []
        self._count = itertools.count()
        #: There may be something to poll. Cleared by the one that polls.
        self.woken = asyncio.Event()

    def wake(self) -> None:
        """Let the queues be scanned now: a job, a credit or a slot may have come. Never waits."""
        self.woken.set()

    def add(self, queue: ClientQueue) -> None:
        """Add a queue, whose content is not known yet. Idempotent."""
        if queue in self._states:
            return
        state = self._states[queue] = ClientQueueState(queue, depth=1)
        self._by_name[queue.exec_name, queue.client] = state
        self._by_client.setdefault(queue.client, []).append(state)
        self._ready(state)
        self.wake()

    def hear(self, exec_name: str, client_id: str) -> None:
        """Note that a job was queued. A wakeup for an unknown queue is dropped: it is about to be added."""
        state = self._by_name.get((exec_name, client_id))
        if state is not None:
            state.heard += 1
            state.empty_looks, state.must_count = 0, False
            state.depth = max(state.depth, 1)
            self._ready(state)
            self.wake()

    def put_off(self, queue: ClientQueue, seconds: float) -> None:
        """Note that one of its jobs may be taken after this time: the queue is polled then."""
        state = self._states.get(queue)
        if state is not None:
            heapq.heappush(self._due, (self._clock() + seconds, next(self._count), state, True))
            self.wake()

    def next_due(self) -> float:
        """Infinity: no queue is resting."""
        return self._due[0][0] if self._due else math.inf

    def wake_due(self) -> None:
        now = self._clock()
        while self._due and self._due[0][0] <= now:
            due_at, _, state, was_put_off = heapq.heappop(self._due)
            if was_put_off:
                state.quick_looks, state.must_count = _QUICK_LOOKS, False
            elif due_at != state.due_at:
                continue  # it is no longer resting until then
            else:
                state.must_count = state.quick_looks == 0
            state.depth = max(state.depth, 1)
            self._ready(state)

    def waiting(self) -> list[ClientQueueState]:
        """Return the queues assumed to contain jobs, besides those being requested."""
        return [state for state in self._states.values() if state.depth]

    def pick(self, reserve_credit: Callable[[str, str | None], T | None]) -> tuple[ClientQueueState, Turn[T]] | None:
        """Pick the next queue in turn. One of its jobs counts as being requested until `answered` or `unasked`."""
        turn = self._order.pick(reserve_credit)
        if turn is None:
            return None
        state = self._by_name[turn.exec_name, turn.client_id]
        state.depth -= 1
        state.asked += 1
        if not state.depth:
            self._order.discard(turn.exec_name, turn.client_id)
        return state, turn

    def unasked(self, state: ClientQueueState, count: int = 1) -> None:
        """Cancel requests that were not made: the queue is as before."""
        state.asked -= count
        state.depth += count
        self._ready(state)

    def answered(self, state: ClientQueueState, heard: int, asked: int, came: int, waiting: int) -> None:
        """Record the result of a poll: of `asked` jobs `came` were received, and `waiting` more exist.

        `heard` is the queue's counter of wakeups before the poll.
        """
        state.asked -= asked
        state.depth = max(waiting - state.asked, 0)
        if came:
            state.empty_looks = state.quick_looks = 0
        if not state.depth and state.heard != heard:
            state.depth = 1
        if state.depth:
            state.must_count = False
            self._ready(state)
        else:
            self._order.discard(state.queue.exec_name, state.queue.client)
            if not state.asked:
                self._rest(state, came)

    def failed(self, state: ClientQueueState, asked: int) -> None:
        """Record a failed poll: the queue is polled again in a second."""
        state.asked -= asked
        state.depth = state.empty_looks = 0
        self._order.discard(state.queue.exec_name, state.queue.client)
        self._rest(state, 1)

    def _rest(self, state: ClientQueueState, came: int) -> None:
        if state.quick_looks:
            state.quick_looks -= 1
            seconds = _QUICK_SECONDS * 2 ** (_QUICK_LOOKS - state.quick_looks - 1)
        else:
            seconds = min(2.0**state.empty_looks, IDLE_SECONDS_MAX)
            state.empty_looks = 0 if came else min(state.empty_looks + 1, 5)
        state.due_at = self._clock() + seconds
        heapq.heappush(self._due, (state.due_at, next(self._count), state, False))

    def block(self, client_id: str) -> None:
        """Mark a client as at its cap: its queues are skipped (GRID-61). O(its queues)."""
        self._full.add(client_id)
        for state in self._by_client.get(client_id, ()):
            self._order.discard(state.queue.exec_name, client_id)

    def unblock(self, client_id: str) -> None:
        """Idempotent."""
        if client_id in self._full:
            self._full.discard(client_id)
            for state in self._by_client.get(client_id, ()):
                if state.depth:
                    self._ready(state)

    def has_more(self, client_id: str) -> bool:
        """Return whether one of the client's queues is assumed to contain jobs. O(its queues)."""
        return any(state.depth for state in self._by_client.get(client_id, ()))

    def return_turn(self, turn: Turn[T]) -> None:
        self._order.undo(turn)

    def _ready(self, state: ClientQueueState) -> None:
        state.due_at = math.inf
        if state.queue.client not in self._full:
            self._order.add(state.queue.exec_name, state.queue.client)
