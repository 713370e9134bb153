"""Result objects: written once, whole or not at all, read by signed addresses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

__all__ = ["EXISTS_DIFFERENT", "ExistsDifferent", "Head", "Results"]


class ExistsDifferent:
    """Other bytes lie under this key; they stay."""

    def __repr__(self) -> str:
        return "EXISTS_DIFFERENT"


EXISTS_DIFFERENT = ExistsDifferent()


@dataclass(frozen=True)
class Head:
    sha256: str
    size_bytes: int
    content_type: str
    metadata: Mapping[str, str]


class Results(Protocol):
    """An outage raises DependencyUnavailable, and never looks like a missing object."""

    #: What the pointer of a run names.
    bucket: str

    async def start(self) -> None:
        """Make what is missing: bucket, lifecycle, access block. May be called again."""

    async def close(self) -> None: ...

    async def put(
        self, key: str, data: bytes, content_type: str, sha256: str, metadata: Mapping[str, str]
    ) -> Head | ExistsDifferent:
        """The same bytes again are fine. Raises ValueError when `sha256` is not that of `data`; nothing is stored."""

    async def head(self, key: str) -> Head | None: ...

    async def get(self, key: str) -> tuple[bytes, Head] | None: ...

    async def signed_url(self, key: str, expires_at: int) -> str:
        """An address, or a path on this server, that yields exactly these bytes until then (unix seconds)."""

    def opens(self, token: str, now: int) -> str | None:
        """The key that `/v1/results/{token}` leads to at that time (unix seconds).

        None: forged, expired, rubbish, or a store that serves its own addresses.
        """

    async def ping(self) -> None: ...
