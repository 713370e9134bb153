"""Which changes a browser may make (SAFE-10).

A gateway without authentication trusts whoever reaches its port. A page of another origin in a user's browser can reach
it, too. No page can change or leave out the headers read here; programs send none of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

__all__ = ["foreign_origin", "is_of_browser", "shown_value", "simple_request"]

#: Every browser sends at least one of these with a change that a page asks for.
_OF_BROWSER: Final = frozenset({b"sec-fetch-site", b"origin", b"referer"})
#: What ends host and port in an address; browsers read a backslash as a slash.
_AUTHORITY_END: Final = re.compile(rb"[/?#\\]")
_DEFAULT_PORTS: Final = {b"http": b"80", b"https": b"443"}
#: No host name is longer.
_SHOWN_MAX: Final = 253
_ADVICE: Final = "let the proxy pass Host, with its port, or X-Forwarded-Host"


def is_of_browser(headers: Mapping[bytes, bytes]) -> bool:
    return not _OF_BROWSER.isdisjoint(headers)


def foreign_origin(headers: Mapping[bytes, bytes]) -> str | None:
    """What is wrong with the origin of the page; None: it is ours.

    Browsers send `Sec-Fetch-Site` to addresses that they trust: https and this machine. It also holds behind proxies
    that change the name; `none` means that no page asked for this. Elsewhere the page's host and port have to be those
    that this gateway was asked by.
    """
    site = headers.get(b"sec-fetch-site", b"").strip().lower()
    page = headers.get(b"origin", headers.get(b"referer"))
    if site == b"same-origin" or (site == b"none" and page is None):
        return None
    if page is None or site not in {b"", b"none"}:
        return "cross-origin request"
    # Every proxy appends its own name to the list. The first one is what the browser asked for.
    asked = [headers.get(b"host", b""), headers.get(b"x-forwarded-host", b"").partition(b",")[0]]
    scheme, _, rest = page.strip().lower().partition(b"://")
    address = _address(scheme, _AUTHORITY_END.split(rest, maxsplit=1)[0].rpartition(b"@")[2])
    if address and address in (_address(scheme, each) for each in asked):
        return None
    ours = " or ".join(shown_value(each) for each in asked if each) or "nothing"
    came_from = shown_value(page if b"origin" in headers else b"://".join((scheme, address)))
    return f"cross-origin request: the page came from {came_from}, but this gateway was asked as {ours}; {_ADVICE}"


def simple_request(headers: Mapping[bytes, bytes]) -> str | None:
    """What is wrong with a request that pages of other origins could send as well; None: they could not.

    To send JSON or a header of its own, a page of another origin needs our permission in answer to an OPTIONS request.
    We never give it. So this holds even where the origin is judged wrongly.
    """
    kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    is_json = kind == b"application/json" or (kind.startswith(b"application/") and kind.endswith(b"+json"))
    if is_json or headers.get(b"x-pyoco-request", b"").strip() == b"1":
        return None
    return "a change from a browser needs a JSON content type or the header X-Pyoco-Request: 1"


def _address(scheme: bytes, authority: bytes) -> bytes:
    """Host and port in lower case, without the default port of the scheme; nothing for an origin such as `null`."""
    authority = authority.strip().lower()
    host, colon, port = authority.rpartition(b":")
    if colon and (not port or port == _DEFAULT_PORTS.get(scheme)):
        return host
    return authority


def shown_value(value: bytes) -> str:
    """Any header value as printable text of bounded length."""
    text = "".join(chr(byte) if 0x20 < byte < 0x7F else "?" for byte in value.strip()[:_SHOWN_MAX])
    return text if len(value.strip()) <= _SHOWN_MAX else f"{text}..."
