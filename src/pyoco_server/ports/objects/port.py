"""Large bytes: wheels, archives, results. They stream both ways; memory does not grow with size."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

__all__ = ["CHANGED", "Catalogue", "Changed", "ObjectInfo", "Objects"]


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


class Changed:
    """The store has changed since the catalogue was read; nothing was put."""

    def __repr__(self) -> str:
        return "CHANGED"


CHANGED = Changed()


class Objects(Protocol):
    """Named bytes, checked by sha256 on the way out. An outage raises Unavailable.

    The bound is on time without progress, not on the whole (FLOW-48).
    """

    async def put(
        self, name: str, chunks: AsyncIterable[bytes], bytes_max: int, headers: Mapping[str, str] | None = None
    ) -> ObjectInfo:
        """Store an object, replacing one of that name; nobody sees it before it is whole.

        Raises TooLarge as soon as `bytes_max` is passed. After any failure nothing of it remains.
        """

    async def put_if_unchanged(
        self,
        name: str,
        chunks: AsyncIterable[bytes],
        bytes_max: int,
        headers: Mapping[str, str] | None,
        generation: int,
    ) -> ObjectInfo | Changed:
        """As `put`, if nothing in the store has changed since the catalogue of that generation: of two who decided
        by the same catalogue, one wins. CHANGED: nothing of it remains."""

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
