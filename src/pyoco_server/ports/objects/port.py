"""Large bytes: wheels, archives, results. They stream both ways; memory does not grow with size."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

__all__ = ["Catalogue", "ObjectInfo", "Objects", "Stray"]


@dataclass(frozen=True)
class ObjectInfo:
    """What is known of an object without reading it."""

    name: str
    size_bytes: int
    sha256_hex: str
    #: Fresh for every put: the same name with another id is another object.
    object_id: str
    modified: float
    #: Small words kept beside the bytes, for example a wheel's tags.
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Catalogue:
    """Every object there was at one moment, by name."""

    #: Another number means that something in the store has changed since.
    generation: int
    objects: tuple[ObjectInfo, ...]


@dataclass(frozen=True)
class Stray:
    """Bytes that no object names: what is left of a put that was cut off by a crash or an outage."""

    #: The id that the object would have had.
    object_id: str
    #: Grows when somebody adds to them.
    last_sequence: int
    #: At most.
    size_bytes: int


class Objects(Protocol):
    """Named bytes, checked by sha256 on the way out. An outage raises Unavailable.

    The bound is on time without progress, not on the whole (FLOW-48).
    """

    async def put(
        self, name: str, chunks: AsyncIterable[bytes], bytes_max: int, headers: Mapping[str, str] | None = None
    ) -> ObjectInfo:
        """Store an object, replacing one of that name; nobody sees it before it is whole.

        Raises TooLarge as soon as `bytes_max` is passed, NotStored when it is certain that the object does not show,
        Unavailable when nobody knows. After any failure nothing of it remains, or a stray that `sweep` removes. A put
        that adds nothing for five minutes fails: so `sweep` knows one that is under way from one that is dead.
        """

    async def put_admitted(
        self,
        name: str,
        chunks: AsyncIterable[bytes],
        bytes_max: int,
        headers: Mapping[str, str] | None,
        admit: Callable[[Catalogue], None],
    ) -> ObjectInfo:
        """As `put`, if `admit` raises nothing for the catalogue as it is at the very moment the object is shown;
        whatever it raises goes to the caller, and nothing remains.

        It is asked again after each change of anything in the store; the bytes are sent once.
        """

    async def info(self, name: str) -> ObjectInfo:
        """Raises ObjectNotFound."""

    def read(self, info: ObjectInfo) -> AsyncGenerator[bytes, None]:
        """The bytes, in chunks. Raises Corrupt at the end when they are not the ones that were put,
        ObjectNotFound when the object has been replaced or deleted since.

        Close it when done early (`contextlib.aclosing`): it holds a consumer."""

    async def catalogue(self) -> Catalogue:
        """Every object, by name; O(objects)."""

    async def delete(self, name: str) -> bool:
        """False: there was none."""

    async def strays(self, older_than_seconds: float) -> tuple[Stray, ...]:
        """Bytes that no object names and nobody has added to for so long, by the store's own clock: up to a thousand
        of them. O(objects), and one read for each stray. Raises Corrupt when the description of an object cannot be
        read: then nobody knows which bytes are its."""

    async def sweep(self, stray: Stray) -> bool:
        """Remove what was found. False: it is gone already."""
