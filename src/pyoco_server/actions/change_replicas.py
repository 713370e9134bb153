"""Change on how many nodes everything is kept, in place, while everything runs."""

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
#: A node that is restarted meanwhile is waited for; it speaks again within seconds.
_AWAY_SECONDS = 30.0
#: Without a node that is away, and without a message or a consumer that got nearer: waiting does not mend that.
_STALLED_SECONDS = 120.0


@dataclass(frozen=True)
class Planned:
    """What is there, and what is to be done."""

    count: int
    streams: tuple[StreamReplicas, ...]
    #: The settings ask for these, and they are not there.
    missing: tuple[str, ...]

    @property
    def to_change(self) -> tuple[StreamReplicas, ...]:
        return tuple(each for each in self.streams if not each.is_whole(self.count))

    @property
    def lowers(self) -> bool:
        """Whether something would be kept by fewer nodes than now."""
        return any(each.wanted > self.count for each in self.streams)


@dataclass(frozen=True)
class Changed:
    """One stream, when it was done."""

    stream: str
    before: int
    after: int
    nodes: Sequence[str]
    seconds: float


async def plan_replicas(replicas: Replicas, count: int) -> Planned:
    """Look at everything; change nothing. O(streams).

    Raises DeploymentRefused when a node is away or there are fewer than `count`, Unavailable.
    """
    looks = await asyncio.gather(*map(replicas.look, replicas.names))
    found = tuple(each for each in looks if each is not None)
    missing = tuple(name for name, look in zip(replicas.names, looks, strict=True) if look is None)
    plan = Planned(count, found, missing)
    away = sorted({name for each in found for name in each.away})
    if away:
        raise DeploymentRefused(
            f"{', '.join(away)} does not answer: a node that is away cannot be given a copy, nor give one up; "
            "start it, wait until it has caught up, and ask again"
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
    """A few streams at a time, each until every copy is up to date: not all that is stored is copied at once.

    `show` hears of the streams that are waited for, `tell` of each that is done. What a crash leaves behind: streams
    that were changed and those that were not. The server goes on with those that were under way, and the same call
    again goes on with the rest. Raises DeploymentRefused, Unavailable.
    """

    async def change(before: StreamReplicas) -> None:
        async with few:
            began = time.monotonic()
            await replicas.change(before.stream, plan.count)
            after = await _until_whole(replicas, before.stream, plan.count, show)
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


async def _until_whole(
    replicas: Replicas, stream: str, count: int, show: Callable[[StreamReplicas], None]
) -> StreamReplicas:
    stood, moved_at, heard_at = None, time.monotonic(), time.monotonic()
    while True:
        found = await replicas.look(stream)
        if found is None:
            raise Unavailable(f"{stream} was removed meanwhile")
        if found.is_whole(count):
            return found
        show(found)
        now = time.monotonic()
        heard_at = heard_at if found.away else now
        if (standing := (len(found.followers), found.lag, found.consumers_behind)) != stood:
            # Any change: how much is missing is known only after a while, so it also grows.
            stood, moved_at = standing, now
        if now - heard_at > _AWAY_SECONDS:
            raise Unavailable(f"{', '.join(found.away)} does not answer while it is given a copy of {stream}; {_AGAIN}")
        if now - moved_at > _STALLED_SECONDS:
            raise Unavailable(
                f"the copies of {stream} do not come nearer: {found.lag:,} messages are missing and "
                f"{found.consumers_behind:,} consumers behind; {_AGAIN}"
            )
        await asyncio.sleep(_LOOK_SECONDS)


_AGAIN = "NATS goes on by itself when it can; the same command again goes on with the rest"
