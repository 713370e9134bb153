"""On how many nodes each of our streams, buckets and object stores is kept."""

from __future__ import annotations

from typing import Protocol

from pyoco_server.core.replicas import StreamReplicas

__all__ = ["Replicas"]


class Replicas(Protocol):
    """Everything of this deployment that NATS stores. Changing it disturbs nobody: writes go on meanwhile.

    All raise Unavailable when NATS does not answer.
    """

    @property
    def names(self) -> tuple[str, ...]:
        """Every stream that the settings ask for, whether it exists or not."""

    async def look(self, stream: str) -> StreamReplicas | None:
        """None: it is not there. One round trip, and one for each 256 of its consumers."""

    async def change(self, stream: str, count: int) -> None:
        """Ask for `count` copies. Returns when the server has taken note; the copies are made after that.

        Asked for twice, it is done once. Raises DeploymentRefused when the server will not.
        """

    async def try_count(self, count: int) -> None:
        """Whether there are nodes for so many copies, tried with an empty stream that is removed again.

        Raises DeploymentRefused when there are not, or when one of them does not answer.
        """
