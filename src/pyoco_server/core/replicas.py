"""On which nodes a stream is kept, and whether that is what was asked for. Pure."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["StreamReplica", "StreamReplicas"]


@dataclass(frozen=True)
class StreamReplica:
    """A node that keeps one copy of a stream."""

    name: str
    #: It has all that the leader has, give or take what is under way.
    is_current: bool
    #: Nobody has heard of it for a while.
    is_away: bool
    #: Messages that it has not yet.
    lag: int


@dataclass(frozen=True)
class StreamReplicas:
    """One stream and those who keep it."""

    stream: str
    #: How many copies its settings ask for.
    wanted: int
    #: The node that everybody writes to; empty while one is being chosen.
    leader: str
    #: The others.
    followers: tuple[StreamReplica, ...]
    #: Its durable consumers that are not kept by as many nodes yet.
    consumers_behind: int = 0
    is_clustered: bool = True

    @property
    def away(self) -> tuple[str, ...]:
        return tuple(keeper.name for keeper in self.followers if keeper.is_away)

    @property
    def lag(self) -> int:
        """Of the one that is furthest behind."""
        return max((keeper.lag for keeper in self.followers), default=0)

    @property
    def nodes(self) -> tuple[str, ...]:
        """The leader first."""
        return tuple(filter(None, (self.leader, *(keeper.name for keeper in self.followers))))

    def is_whole(self, count: int) -> bool:
        """Whether `count` nodes keep it, all of them up to date, and none is left that should not."""
        if self.wanted != count or self.consumers_behind:
            return False
        if not self.is_clustered:
            return count == 1
        is_current = all(keeper.is_current and not keeper.is_away for keeper in self.followers)
        return bool(self.leader) and len(self.followers) == count - 1 and is_current
