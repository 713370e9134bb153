"""The store of large results and outputs. Memory use does not grow with size."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable
from dataclasses import dataclass
from typing import Protocol

from pyoco_server.ports.objects.port import Stray

__all__ = ["Outputs", "StoredOutput"]


@dataclass(frozen=True)
class StoredOutput:
    """An object: one or many values of one attempt."""

    name: str
    size_bytes: int
    #: Empty: the run has no tenant.
    tenant_id: str
    modified: float


class Outputs(Protocol):
    """Objects that are written once, under a name that contains the run and the attempt. An outage raises
    Unavailable."""

    async def put(self, name: str, chunks: AsyncIterable[bytes], size_bytes: int, tenant_id: str) -> None:
        """Store an object. It becomes visible only when complete; storing it again replaces it."""

    def read(self, name: str, start: int, length: int) -> AsyncGenerator[bytes, None]:
        """Yield this slice of an object. If you stop early, close it: it holds a consumer or a connection.

        Raises ObjectNotFound, and Corrupt if the object ends before the slice does. The caller compares digests.
        """

    async def all(self) -> tuple[StoredOutput, ...]:
        """Return every object. O(objects)."""

    async def delete(self, name: str) -> bool:
        """Delete an object. False: it did not exist."""

    async def strays(self, older_than_seconds: float) -> tuple[Stray, ...]:
        """As `Objects.strays`; empty for a store that removes them itself."""

    async def sweep(self, stray: Stray) -> bool:
        """As `Objects.sweep`."""
