"""Show the queues."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pyoco_server.actions.measure import crowd_of
from pyoco_server.core.trend import Trend
from pyoco_server.core.worker_record import WorkerRecord
from pyoco_server.ports.backend import GatewayBackend

__all__ = ["QUEUES_MAX", "Queue", "Queues", "list_queues", "workers_by_tag"]

QUEUES_MAX = 1_000


@dataclass(frozen=True, kw_only=True)
class Queue:
    """The runs that wait for one tag, and who serves it."""

    tag: str
    #: PENDING runs.
    depth: int
    #: When the oldest of them was submitted, and how long ago. None: nothing waits.
    oldest_at: float | None
    oldest_age_seconds: float | None
    #: Workers with this tag that live, and their slots together. A worker with several tags counts for each.
    workers_alive: int
    slots: int
    slots_busy: int
    #: Ten minutes ago. None: not known, yet.
    depth_before: int | None
    #: Runs of this tag that ended per minute, over the last ten minutes at most. None: not known, yet.
    drained_per_minute: float | None
    #: When what waits now will have been worked off at that pace. None: nothing waits, or nobody works.
    eta_seconds: float | None


@dataclass(frozen=True)
class Queues:
    at: float
    items: list[Queue]


async def list_queues(backend: GatewayBackend, trend: Trend) -> Queues:
    """Tags with waiting runs, the longest queues first; then the other tags of live workers, by name. At most 1,000.

    One look at the index and at the registry, no round trip. O(tags + workers * their tags). Raises Unavailable.
    Queues are shared by all tenants, as workers and metrics are (FLOW-276).
    """
    counts = await backend.index.counts()
    workers = workers_by_tag(await backend.registry.all())
    now, silence = backend.clock(), backend.config.worker_disconnect_timeout_sec
    items: list[Queue] = []
    idle = [
        tag
        for tag, some in sorted(workers.items())
        if tag not in counts.waiting and any(record.is_alive(now, silence) for record in some)
    ]
    for tag in [*counts.waiting, *idle][:QUEUES_MAX]:
        waiting = counts.waiting.get(tag)
        depth = waiting.count if waiting is not None else 0
        crowd, drain = crowd_of(workers.get(tag, []), now, silence), trend.drain(now, tag)
        items.append(
            Queue(
                tag=tag,
                depth=depth,
                oldest_at=waiting.oldest_at if waiting is not None else None,
                oldest_age_seconds=max(0.0, now - waiting.oldest_at) if waiting is not None else None,
                workers_alive=crowd.alive,
                slots=crowd.slots,
                slots_busy=crowd.slots_busy,
                depth_before=drain.depth_before,
                drained_per_minute=drain.per_minute,
                eta_seconds=depth / drain.per_minute * 60 if depth and crowd.alive and drain.per_minute else None,
            )
        )
    return Queues(now, items)


def workers_by_tag(workers: Iterable[WorkerRecord]) -> dict[str, list[WorkerRecord]]:
    """O(workers * their tags). A worker that names a tag twice serves it once."""
    found: dict[str, list[WorkerRecord]] = {}
    for record in workers:
        for tag in dict.fromkeys(record.tags):
            found.setdefault(tag, []).append(record)
    return found
