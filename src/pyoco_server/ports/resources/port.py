"""The streams, buckets and object stores that a process uses, and which of them were deleted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from pyoco_server.core.holds import Holds

__all__ = ["NoResources", "Resources", "StoreGone"]


@dataclass(frozen=True, order=True)
class StoreGone:
    """A resource that existed when this process started, or later, and no longer exists."""

    #: The name of the stream: `PYOCO_WORK`, `KV_pyoco_runs`, `OBJ_pyoco_wheels`.
    name: str
    holds: Holds


class Resources(Protocol):
    """The resources of this process. A check costs one round trip, whatever their number."""

    async def missing(self) -> tuple[StoreGone, ...]:
        """Return the missing resources, by name.

        One without a leader at the moment is not missing. Raises Unavailable.
        """

    async def begun_at(self, holds: Holds) -> float | None:
        """Return when the resource with this content was created, or restored, by the store's clock.

        None: this process does not use it, or it does not exist. Raises Unavailable.
        """

    async def make_again(self, name: str) -> bool:
        """Create the resource, empty, with its last settings. False: it already exists. Raises Unavailable.

        Its sequences start above any that the deleted one can have had, so that a late acknowledgement, or a write over
        an old revision, has no effect on the new one.
        """


class NoResources:
    """For a backend without a store of its own: nothing is ever missing."""

    async def missing(self) -> tuple[StoreGone, ...]:
        return ()

    async def begun_at(self, holds: Holds) -> float | None:
        return None

    async def make_again(self, name: str) -> bool:
        return False
