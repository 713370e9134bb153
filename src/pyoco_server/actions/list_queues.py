"""List the queues."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from pyoco_server.actions.measure import Crowd, crowd_of
from pyoco_server.core.trend import Trend
from pyoco_server.core.worker_record import WorkerRecord
from pyoco_server.ports.backend import GatewayBackend
from pyoco_server.ports.index.port import EVERYBODY, Waiting

__all__ = [
    "QUEUES_MAX",
    "QUIET_MAX",
    "Queue",
    "Queues",
    "TagBacklog",
    "WaitingPacks",
    "crowds_by_tag",
    "list_queues",
    "quiet_since",
    "read_lines",
    "read_waiting",
]

QUEUES_MAX = 1_000
#: Runs without recent heartbeats that are read, oldest first. There are few, unless something is wrong.
QUIET_MAX = 1_000


@dataclass(frozen=True, kw_only=True)
class Queue:
    """The runs that wait for one tag, and the workers that serve it."""

    tag: str
    #: PENDING runs, and runs that an earlier version released and that were not claimed again (`quiet_since`).
    depth: int
    #: Since when the oldest of them has waited, and for how long. None: nothing waits.
    oldest_at: float | None
    oldest_age_seconds: float | None
    #: Live workers with this tag, and the sum of their slots. A worker with several tags counts for each.
    workers_alive: int
    slots: int
    slots_busy: int
    #: The depth ten minutes ago. None: not known yet.
    depth_before: int | None
    #: Runs of this tag that ended per minute, over the last ten minutes at most. None: not known yet.
    drained_per_minute: float | None
    #: Time until the waiting runs are done at that pace. None: nothing waits, or no worker is alive, or the pace is not
    #: known.
    eta_seconds: float | None


@dataclass(frozen=True, kw_only=True)
class WaitingPacks:
    """The waiting priced runs. They have their own queue, and any worker may take them."""

    depth: int
    oldest_at: float | None
    oldest_age_seconds: float | None
    #: Of all tags.
    workers_alive: int


@dataclass(frozen=True)
class Queues:
    at: float
    items: list[Queue]
    packs: WaitingPacks


@dataclass(frozen=True)
class TagBacklog:
    """The runs that wait for one tag."""

    #: PENDING runs.
    pending: int
    #: Runs that are RUNNING by their record but have no owner: a worker of an earlier version released them.
    put_back: int
    #: Since when the first of them has waited: when it was submitted, or released.
    oldest_at: float

    @property
    def depth(self) -> int:
        return self.pending + self.put_back


_NOTHING = TagBacklog(0, 0, 0.0)
_NOBODY = Crowd(0, 0, 0, 0)


async def list_queues(backend: GatewayBackend, trend: Trend) -> Queues:
    """Return tags with waiting runs, longest queues first; then the other tags of live workers, by name. At most 1,000.

    Packs are returned separately: workers do not take them by tag. Two index reads and one registry read, no round
    trip. O(tags + workers' tags). Raises Unavailable. Queues are shared by all tenants, as workers and metrics are
    (FLOW-276).
    """
    lines, packs = await read_waiting(backend)
    workers = await backend.registry.all()
    now = backend.clock()
    crowds = crowds_by_tag(workers, now, backend.config.worker_disconnect_timeout_sec)
    idle = sorted(tag for tag, crowd in crowds.items() if crowd.alive and tag not in lines)
    items: list[Queue] = []
    for tag in [*lines, *idle][:QUEUES_MAX]:
        line, crowd, drain = lines.get(tag, _NOTHING), crowds.get(tag, _NOBODY), trend.drain(now, tag)
        depth = line.depth
        items.append(
            Queue(
                tag=tag,
                depth=depth,
                oldest_at=line.oldest_at if depth else None,
                oldest_age_seconds=max(0.0, now - line.oldest_at) if depth else None,
                workers_alive=crowd.alive,
                slots=crowd.slots,
                slots_busy=crowd.slots_busy,
                depth_before=drain.depth_before,
                drained_per_minute=drain.per_minute,
                eta_seconds=depth / drain.per_minute * 60 if depth and crowd.alive and drain.per_minute else None,
            )
        )
    alive = crowd_of(workers, now, backend.config.worker_disconnect_timeout_sec).alive
    return Queues(now, items, _packs(packs, now, alive))


def _packs(waiting: Waiting | None, now: float, workers_alive: int) -> WaitingPacks:
    if waiting is None or not waiting.count:
        return WaitingPacks(depth=0, oldest_at=None, oldest_age_seconds=None, workers_alive=workers_alive)
    age = max(0.0, now - waiting.oldest_at)
    return WaitingPacks(
        depth=waiting.count, oldest_at=waiting.oldest_at, oldest_age_seconds=age, workers_alive=workers_alive
    )


def quiet_since(backend: GatewayBackend) -> float:
    """Return the time before which a RUNNING run must have been last updated to count as not executed by any worker
    (FLOW-30)."""
    return backend.clock() - max(30.0, 3 * backend.config.run_heartbeat_interval_sec)


async def read_lines(backend: GatewayBackend) -> dict[str, TagBacklog]:
    """Return the waiting runs by tag, longest queue first. O(tags + QUIET_MAX). Raises Unavailable."""
    return (await read_waiting(backend))[0]


async def read_waiting(backend: GatewayBackend) -> tuple[dict[str, TagBacklog], Waiting | None]:
    """Return the waiting runs as `read_lines` does, and the waiting packs."""
    counts = await backend.index.counts()
    quiet = await backend.index.quiet(EVERYBODY, quiet_since(backend), QUIET_MAX)
    lines = {tag: TagBacklog(waiting.count, 0, waiting.oldest_at) for tag, waiting in counts.waiting.items()}
    back = [run for run in quiet if run.worker_id is None]
    for run in back:
        line = lines.get(run.tag)
        if line is None:
            lines[run.tag] = TagBacklog(0, 1, run.updated_at)
        else:
            first = min(line.oldest_at, run.updated_at)
            lines[run.tag] = replace(line, put_back=line.put_back + 1, oldest_at=first)
    if back:
        lines = dict(sorted(lines.items(), key=lambda each: -each[1].depth))
    return lines, counts.packs_waiting


def crowds_by_tag(workers: Iterable[WorkerRecord], now: float, disconnect_seconds: float) -> dict[str, Crowd]:
    """Return the workers of each tag. O(workers' tags). A worker that names a tag twice counts once."""
    sums: dict[str, list[int]] = {}
    for record in workers:
        one = crowd_of([record], now, disconnect_seconds)
        for tag in dict.fromkeys(record.tags):
            some = sums.setdefault(tag, [0, 0, 0, 0])
            some[0] += one.alive
            some[1] += one.slots
            some[2] += one.slots_busy
            some[3] += one.gone
    return {tag: Crowd(*some) for tag, some in sums.items()}
