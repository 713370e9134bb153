"""Take the figures of the moment."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field

from pyoco_server.core.outcome import DeadReason
from pyoco_server.core.states import RunState
from pyoco_server.core.worker_record import WorkerRecord
from pyoco_server.ports.backend import GatewayBackend
from pyoco_server.ports.index.port import Waiting

__all__ = ["Crowd", "Figures", "Lag", "crowd_of", "measure"]

#: How long a measurement waits for lists to show what is stored.
_LAG_SECONDS_MAX = 1.0


@dataclass(frozen=True)
class Crowd:
    """Some workers together: those that live, and their slots."""

    alive: int
    slots: int
    slots_busy: int
    #: Known by name, but stopped or silent.
    gone: int


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What is there now, of all tenants (FLOW-134)."""

    #: Unix seconds: when this was.
    at: float
    #: Every status, with or without runs.
    runs: dict[RunState, int]
    #: PENDING runs by tag; no packs.
    waiting: dict[str, Waiting]
    workers: Crowd
    #: In their stream, whatever they say.
    dead_letters: int
    #: By reason, as far as they can be read: every reason there is, and any other that was found.
    reasons: dict[str, int]
    index_lag_seconds: float
    #: Packs by status and money state.
    packs: dict[tuple[str, str], int] = field(default_factory=dict)


class Lag:
    """How long lists take to show what is stored, found by trying: ask what was stored last, and wait for it.

    When it does not show in time, the first such question is kept, and the time since then is told: it grows until
    lists have come so far.
    """

    def __init__(self) -> None:
        self._missed: tuple[int, float] | None = None

    async def measure(self, backend: GatewayBackend, seconds: float = _LAG_SECONDS_MAX) -> float:
        """Two round trips, and up to `seconds`. Raises Unavailable."""
        newest = await backend.runs.newest()
        asked_at = time.monotonic()
        if self._missed is not None:
            revision, _ = self._missed
            # A smaller newest revision than before: the bucket is another one.
            if newest < revision or await backend.index.applied(revision, 0):
                self._missed = None
        if await backend.index.applied(newest, seconds):
            self._missed = None
            return time.monotonic() - asked_at
        if self._missed is None:
            self._missed = newest, asked_at
        return time.monotonic() - self._missed[1]


async def measure(backend: GatewayBackend, lag: Lag) -> Figures:
    """Three round trips, then one look at each index. O(statuses + tags + workers + reasons), never O(runs).

    Raises Unavailable (FLOW-135).
    """
    dead_letters = await backend.queue.buried()
    lag_seconds = await lag.measure(backend)
    counts = await backend.index.counts()
    letters = await backend.dead_letter_index.counts()
    workers = await backend.registry.all()
    now = backend.clock()
    reasons: Counter[str] = Counter({reason.value: 0 for reason in DeadReason})
    for letter in letters:
        reasons[letter.reason] += letter.count
    return Figures(
        at=now,
        runs={status: counts.by_status.get(status, 0) for status in RunState},
        waiting=counts.waiting,
        packs=counts.packs,
        workers=crowd_of(workers, now, backend.config.worker_disconnect_timeout_sec),
        dead_letters=dead_letters,
        reasons=dict(reasons),
        index_lag_seconds=lag_seconds,
    )


def crowd_of(workers: list[WorkerRecord], now: float, disconnect_seconds: float) -> Crowd:
    """O(workers). Hidden ones count: hiding is for the eye only (FLOW-131)."""
    alive = [record for record in workers if record.is_alive(now, disconnect_seconds)]
    return Crowd(
        alive=len(alive),
        slots=sum(record.slots for record in alive),
        # A worker claims a few runs ahead: they are running by its word, but wait for a slot.
        slots_busy=sum(min(len(record.running), record.slots) for record in alive),
        gone=len(workers) - len(alive),
    )
