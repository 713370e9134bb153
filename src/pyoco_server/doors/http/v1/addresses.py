"""Addresses that a client can follow as they are."""

from __future__ import annotations

import re

from starlette.types import Scope

__all__ = ["absolute"]

#: A name or an address with or without a port, and nothing that could end the host of a URL.
_HOST = re.compile(r"([A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(:[0-9]{1,5})?", re.ASCII)
_SCHEMES = frozenset({"http", "https"})


def absolute(scope: Scope, address: str) -> str:
    """A path on this server, under the name it was asked by; an address that is whole stays as it is.

    What proxies say in `X-Forwarded-Host` and `X-Forwarded-Proto` counts before what reached us: a caller can only
    mislead itself with them. Without a name to go by it stays a path.
    """
    if not address.startswith("/"):
        return address
    told: dict[bytes, bytes] = dict(reversed(scope["headers"]))  # of several with one name the first counts
    host = _first(told, b"x-forwarded-host") or _first(told, b"host")
    if not _HOST.fullmatch(host):
        return address
    scheme = _first(told, b"x-forwarded-proto").lower() or scope.get("scheme", "http")
    return f"{scheme if scheme in _SCHEMES else 'http'}://{host}{address}"


def _first(told: dict[bytes, bytes], name: bytes) -> str:
    """Each proxy adds its own to the list: the first is what the caller asked for."""
    return told.get(name, b"").partition(b",")[0].strip().decode("latin-1")
