"""Result objects: written once, completely or not at all, read through signed URLs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

__all__ = ["EXISTS_DIFFERENT", "ExistsDifferent", "ResultHead", "Results"]


class ExistsDifferent:
    """Other bytes are stored under this key; they stay."""

    def __repr__(self) -> str:
        return "EXISTS_DIFFERENT"


EXISTS_DIFFERENT = ExistsDifferent()


@dataclass(frozen=True)
class ResultHead:
    sha256: str
    size_bytes: int
    content_type: str
    metadata: Mapping[str, str]


class Results(Protocol):
    """The store of results. An outage raises DependencyUnavailable, and never looks like a missing object."""

    #: The bucket that the pointer of a run names.
    bucket: str

    async def start(self) -> None:
        """Create what is missing: bucket, lifecycle, access block. Idempotent."""

    async def close(self) -> None: ...

    async def put(
        self, key: str, data: bytes, content_type: str, sha256: str, metadata: Mapping[str, str]
    ) -> ResultHead | ExistsDifferent:
        """Store a result.

        Storing the same bytes again is allowed. Raises ValueError if `sha256` is not that of `data`; nothing is stored.
        """

    async def head(self, key: str) -> ResultHead | None: ...

    async def get(self, key: str) -> tuple[bytes, ResultHead] | None: ...

    async def signed_url(self, key: str, expires_at: int) -> str:
        """Return a URL, or a path on this server, that yields exactly these bytes until then (unix seconds)."""

    def opens(self, token: str, now: int) -> str | None:
        """Return the key that `/v1/results/{token}` refers to at that time (unix seconds).

        None: the token is forged, expired or malformed, or the store serves its own URLs.
        """

    async def ping(self) -> None: ...
