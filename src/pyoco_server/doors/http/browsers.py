"""Which changes a browser may make (SAFE-10).

A gateway without authentication trusts every client that can reach its port, and so can a page of another origin in a
user's browser. No page can change or omit the headers that are read here; programs do not send them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

__all__ = ["foreign_origin", "is_of_browser", "shown_value", "simple_request"]

#: A browser sends at least one of these headers with every change that a page requests.
_OF_BROWSER: Final = frozenset({b"sec-fetch-site", b"origin", b"referer"})
#: Characters that end the host and port in a URL; browsers treat a backslash as a slash.
_AUTHORITY_END: Final = re.compile(rb"[/?#\\]")
_DEFAULT_PORTS: Final = {b"http": b"80", b"https": b"443"}
#: Longest possible host name.
_SHOWN_MAX: Final = 253
_ADVICE: Final = "let the proxy pass Host, with its port, or X-Forwarded-Host"


def is_of_browser(headers: Mapping[bytes, bytes]) -> bool:
    return not _OF_BROWSER.isdisjoint(headers)


def foreign_origin(headers: Mapping[bytes, bytes]) -> str | None:
    """Return why the page's origin is refused, or None if it is our own origin.

    Browsers send `Sec-Fetch-Site` to trustworthy addresses: https and localhost. It is also correct behind proxies that
    change the host name; `none` means that no page made the request. Without that header, the page's host and port must
    be those under which this gateway was addressed.
    """
    site = headers.get(b"sec-fetch-site", b"").strip().lower()
    page = headers.get(b"origin", headers.get(b"referer"))
    if site == b"same-origin" or (site == b"none" and page is None):
        return None
    if page is None or site not in {b"", b"none"}:
        return "cross-origin request"
    # Every proxy appends its own name to the list. The first one is the host that the browser requested.
    asked = [headers.get(b"host", b""), headers.get(b"x-forwarded-host", b"").partition(b",")[0]]
    scheme, _, rest = page.strip().lower().partition(b"://")
    address = _address(scheme, _AUTHORITY_END.split(rest, maxsplit=1)[0].rpartition(b"@")[2])
    if address and address in (_address(scheme, each) for each in asked):
        return None
    ours = " or ".join(shown_value(each) for each in asked if each) or "nothing"
    came_from = shown_value(page if b"origin" in headers else b"://".join((scheme, address)))
    return f"cross-origin request: the page came from {came_from}, but this gateway was asked as {ours}; {_ADVICE}"


def simple_request(headers: Mapping[bytes, bytes]) -> str | None:
    """Return why the request is refused if a page of another origin could have sent it too, else None.

    To send JSON or a custom header, a page of another origin needs our permission in a preflight (OPTIONS) response. We
    never grant it, so this check protects even if the origin check is wrong.
    """
    kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    is_json = kind == b"application/json" or (kind.startswith(b"application/") and kind.endswith(b"+json"))
    if is_json or headers.get(b"x-pyoco-request", b"").strip() == b"1":
        return None
    return "a change from a browser needs a JSON content type or the header X-Pyoco-Request: 1"


def _address(scheme: bytes, authority: bytes) -> bytes:
    """Return host and port in lower case, without the scheme's default port; empty for an origin such as `null`."""
    authority = authority.strip().lower()
    host, colon, port = authority.rpartition(b":")
    if colon and (not port or port == _DEFAULT_PORTS.get(scheme)):
        return host
    return authority


def shown_value(value: bytes) -> str:
    """Return any header value as printable text of bounded length."""
    text = "".join(chr(byte) if 0x20 < byte < 0x7F else "?" for byte in value.strip()[:_SHOWN_MAX])
    return text if len(value.strip()) <= _SHOWN_MAX else f"{text}..."
