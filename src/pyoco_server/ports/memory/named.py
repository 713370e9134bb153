"""Stores that live in this process, found by the name in an address such as `memory://name`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Generic, TypeVar
from urllib.parse import urlsplit

__all__ = ["MEMORY_SCHEME", "Named", "name_in"]

T = TypeVar("T")

MEMORY_SCHEME: Final = "memory"


def name_in(url: str) -> str | None:
    """Return the name in `memory://name`. None: the address has another scheme."""
    prefix = f"{MEMORY_SCHEME}://"
    return urlsplit(url).netloc if url.startswith(prefix) else None


class Named(Generic[T]):
    """One store per name, shared by all adapters of a process that use the name."""

    def __init__(self, create: Callable[[str], T]) -> None:
        self._create = create
        self._stores: dict[str, T] = {}

    def of(self, name: str) -> T:
        """Return the store with this name, created at first use."""
        if name not in self._stores:
            self._stores[name] = self._create(name)
        return self._stores[name]

    def forget(self, name: str) -> T | None:
        """Remove the store, so that the next `of` creates an empty one. Return the removed store, if any."""
        return self._stores.pop(name, None)
