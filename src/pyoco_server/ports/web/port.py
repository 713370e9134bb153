"""One request to the web, in two steps: see where it would go, then go exactly there (PRICED-136, PRICED-137)."""

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
    """There is no answer. The classes say why; no text repeats a URL.

    WebError
    ├─ NameUnknown      the name has no address
    ├─ AddressRefused   one of its addresses may not be reached
    ├─ NotConnected     nobody answers there, or not in HTTP
    ├─ TlsFailed        not with TLS, or not with a certificate of that name
    └─ Broken           the answer began, and does not go on
    """


class NameUnknown(WebError):
    """The name has no address."""


class AddressRefused(WebError):
    """One of its addresses may not be reached, so none is."""

    def __init__(self, address: str, why: Refusal) -> None:
        super().__init__(why)
        self.address, self.why = address, why


class NotConnected(WebError):
    """Nobody answers there, or not in HTTP."""


class TlsFailed(WebError):
    """It does not speak TLS, or has no certificate of that name which we can trust."""


class Broken(WebError):
    """The answer began, and does not go on."""


@dataclass(frozen=True)
class Pinned:
    """A target with the addresses that were found for it, all of which were checked."""

    target: Target
    addresses: tuple[str, ...]


@dataclass(frozen=True)
class WebResponse:
    """An answer whose body is still to come."""

    status: int
    #: By names in small letters; the first of each.
    headers: Mapping[str, str]
    #: As it is sent: still encoded. Raises Broken.
    body: AsyncIterator[bytes]


class Web(Protocol):
    """Follows no redirect, keeps no cookie, takes nothing from the environment. A caller may cancel it anywhere."""

    async def pin(self, target: Target) -> Pinned:
        """Look the name up, once, and check every address there is. Raises NameUnknown, AddressRefused."""

    def get(self, pinned: Pinned, seconds: float) -> AbstractAsyncContextManager[WebResponse]:
        """Connect to the addresses in turn until one answers, and ask. `seconds` is what is left for all of it.
        Nothing is looked up any more. Raises NotConnected, TlsFailed."""
