"""A real browser for tests, and eyes that see everything that goes wrong inside of it."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Page,
    Request,
    ViewportSize,
    WebError,
    expect,
    sync_playwright,
)

from support.routes import Paused, intercept

__all__ = [
    "ARTIFACTS",
    "VIEWPORT",
    "Watched",
    "browser_path",
    "check",
    "new_context",
    "only_looks",
    "open_browser",
    "panels_of",
    "shoot",
]

ARTIFACTS = Path(__file__).parents[2] / "artifacts"
#: Generous: a busy machine is slow, and what does not happen stays away for longer than this.
WAIT_MS = 60_000
VIEWPORT: ViewportSize = {"width": 1280, "height": 900}
_CHECKS = (Path(__file__).parents[1] / "browser" / "checks.js").read_text().strip().removesuffix(";")
#: The headless shell needs two thirds of the processor time of Chromium.
_NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_SWITCHES = (
    "--disable-gpu",
    # What draws is a thread and no process of its own, which would go before everybody else's work; no process is
    # started for a page that may come, and all pages of a context share one.
    "--in-process-gpu",
    "--disable-site-isolation-trials",
    "--process-per-site",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-extensions",
    "--disable-sync",
    "--no-first-run",
)


def browser_path() -> str:
    """$CHROMIUM, or the first one on the PATH. Missing: a failure in CI, a skipped test on a laptop."""
    found = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, _NAMES)), None)
    if found is None:
        why = "there is no browser: run `make programs`, or set CHROMIUM to a Chromium or Chrome"
        if os.environ.get("CI"):
            pytest.fail(why, pytrace=False)
        pytest.skip(why)
    return found


@contextlib.contextmanager
def open_browser() -> Iterator[Browser]:
    """The browser, and its driver. While it is open this thread has the driver's event loop, and no other can run."""
    path = browser_path()
    switches = [*_SWITCHES, *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    expect.set_options(timeout=WAIT_MS)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=switches)
        yield browser
        browser.close()


def new_context(browser: Browser, address: str, **more: Any) -> BrowserContext:
    """As tests want it: patient, and of the size of a screen."""
    usual = {"base_url": address, "viewport": VIEWPORT, "locale": "en-GB"}
    context = browser.new_context(**{**usual, **more})
    context.set_default_timeout(WAIT_MS)
    return context


class Reused(Protocol):
    page: Page

    def clear(self) -> None:
        """Take away what the test has left in it."""


class Watched:
    """The contexts and pages of one test. What goes wrong in a page is written down, and fails the test in the end."""

    def __init__(self, browser: Browser, *, notes_requests: bool = True) -> None:
        """Each page loads more than a hundred files: `notes_requests=False` for tests that do not read `requested`."""
        self._browser = browser
        self._contexts: list[BrowserContext] = []
        self._borrowed: dict[BrowserContext, Page] = {}
        self._reused: list[Reused] = []
        self._is_distrusted = False
        self._listeners: dict[str, Callable[..., None]] = {
            "console": self._on_console,
            "weberror": self._on_error,
            "requestfailed": self._on_failed,
        }
        if notes_requests:
            self._listeners["request"] = self._on_request
        self._expected: list[re.Pattern[str]] = []
        #: Every line of trouble, as `expects_trouble` sees it.
        self.trouble: list[str] = []
        #: The address of every request, in order, with `notes_requests`.
        self.requested: list[str] = []

    def new_page(self, address: str, **context: Any) -> Page:
        """A page in a context of its own, which knows nothing of the others; `page.goto("/")` opens the dashboard."""
        made = new_context(self._browser, address, **context)
        self._contexts.append(made)
        self._listen(made)
        return made.new_page()

    def borrow(self, context: BrowserContext, bare: Page, reused: Reused | None = None) -> None:
        """From here on, what goes wrong in this context goes wrong in this test. In the end it is given back, with no
        other pages in it than the bare one, on which there is nothing to be seen, and the reused one."""
        if context not in self._borrowed:
            self._borrowed[context] = bare
            self._listen(context)
        if reused is not None:
            self._reused.append(reused)

    def distrust(self) -> None:
        """The test failed: the state of its pages is unknown."""
        self._is_distrusted = True

    def expects_trouble(self, *patterns: str) -> None:
        """From here on, and before: a line of trouble in which one of these is found is what the test wants."""
        self._expected += [re.compile(pattern) for pattern in patterns]

    def pages(self) -> list[Page]:
        contexts = [*self._contexts, *self._borrowed]
        return [page for context in contexts for page in context.pages]

    def settle(self) -> list[str]:
        """The unexpected errors. Waits until every page has reported its own."""
        for page in self.pages():
            with contextlib.suppress(Exception):  # it may have been closed or be on its way elsewhere
                page.evaluate("0")
        return [line for line in self.trouble if not any(pattern.search(line) for pattern in self._expected)]

    def shoot(self, name: str) -> None:
        bare = self._borrowed.values()
        for number, page in enumerate(page for page in self.pages() if page not in bare):
            shoot(page, f"{name}{f'-{number}' if number else ''}", "browser")

    def close(self) -> None:
        for context in self._contexts:
            context.close()
        for context, bare in self._borrowed.items():
            for event, listener in self._listeners.items():
                context.remove_listener(event, listener)
            kept = [bare] if self._is_distrusted else [bare, *(each.page for each in self._reused)]
            for page in [page for page in context.pages if page not in kept]:
                page.close()
        for each in self._reused:
            if not each.page.is_closed():
                each.clear()

    def _listen(self, context: BrowserContext) -> None:
        on: Any = context.on  # it has another type for each event
        for event, listener in self._listeners.items():
            on(event, listener)

    def _on_error(self, error: WebError) -> None:
        self.trouble.append(f"page error: {error.error}")

    def _on_request(self, request: Request) -> None:
        self.requested.append(request.url)

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning", "assert"}:
            self.trouble.append(f"console {message.type}: {message.text} ({message.location.get('url', '')})")

    def _on_failed(self, request: Request) -> None:
        if request.failure != "net::ERR_ABORTED":  # the page itself has lost interest: it was closed, or went elsewhere
            self.trouble.append(f"request failed: {request.method} {request.url} {request.failure}")


def shoot(page: Page, name: str, folder: str = "screenshots") -> Path:
    """Keep a picture of the page under artifacts/. Never fails a test."""
    plain = re.sub(r"[^-.=\w]+", "_", name)[:150]
    path = ARTIFACTS / folder / f"{plain}.png"
    with contextlib.suppress(Exception):  # the page may have crashed: the test says so better
        page.screenshot(path=path, timeout=5000)
    return path


def check(page: Page, name: str, about: Any = None) -> Any:
    """What one of the questions in `browser/checks.js` finds in the page."""
    return page.evaluate(f"(about) => ({_CHECKS}).{name}(about)", about)


def only_looks(page: Page) -> None:
    """From here on the dashboard is served to this page as with PYOCO_DASHBOARD_READ_ONLY: `test_keys.py` has a server
    that has it."""

    def serve(route: Paused) -> None:
        answer = route.fetch()
        body = answer.text()
        assert 'data-read-only="false"' in body
        route.fulfill(response=answer, body=body.replace('data-read-only="false"', 'data-read-only="true"'))

    intercept(page, "**/", serve)


def panels_of(page: Page) -> list[str]:
    """The ids of all panels, in the order of the menu."""
    panels: list[str] = page.evaluate("import('/static/panels.js').then((m) => m.panels.map((each) => each.id))")
    return panels
