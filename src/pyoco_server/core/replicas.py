"""The nodes that store a stream, and whether they match its settings. Pure."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["StreamReplica", "StreamReplicas"]


@dataclass(frozen=True)
class StreamReplica:
    """A node that stores one copy of a stream."""

    name: str
    #: It has everything that the leader has, except for writes in flight.
    is_current: bool
    #: The cluster has had no contact with it for a while.
    is_away: bool
    #: The number of messages it still lacks.
    lag: int


@dataclass(frozen=True)
class StreamReplicas:
    """One stream and the nodes that store it."""

    stream: str
    #: The number of copies its settings require.
    wanted: int
    #: The node that receives all writes; empty while a leader is being elected.
    leader: str
    #: The other nodes.
    followers: tuple[StreamReplica, ...]
    #: Durable consumers that are not replicated to as many nodes yet.
    consumers_behind: int = 0
    is_clustered: bool = True

    @property
    def away(self) -> tuple[str, ...]:
        return tuple(keeper.name for keeper in self.followers if keeper.is_away)

    @property
    def lag(self) -> int:
        """Return the lag of the follower that is furthest behind."""
        return max((keeper.lag for keeper in self.followers), default=0)

    @property
    def nodes(self) -> tuple[str, ...]:
        """Return the names of all nodes, the leader first."""
        return tuple(filter(None, (self.leader, *(keeper.name for keeper in self.followers))))

    def is_complete(self, count: int) -> bool:
        """Return whether exactly `count` nodes store the stream, all of them up to date."""
        if self.wanted != count or self.consumers_behind:
            return False
        if not self.is_clustered:
            return count == 1
        is_current = all(keeper.is_current and not keeper.is_away for keeper in self.followers)
        return bool(self.leader) and len(self.followers) == count - 1 and is_current
