"""The lanes a dispatcher knows: which may have something, and when the others are looked at. Nothing waits here."""

from __future__ import annotations

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

#: GRID-60: an idle lane is looked at after 1, 2, 4 … 30 s.
IDLE_SECONDS_MAX = 30.0
#: A job whose time has come may be a moment late at the queue: a few looks in quick succession, and then as ever.
_QUICK_LOOKS, _QUICK_SECONDS = 5, 0.05


@dataclass(eq=False)
class ClientQueueState:
    """What is believed of one lane. Beliefs cost a look when they are wrong, and nothing else."""

    lane: ClientQueue
    #: Jobs that wait, beside those that are asked for right now.
    depth: int = 0
    #: Jobs that are asked for right now.
    asked: int = 0
    #: Grows with each word of a new job, so that one that comes during a look is not forgotten after it.
    heard: int = 0
    #: Looks in a row that found nothing.
    empty_looks: int = 0
    quick_looks: int = 0
    #: Nobody said that something is there: ask for the counts first (GRID-60).
    must_count: bool = True
    #: When it is looked at again; infinity: it does not rest.
    due_at: float = math.inf


class ClientQueues:
    """A lane is ready, or full (its client is at its cap), or asked, or rests until it is due."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._order = TurnOrder()
        self._states: dict[ClientQueue, ClientQueueState] = {}
        self._by_name: dict[tuple[str, str], ClientQueueState] = {}
        self._by_client: dict[str, list[ClientQueueState]] = {}
        self._full: set[str] = set()
        #: (when, tie-break, lane, whether a job was put off until then).
        self._due: list[tuple[float, int, ClientQueueState, bool]] = []
        self._count = itertools.count()

    def add(self, lane: ClientQueue) -> None:
        """A lane that was not known. Nobody knows what is in it. May be repeated."""
        if lane in self._states:
            return
        state = self._states[lane] = ClientQueueState(lane, depth=1)
        self._by_name[lane.exec_name, lane.client] = state
        self._by_client.setdefault(lane.client, []).append(state)
        self._ready(state)

    def hear(self, exec_name: str, client_id: str) -> None:
        """A job was queued. Word of a lane that is not known is dropped: the lane itself is on its way."""
        state = self._by_name.get((exec_name, client_id))
        if state is not None:
            state.heard += 1
            state.empty_looks, state.must_count = 0, False
            state.depth = max(state.depth, 1)
            self._ready(state)

    def put_off(self, lane: ClientQueue, until: float) -> None:
        """One of its jobs may be taken at this instant of the clock."""
        state = self._states.get(lane)
        if state is not None:
            heapq.heappush(self._due, (until, next(self._count), state, True))

    def next_due(self) -> float:
        """Infinity: nothing rests."""
        return self._due[0][0] if self._due else math.inf

    def wake_due(self) -> None:
        now = self._clock()
        while self._due and self._due[0][0] <= now:
            due_at, _, state, was_put_off = heapq.heappop(self._due)
            if was_put_off:
                state.quick_looks, state.must_count = _QUICK_LOOKS, False
            elif due_at != state.due_at:
                continue  # it did not rest until then
            else:
                state.must_count = state.quick_looks == 0
            state.depth = max(state.depth, 1)
            self._ready(state)

    def waiting(self) -> list[ClientQueueState]:
        """Those that are believed to have something, beside what is asked for right now."""
        return [state for state in self._states.values() if state.depth]

    def pick(self, reserve_credit: Callable[[str, str | None], T | None]) -> tuple[ClientQueueState, Turn[T]] | None:
        """Whose turn it is. One job of its lane is asked for from now on, until `answered` or `unasked`."""
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
        """It was not asked for after all: the lane is as before."""
        state.asked -= count
        state.depth += count
        self._ready(state)

    def answered(self, state: ClientQueueState, heard: int, asked: int, came: int, waiting: int) -> None:
        """Of `asked` jobs `came` were there, and `waiting` more. `heard` is what the lane had heard before the look."""
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
            self._order.discard(state.lane.exec_name, state.lane.client)
            if not state.asked:
                self._rest(state, came)

    def failed(self, state: ClientQueueState, asked: int) -> None:
        """The queue did not answer: it is looked at again in a second."""
        state.asked -= asked
        state.depth = state.empty_looks = 0
        self._order.discard(state.lane.exec_name, state.lane.client)
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
        """The client is at its cap: its lanes are passed over (GRID-61). O(its lanes)."""
        self._full.add(client_id)
        for state in self._by_client.get(client_id, ()):
            self._order.discard(state.lane.exec_name, client_id)

    def unblock(self, client_id: str) -> None:
        """May be repeated."""
        if client_id in self._full:
            self._full.discard(client_id)
            for state in self._by_client.get(client_id, ()):
                if state.depth:
                    self._ready(state)

    def has_more(self, client_id: str) -> bool:
        """Whether one of the client's lanes is believed to have something. O(its lanes)."""
        return any(state.depth for state in self._by_client.get(client_id, ()))

    def give_turn_back(self, turn: Turn[T]) -> None:
        self._order.undo(turn)

    def _ready(self, state: ClientQueueState) -> None:
        state.due_at = math.inf
        if state.lane.client not in self._full:
            self._order.add(state.lane.exec_name, state.lane.client)
