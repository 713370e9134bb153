"""The streams, buckets and object stores that a process uses, and those of them that have been deleted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from pyoco_server.core.holds import Holds

__all__ = ["NoResources", "Resources", "StoreGone"]


@dataclass(frozen=True, order=True)
class StoreGone:
    """A resource that existed when this process started, or later, and does not exist now."""

    #: The name of the stream: `PYOCO_WORK`, `KV_pyoco_runs`, `OBJ_pyoco_wheels`.
    name: str
    holds: Holds


class Resources(Protocol):
    """Reading costs one round trip, whatever the number of resources."""

    async def missing(self) -> tuple[StoreGone, ...]:
        """By name. One that has no leader at the moment is not missing. Raises Unavailable."""

    async def begun_at(self, holds: Holds) -> float | None:
        """When the resource with this content was created, or restored, by the clock of the store. None: this process
        does not use it, or it does not exist. Raises Unavailable."""

    async def make_again(self, name: str) -> bool:
        """Create it, empty, with its last settings. False: it exists already. Raises Unavailable.

        Its sequences begin above any that the deleted one can have had, so that a late acknowledgement or a write over
        an old revision has no effect on the new one."""


class NoResources:
    """Of a backend without a store of its own: nothing is ever missing."""

    async def missing(self) -> tuple[StoreGone, ...]:
        return ()

    async def begun_at(self, holds: Holds) -> float | None:
        return None

    async def make_again(self, name: str) -> bool:
        return False
