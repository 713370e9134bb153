"""A page of the dashboard that one test after the other has.

A new page takes twice the processor time until the dashboard is open in it (0.5 s instead of 0.3 s): the modules are no
longer in the memory of its process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from playwright.sync_api import BrowserContext, Page

from support.browsers import VIEWPORT
from support.routes import stop_intercepting

__all__ = ["ReusedPage"]

#: A file of the same origin: in it nothing runs, and the storage of the dashboard can be reached.
_AT_REST = "/static/lib/format.js"
#: What cannot be taken back.
_REFUSED = ("expose_binding", "expose_function", "once", "route", "set_default_timeout", "set_extra_http_headers")


class ReusedPage:
    def __init__(self, context: BrowserContext) -> None:
        page: Any = context.new_page()
        self.page: Page = page
        self._session = context.new_cdp_session(page)
        self._session.send("Page.enable")
        self._scripts: list[str] = []
        self._listeners: list[tuple[Any, Callable[..., Any]]] = []
        self._listen = page.on
        page.on, page.add_init_script = self._on, self._add_init_script
        for name in _REFUSED:
            setattr(page, name, _refusal(name))
        self.clear()

    def clear(self) -> None:
        """Take away everything that a test may have left: the next one must not see it."""
        page = self.page
        stop_intercepting(page)
        for script in self._scripts:
            self._session.send("Page.removeScriptToEvaluateOnNewDocument", {"identifier": script})
        for event, listener in self._listeners:
            page.remove_listener(event, listener)
        self._scripts, self._listeners = [], []
        page.goto(_AT_REST)
        page.evaluate("localStorage.clear(); sessionStorage.clear()")
        page.context.clear_cookies()
        page.emulate_media(media="null", color_scheme="null", reduced_motion="null", forced_colors="null")
        if page.viewport_size != VIEWPORT:
            page.set_viewport_size(VIEWPORT)
        self._session.send("Page.resetNavigationHistory")

    def _on(self, event: Any, listener: Callable[..., Any]) -> None:
        self._listen(event, listener)
        self._listeners.append((event, listener))

    def _add_init_script(self, script: str) -> None:
        """Playwright's own cannot be taken back."""
        added = self._session.send("Page.addScriptToEvaluateOnNewDocument", {"source": script})
        self._scripts.append(added["identifier"])


def _refusal(name: str) -> Callable[..., None]:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError(f"page.{name} cannot be taken back after the test: use `intercept`, or `own_context`")

    return refuse
