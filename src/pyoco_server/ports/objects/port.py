"""Large bytes: wheels, archives, results. They stream both ways; memory does not grow with size."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

__all__ = ["ObjectInfo", "Objects"]


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

    async def info(self, name: str) -> ObjectInfo:
        """Raises ObjectNotFound."""

    def read(self, info: ObjectInfo) -> AsyncGenerator[bytes, None]:
        """The bytes, in chunks. Raises Corrupt at the end when they are not the ones that were put,
        ObjectNotFound when the object has been replaced or deleted since.

        Close it when done early (`contextlib.aclosing`): it holds a consumer."""

    async def all(self) -> list[ObjectInfo]:
        """Every object, by name; O(objects)."""

    async def delete(self, name: str) -> bool:
        """False: there was none."""
