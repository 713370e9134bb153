"""Measure the current figures for metrics."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field

from pyoco_server.core.outcome import DeadReason
from pyoco_server.core.run_log.counts import Reported
from pyoco_server.core.states import RunState
from pyoco_server.core.worker_record import WorkerRecord
from pyoco_server.errors import Unavailable
from pyoco_server.logs import get_logger
from pyoco_server.ports.backend import GatewayBackend
from pyoco_server.ports.index.port import Waiting

__all__ = ["Crowd", "Figures", "Lag", "crowd_of", "measure"]

log = get_logger(__name__)

#: How long a measurement waits for the lists to catch up with the store.
_LAG_SECONDS_MAX = 1.0


@dataclass(frozen=True)
class Crowd:
    """A group of workers: how many are alive, and their slots of one lane."""

    alive: int
    slots: int
    slots_busy: int
    #: Workers that have a record but have stopped or are disconnected.
    gone: int


@dataclass(frozen=True, kw_only=True)
class Figures:
    """The current figures, over all tenants (FLOW-134)."""

    #: Time of the measurement, in Unix seconds.
    at: float
    #: Runs by status; every status is present, also with 0.
    runs: dict[RunState, int]
    #: PENDING runs by tag, without packs.
    waiting: dict[str, Waiting]
    workers: Crowd
    #: Messages in the dead-letter stream, also those that cannot be decoded.
    dead_letters: int
    #: Decodable letters by reason: every known reason, and any other that was found.
    reasons: dict[str, int]
    index_lag_seconds: float
    #: Packs by status and money state.
    packs: dict[tuple[str, str], int] = field(default_factory=dict)
    #: The size of what runs have printed. None: logs are disabled, or their stream is lost.
    log_bytes: int | None = None
    #: How many lines of runs each worker has captured.
    reported_logs: tuple[Reported, ...] = ()


class Lag:
    """Measures how far the lists lag behind the store: read the newest stored revision and wait until it is listed.

    If it is not listed in time, the first such revision is kept and the time since then is reported: the value grows
    until the lists have caught up with that revision.
    """

    def __init__(self) -> None:
        self._missed: tuple[int, float] | None = None

    async def measure(self, backend: GatewayBackend, seconds: float = _LAG_SECONDS_MAX) -> float:
        """Return the lag in seconds. Two round trips, and up to `seconds` of waiting. Raises Unavailable."""
        newest = await backend.runs.newest()
        asked_at = time.monotonic()
        if self._missed is not None:
            revision, _ = self._missed
            # The newest revision is lower than before: the bucket was created anew.
            if newest < revision or await backend.index.applied(revision, 0):
                self._missed = None
        if await backend.index.applied(newest, seconds):
            self._missed = None
            return time.monotonic() - asked_at
        if self._missed is None:
            self._missed = newest, asked_at
        return time.monotonic() - self._missed[1]


async def measure(backend: GatewayBackend, lag: Lag) -> Figures:
    """Return the figures: four round trips, then one read of each index. O(statuses + tags + workers + reasons), never
    O(runs).

    Raises Unavailable (FLOW-135).
    """
    dead_letters = await backend.queue.buried()
    lag_seconds = await lag.measure(backend)
    counts = await backend.index.counts()
    counted = await backend.dead_letter_index.counts()
    workers = await backend.registry.all()
    now = backend.clock()
    reasons: Counter[str] = Counter({reason.value: 0 for reason in DeadReason})
    for group in counted:
        reasons[group.reason] += group.count
    return Figures(
        at=now,
        runs={status: counts.by_status.get(status, 0) for status in RunState},
        waiting=counts.waiting,
        packs=counts.packs,
        workers=crowd_of(workers, now, backend.config.worker_disconnect_timeout_sec),
        dead_letters=dead_letters,
        reasons=dict(reasons),
        index_lag_seconds=lag_seconds,
        reported_logs=tuple(
            ((each.worker_id, each.instance_id), each.logs) for each in workers if each.logs is not None
        ),
        log_bytes=await _log_bytes(backend),
    )


async def _log_bytes(backend: GatewayBackend) -> int | None:
    """A lost stream of logs is no reason to show no metrics at all."""
    if backend.logs is None:
        return None
    try:
        return (await backend.logs.state()).size
    except Unavailable as error:
        log.warning("could not measure the logs", error=error)
        return None


def crowd_of(workers: list[WorkerRecord], now: float, disconnect_seconds: float, lane: str | None = None) -> Crowd:
    """Sum up the workers. O(workers). Hidden ones count: hiding affects lists only (FLOW-131).

    `lane`: whose slots count. None: the slots that each worker lists, those of its flows unless it runs programs alone.
    """
    alive = [record for record in workers if record.is_alive(now, disconnect_seconds)]
    loads = [record.load if lane is None else record.load_of(lane) for record in alive]
    return Crowd(
        alive=len(alive),
        slots=sum(load.slots for load in loads),
        slots_busy=sum(load.busy for load in loads),
        gone=len(workers) - len(alive),
    )
