"""Absolute URLs for clients."""

from __future__ import annotations

import re

from starlette.types import Scope

__all__ = ["absolute"]

#: A host name or address, optionally with a port, without characters that could end the host of a URL.
_HOST = re.compile(r"([A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(:[0-9]{1,5})?", re.ASCII)
_SCHEMES = frozenset({"http", "https"})


def absolute(scope: Scope, address: str) -> str:
    """Return the absolute URL of a path on this server; absolute URLs stay unchanged.

    The host name is that of the request. `X-Forwarded-Host` and `X-Forwarded-Proto` of proxies take precedence: a
    caller can only mislead itself with them. Without a valid host name the path is returned unchanged.
    """
    if not address.startswith("/"):
        return address
    headers: dict[bytes, bytes] = dict(reversed(scope["headers"]))  # of duplicate headers the first counts
    host = _first(headers, b"x-forwarded-host") or _first(headers, b"host")
    if not _HOST.fullmatch(host):
        return address
    scheme = _first(headers, b"x-forwarded-proto").lower() or scope.get("scheme", "http")
    return f"{scheme if scheme in _SCHEMES else 'http'}://{host}{address}"


def _first(headers: dict[bytes, bytes], name: bytes) -> str:
    """Return the first list entry: each proxy appends its own, so the first is what the caller requested."""
    return headers.get(name, b"").partition(b",")[0].strip().decode("latin-1")
