"""`url`: web addresses, for the contents of their pages (contract 14.4). The reachable targets are defined in
`core/web`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pyoco_server.core.packs.spec import Here, Member, Members, PackSpec, flag, text, whole
from pyoco_server.errors import Problem

__all__ = ["FETCH_TIMEOUT_SECONDS_MAX", "REDIRECT_HOPS_MAX", "URL", "URLS_MAX", "URL_LENGTH_MAX"]

URLS_MAX: Final = 30
URL_LENGTH_MAX: Final = 2_048
FETCH_TIMEOUT_SECONDS_MAX: Final = 10
REDIRECT_HOPS_MAX: Final = 5

_url = text(0, URL_LENGTH_MAX)


def _urls(value: Any, loc: tuple[str | int, ...]) -> tuple[Problem, ...]:
    """Check the form of the list. An invalid URL is not an error here: it is reported in the result, next to the other
    pages."""
    if not isinstance(value, list):
        return (Problem(loc, "must be an array", "type"),)
    if not 1 <= len(value) <= URLS_MAX:
        return (Problem(loc, f"must have 1 to {URLS_MAX} items, and has {len(value)}", "length"),)
    return tuple(problem for number, item in enumerate(value) for problem in _url(item, (*loc, number)))


def _protected(inputs: Mapping[str, Any], here: Here) -> tuple[Problem, ...]:
    """Refuse inputs that switch off a protection: callers must not be able to."""
    problems = []
    if not inputs.get("block_private_ip", True):
        problems.append(Problem(("block_private_ip",), "must be true: it cannot be switched off", "value"))
    if not inputs.get("allow_https_only", True) and not here.allow_http:
        problems.append(Problem(("allow_https_only",), "must be true: http is not allowed here", "value"))
    return tuple(problems)


URL: Final = PackSpec(
    name="url",
    has_own_process=False,
    inputs=Members(
        {
            "urls": Member(_urls, is_required=True),
            "max_urls": Member(whole(1, URLS_MAX)),
            "fetch_timeout_sec": Member(whole(1, FETCH_TIMEOUT_SECONDS_MAX)),
            "max_redirect_hops": Member(whole(0, REDIRECT_HOPS_MAX)),
            "block_private_ip": Member(flag),
            "allow_https_only": Member(flag),
        }
    ),
    beyond=_protected,
    # The number of URLs to which a connection is attempted is known only once they are fetched.
    price=lambda _, prices: prices.url.of(1),
)
