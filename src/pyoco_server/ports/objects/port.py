"""Large byte objects: wheels, archives, results. Both directions stream; memory use does not grow with size."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

__all__ = ["Catalogue", "ObjectInfo", "Objects", "Stray"]


@dataclass(frozen=True)
class ObjectInfo:
    """The description of an object, without its bytes."""

    name: str
    size_bytes: int
    sha256_hex: str
    #: New for every put: the same name with another id is another object.
    object_id: str
    modified: float
    #: Short texts stored with the bytes, for example a wheel's tags.
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Catalogue:
    """All objects at one moment, by name."""

    #: If this number differs, something in the store has changed.
    generation: int
    objects: tuple[ObjectInfo, ...]


@dataclass(frozen=True)
class Stray:
    """Bytes that no object refers to: left over from a put that a crash or an outage interrupted."""

    #: The id that the object would have had.
    object_id: str
    #: Grows when bytes are added.
    last_sequence: int
    #: An upper bound.
    size_bytes: int


class Objects(Protocol):
    """Named bytes, verified by sha256 when read. An outage raises Unavailable.

    Timeouts limit the time without progress, not the total (FLOW-48).
    """

    async def put(
        self, name: str, chunks: AsyncIterable[bytes], bytes_max: int, headers: Mapping[str, str] | None = None
    ) -> ObjectInfo:
        """Store an object, replacing one of the same name. It becomes visible only when complete.

        Raises TooLarge as soon as `bytes_max` is exceeded, NotStored if the object is certainly not visible,
        Unavailable if that is unknown. After any failure nothing of it remains, or a stray that `sweep` removes. A put
        that adds nothing for five minutes fails: that lets the sweeper tell a running put from an abandoned one.
        """

    async def put_admitted(
        self,
        name: str,
        chunks: AsyncIterable[bytes],
        bytes_max: int,
        headers: Mapping[str, str] | None,
        admit: Callable[[Catalogue], None],
    ) -> ObjectInfo:
        """Like `put`, if `admit` accepts the catalogue exactly as it is when the object becomes visible.

        Whatever `admit` raises is passed to the caller, and nothing remains. It is called again after each change in
        the store; the bytes are sent once.
        """

    async def info(self, name: str) -> ObjectInfo:
        """Return the description of an object. Raises ObjectNotFound."""

    def read(self, info: ObjectInfo) -> AsyncGenerator[bytes, None]:
        """Yield the bytes in chunks.

        Raises Corrupt at the end if they are not the bytes that were stored, ObjectNotFound if the object was replaced
        or deleted meanwhile. If you stop early, close it (`contextlib.aclosing`): it holds a consumer.
        """

    async def catalogue(self) -> Catalogue:
        """Return every object, by name. O(objects)."""

    async def delete(self, name: str) -> bool:
        """Delete an object. False: it did not exist."""

    async def strays(self, older_than_seconds: float) -> tuple[Stray, ...]:
        """Return bytes that no object refers to and that have not grown for that long, by the store's clock; at most a
        thousand.

        O(objects), and one read per stray. Raises Corrupt if the description of an object cannot be read: then its
        bytes cannot be told from strays.
        """

    async def sweep(self, stray: Stray) -> bool:
        """Delete a stray. False: it was already deleted."""
