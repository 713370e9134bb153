"""Change the number of replicas of all streams in place, while the system runs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pyoco_server.core.replicas import StreamReplicas
from pyoco_server.errors import DeploymentRefused, Unavailable
from pyoco_server.ports.replicas.port import Replicas

__all__ = ["Changed", "Planned", "change_replicas", "plan_replicas"]

_LOOK_SECONDS = 0.1
#: An election for a consumer takes seconds, and most streams are small.
_AT_ONCE = 8
#: A node that is restarted meanwhile is waited for; it answers again within seconds.
_AWAY_SECONDS = 30.0
#: Without progress for this long, although all nodes answer, waiting longer does not help.
_STALLED_SECONDS = 120.0


@dataclass(frozen=True)
class Planned:
    """The current streams, and what has to be done."""

    count: int
    streams: tuple[StreamReplicas, ...]
    #: Streams that the settings call for and that do not exist.
    missing: tuple[str, ...]

    @property
    def to_change(self) -> tuple[StreamReplicas, ...]:
        return tuple(each for each in self.streams if not each.is_complete(self.count))

    @property
    def lowers(self) -> bool:
        """Whether any stream would have fewer replicas than now."""
        return any(each.wanted > self.count for each in self.streams)


@dataclass(frozen=True)
class Changed:
    """The result for one stream."""

    stream: str
    before: int
    after: int
    nodes: Sequence[str]
    seconds: float


async def plan_replicas(replicas: Replicas, count: int) -> Planned:
    """Read the state of all streams; change nothing. O(streams).

    Raises DeploymentRefused if a node does not answer or there are fewer than `count` nodes, Unavailable.
    """
    states = await asyncio.gather(*map(replicas.look, replicas.names))
    found = tuple(each for each in states if each is not None)
    missing = tuple(name for name, state in zip(replicas.names, states, strict=True) if state is None)
    plan = Planned(count, found, missing)
    away = sorted({name for each in found for name in each.away})
    if away:
        raise DeploymentRefused(
            f"{', '.join(away)} does not answer: replicas cannot be added to or removed from an offline node; "
            "start it, wait until it has caught up, and run the command again"
        )
    if plan.to_change and count > 1:
        await replicas.try_count(count)
    return plan


async def change_replicas(
    replicas: Replicas,
    plan: Planned,
    show: Callable[[StreamReplicas], None],
    tell: Callable[[Changed], None],
) -> None:
    """Change a few streams at a time, each until every replica is up to date, so that not all data is copied
    concurrently.

    `show` is called with each stream that is being waited for, `tell` with each stream that is done. A crash leaves
    some streams changed and others not. The server completes the changes in progress, and the same call repeated does
    the rest. Raises DeploymentRefused, Unavailable.
    """

    async def change(before: StreamReplicas) -> None:
        async with few:
            began = time.monotonic()
            await replicas.change(before.stream, plan.count)
            after = await _until_complete(replicas, before.stream, plan.count, show)
            tell(Changed(before.stream, before.wanted, plan.count, after.nodes, time.monotonic() - began))

    few = asyncio.Semaphore(_AT_ONCE)
    tasks = [asyncio.create_task(change(each)) for each in plan.to_change]
    try:
        for task in asyncio.as_completed(tasks):
            await task
    finally:
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _until_complete(
    replicas: Replicas, stream: str, count: int, show: Callable[[StreamReplicas], None]
) -> StreamReplicas:
    previous, moved_at, answered_at = None, time.monotonic(), time.monotonic()
    while True:
        found = await replicas.look(stream)
        if found is None:
            raise Unavailable(f"{stream} was removed meanwhile")
        if found.is_complete(count):
            return found
        show(found)
        now = time.monotonic()
        answered_at = answered_at if found.away else now
        if (progress := (len(found.followers), found.lag, found.consumers_behind)) != previous:
            # Any change counts as progress, also growth: the number of missing messages is only known after a while.
            previous, moved_at = progress, now
        if now - answered_at > _AWAY_SECONDS:
            raise Unavailable(f"{', '.join(found.away)} does not answer while it is given a copy of {stream}; {_AGAIN}")
        if now - moved_at > _STALLED_SECONDS:
            raise Unavailable(
                f"the copies of {stream} do not come nearer: {found.lag:,} messages are missing and "
                f"{found.consumers_behind:,} consumers behind; {_AGAIN}"
            )
        await asyncio.sleep(_LOOK_SECONDS)


_AGAIN = "NATS continues by itself when it can; repeat the command to continue with the rest"
