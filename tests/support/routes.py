"""Answers of a test to requests of a page, without what `page.route` costs.

While a page has one route of Playwright's, whatever its pattern, all of its requests go through the driver and the
cache of the browser is off: the dashboard then loads more than a hundred files anew, for 0.4 s of processor time. Here
the browser stops only documents and what scripts fetch.
"""

from __future__ import annotations

import base64
import contextlib
import json as json_format
import re
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from playwright.sync_api import APIResponse, CDPSession, Error, Page

__all__ = ["Paused", "intercept", "stop_intercepting"]

#: Not `Script` and `Stylesheet`: they have no replacement.
_STOPPED = [{"urlPattern": "*", "resourceType": kind} for kind in ("Document", "Fetch", "XHR")]
#: About the encoding on the wire, and untrue of a body that was read.
_OF_THE_WIRE = {"content-encoding", "content-length", "transfer-encoding"}
_ERRORS = {"failed": "Failed", "connectionreset": "ConnectionReset"}

Handler = Callable[["Paused"], object]


@dataclass(frozen=True)
class PausedRequest:
    method: str
    url: str
    #: By name in lower case.
    headers: Mapping[str, str]
    post_data: str | None

    @property
    def post_data_json(self) -> Any:
        return None if self.post_data is None else json_format.loads(self.post_data)


class Paused:
    """A request that waits for its answer. Its methods are those of `playwright.sync_api.Route`."""

    def __init__(self, page: Page, session: CDPSession, event: dict[str, Any]) -> None:
        asked = event["request"]
        headers = {name.lower(): value for name, value in asked["headers"].items()}
        self.request = PausedRequest(asked["method"], asked["url"], headers, asked.get("postData"))
        self._page, self._session, self._id = page, session, event["requestId"]

    def fulfill(
        self,
        *,
        status: int | None = None,
        body: str | None = None,
        json: Any = None,
        content_type: str | None = None,
        headers: Mapping[str, str] | None = None,
        response: APIResponse | None = None,
    ) -> None:
        """What is given here goes before what `response` has."""
        told = dict(response.headers) if response else {}
        told = {name: value for name, value in told.items() if name not in _OF_THE_WIRE}
        if json is not None:
            body, told["content-type"] = json_format.dumps(json), "application/json"
        if content_type is not None:
            told["content-type"] = content_type
        told.update(headers or {})
        content = body.encode() if body is not None else response.body() if response else b""
        self._end(
            "Fetch.fulfillRequest",
            responseCode=status or (response.status if response else 200),
            responseHeaders=[{"name": name, "value": value} for name, value in told.items()],
            body=base64.b64encode(content).decode(),
        )

    def fetch(self) -> APIResponse:
        """The answer of the server, for the test alone."""
        asked = self.request
        return self._page.request.fetch(
            asked.url, method=asked.method, headers=dict(asked.headers), data=asked.post_data
        )

    def continue_(self, *, url: str | None = None) -> None:
        self._end("Fetch.continueRequest", **({} if url is None else {"url": url}))

    def abort(self, error: str = "failed") -> None:
        self._end("Fetch.failRequest", errorReason=_ERRORS[error])

    def _end(self, method: str, **arguments: Any) -> None:
        with _without_page():
            self._session.send(method, {"requestId": self._id, **arguments})


class _Routes:
    def __init__(self, page: Page) -> None:
        self._page = weakref.ref(page)
        self._session = page.context.new_cdp_session(page)
        self._session.on("Fetch.requestPaused", self._on_paused)
        self._routes: list[tuple[str | re.Pattern[str], re.Pattern[str], Handler]] = []

    def add(self, pattern: str | re.Pattern[str], handler: Handler) -> None:
        if not self._routes:
            self._session.send("Fetch.enable", {"patterns": _STOPPED})
        self._routes.append((pattern, _compiled(pattern), handler))

    def remove(self, pattern: str | re.Pattern[str] | None) -> None:
        self._routes = [route for route in self._routes if pattern is not None and route[0] != pattern]
        if not self._routes:
            self._session.send("Fetch.disable")

    def _on_paused(self, event: dict[str, Any]) -> None:
        page = self._page()
        assert page is not None
        paused = Paused(page, self._session, event)
        for _, pattern, handler in reversed(self._routes):
            if pattern.search(paused.request.url):
                handler(paused)
                return
        paused.continue_()


_of_pages: weakref.WeakKeyDictionary[Page, _Routes] = weakref.WeakKeyDictionary()


def intercept(page: Page, pattern: str | re.Pattern[str], handler: Handler) -> None:
    """`intercept(page, "**/runs/*", lambda paused: paused.fulfill(json=run))`: as `page.route`, for documents and what
    scripts fetch. The handler that was added last is asked first."""
    if page not in _of_pages:
        _of_pages[page] = _Routes(page)
    _of_pages[page].add(pattern, handler)


def stop_intercepting(page: Page, pattern: str | re.Pattern[str] | None = None) -> None:
    """Of this pattern, or of all. Requests that still wait for an answer of the test go to the server."""
    if page in _of_pages:
        _of_pages[page].remove(pattern)


def _compiled(pattern: str | re.Pattern[str]) -> re.Pattern[str]:
    """`**` is anything, and `*` anything without a slash."""
    if isinstance(pattern, re.Pattern):
        return pattern
    parts = (re.escape(part).replace(r"\*", "[^/]*") for part in pattern.split("**"))
    return re.compile(f"^{'.*'.join(parts)}$")


@contextlib.contextmanager
def _without_page() -> Iterator[None]:
    """The page may have been closed or left: then the answer is not needed."""
    try:
        yield
    except Error as error:
        if not re.search("Invalid InterceptionId|has been closed|Session closed", str(error)):
            raise
