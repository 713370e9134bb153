"""The number of replicas of each of our streams, buckets and object stores."""

from __future__ import annotations

from typing import Protocol

from pyoco_server.core.replicas import StreamReplicas

__all__ = ["Replicas"]


class Replicas(Protocol):
    """The replicas of everything that this deployment stores in NATS. Changing them does not interrupt writes.

    Every method raises Unavailable if NATS does not answer.
    """

    @property
    def names(self) -> tuple[str, ...]:
        """Every stream that the settings require, whether it exists or not."""

    async def look(self, stream: str) -> StreamReplicas | None:
        """Return the replicas of a stream. None: it does not exist. One round trip, and one more per 256 consumers."""

    async def change(self, stream: str, count: int) -> None:
        """Set the number of replicas. Returns once the server has accepted; it creates the replicas afterwards.

        Idempotent. Raises DeploymentRefused if the server refuses.
        """

    async def try_count(self, count: int) -> None:
        """Check that there are enough nodes for this many replicas, with an empty stream that is removed again.

        Raises DeploymentRefused if there are not, or if one of them does not answer.
        """
