"""One request to the web, in two steps: resolve and check the target, then connect exactly there (PRICED-136,
PRICED-137)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from pyoco_server.core.web.addresses import Refusal
from pyoco_server.core.web.targets import Target

__all__ = [
    "AddressRefused",
    "Broken",
    "NameUnknown",
    "NotConnected",
    "Pinned",
    "TlsFailed",
    "Web",
    "WebError",
    "WebResponse",
]


class WebError(Exception):
    """There is no response. The class gives the reason; no text repeats a URL.

    WebError
    ├─ NameUnknown      the name has no address
    ├─ AddressRefused   one of its addresses is forbidden
    ├─ NotConnected     no address accepts a connection, or not with HTTP
    ├─ TlsFailed        no TLS, or no trusted certificate for that name
    └─ Broken           the response began, but was cut off
    """


class NameUnknown(WebError):
    """The name has no address."""


class AddressRefused(WebError):
    """One of the addresses is forbidden, so the target is not contacted at all."""

    def __init__(self, address: str, why: Refusal) -> None:
        super().__init__(why)
        self.address, self.why = address, why


class NotConnected(WebError):
    """No address accepts a connection, or the server does not speak HTTP."""


class TlsFailed(WebError):
    """The server does not speak TLS, or has no trusted certificate for that name."""


class Broken(WebError):
    """The response began, but was cut off."""


@dataclass(frozen=True)
class Pinned:
    """A target with all its addresses, each of which was checked."""

    target: Target
    addresses: tuple[str, ...]


@dataclass(frozen=True)
class WebResponse:
    """A response whose body has not been read yet."""

    status: int
    #: By lower-case name; only the first of each name.
    headers: Mapping[str, str]
    #: The raw body, still encoded. Raises Broken.
    body: AsyncIterator[bytes]


class Web(Protocol):
    """Follows no redirects, keeps no cookies, ignores the environment. Calls may be cancelled at any point."""

    async def pin(self, target: Target) -> Pinned:
        """Resolve the name once, and check all its addresses. Raises NameUnknown, AddressRefused."""

    def get(self, pinned: Pinned, seconds: float) -> AbstractAsyncContextManager[WebResponse]:
        """Connect to the addresses in turn until one accepts, and send the request. `seconds` limits all of it.

        Does not resolve again. Raises NotConnected, TlsFailed.
        """
