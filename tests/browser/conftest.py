"""The dashboard in a real browser, on a real stack.

Browser and stack are started by the first test that asks for them and live until this process runs a test that is not
in this folder: the driver of the browser needs the thread's event loop, which tests elsewhere have for themselves.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import shutil
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from support.browsers import Watched, new_context, open_browser
from support.grid.processes import SAMPLES
from support.reused_pages import ReusedPage
from support.routes import Paused, intercept
from support.stacks import Stack

HERE = Path(__file__).parent


class Shared:
    """What the tests of this folder share, for as long as this process is in it."""

    def __init__(self) -> None:
        self._open = contextlib.ExitStack()
        self._browser: Browser | None = None
        self._stacks: dict[str, Stack] = {}
        self._first_pages: dict[str, Page] = {}
        self._reused: dict[str, ReusedPage] = {}

    def browser(self) -> Browser:
        if self._browser is None:
            self._browser = self._open.enter_context(open_browser())
        return self._browser

    def stack(self, folder: Callable[[str], Path], *options: str, **settings: Any) -> Stack:
        """The one with these options and settings."""
        which = repr((options, settings))
        if which not in self._stacks:
            stack = Stack(folder("stack"), *options, priced_enabled=1, **settings)
            self._open.callback(stack.stop)
            stack.start()
            self._stacks[which] = stack
        return self._stacks[which]

    def first_page(self, stack: Stack) -> Page:
        """The bare page that stays in a context of this stack, and with it the process that all of its pages share."""
        if stack.address not in self._first_pages:
            self._first_pages[stack.address] = bare_page(new_context(self.browser(), stack.address).new_page())
        return self._first_pages[stack.address]

    def reused(self, stack: Stack) -> ReusedPage:
        found = self._reused.get(stack.address)
        if found is None or found.page.is_closed():
            found = self._reused[stack.address] = ReusedPage(self.first_page(stack).context)
        return found

    def close(self) -> None:
        self._browser = None
        self._first_pages.clear()
        self._reused.clear()
        self._stacks.clear()
        self._open.close()


SHARED = Shared()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, Any, Any]:
    try:
        return (yield)
    finally:
        if nextitem is None or HERE not in nextitem.path.parents:
            SHARED.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.when == "call" and report.failed and (watched := item.funcargs.get("watched")):  # type: ignore[attr-defined]
        watched.shoot(item.name)
        watched.distrust()
    return report


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = f"{HERE}{os.sep}"
    for item in items:
        if str(item.path).startswith(here) and isinstance(item, pytest.Function):
            assert not inspect.iscoroutinefunction(item.function), f"{item.nodeid} is async: see tests/browser/conftest"


@pytest.fixture
def watched(request: pytest.FixtureRequest) -> Iterator[Watched]:
    """The pages of this test. In the end it fails on a console error or warning, a page error, a violated policy, a
    request that got no answer, and a 5xx, which Chromium writes to the console: all that it did not declare with
    `expects_trouble`. Requests are noted for tests that take this fixture themselves."""
    watched = Watched(SHARED.browser(), notes_requests="watched" in inspect.signature(request.function).parameters)
    yield watched
    trouble = watched.settle()
    if trouble:
        watched.shoot(request.node.name)
    watched.close()
    if trouble:
        pytest.fail("\n".join(["The browser met trouble:", *trouble[:20]]), pytrace=False)


@pytest.fixture
def expects_trouble(watched: Watched) -> Callable[..., None]:
    """`expects_trouble(r"503", r"ERR_CONNECTION")`: lines in which one of these is found do not fail the test."""
    return watched.expects_trouble


@pytest.fixture
def stack(tmp_path_factory: pytest.TempPathFactory) -> Stack:
    """Shared by many tests: break nothing in it, and find your own runs by a tag, a client or an id of your own.

    Its worker has the flows of the demo, the programs that are shipped, and those of `programs/`.
    """
    base = tmp_path_factory.getbasetemp()
    programs = base / "programs"
    if not programs.exists():
        programs.mkdir()
        for each in [*SAMPLES.glob("*.sh"), *(HERE / "programs").glob("*.sh")]:
            shutil.copy(each, programs)
    return SHARED.stack(tmp_path_factory.mktemp, EXEC_DIR=programs, WORK_ROOT=base / "jobs", dashboard_lang="en")


@pytest.fixture
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """One that asks for keys. Shared as well: a key of your own is a matter of `make_key`, and so are its headers."""
    stack = SHARED.stack(tmp_path_factory.mktemp, "--no-keeper", http_auth_mode="api_key")
    yield stack
    stack.headers = {}


@pytest.fixture
def fresh_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Stack]]:
    """`fresh_stack("--no-worker", dashboard_read_only="1")`: one of this test's own. It costs two seconds."""
    started: list[Stack] = []

    def fresh(*options: str, **settings: Any) -> Stack:
        priced = {"priced_enabled": 1, **settings}
        started.append(Stack(tmp_path_factory.mktemp("own_stack"), *options, **priced))
        return started[-1].start()

    yield fresh
    for each in started:
        each.stop()


@pytest.fixture
def new_page(watched: Watched) -> Callable[..., Page]:
    """`new_page(stack, color_scheme="dark", viewport=…)`: a page that was not opened yet, in a context of its own."""

    def new(stack: Stack, **context: Any) -> Page:
        return watched.new_page(stack.address, **context)

    return new


@pytest.fixture
def own_context() -> None:
    """For who changes more than one page, as `page.clock` and `page.context` do, or a page for good, as `page.route`
    does, or the modules of `module_page`."""


@pytest.fixture
def page(request: pytest.FixtureRequest, stack: Stack, watched: Watched) -> Page:
    """A page for the shared stack, not opened yet: `page.goto("/#/workers")`.

    The same for one test after the other, unless somebody asks for `own_context`. What one has changed in it the next
    does not see (see `support.reused_pages`). The files of the dashboard never change, and are read once.
    """
    if "own_context" in request.fixturenames:
        return watched.new_page(stack.address)
    reused = SHARED.reused(stack)
    watched.borrow(reused.page.context, SHARED.first_page(stack), reused)
    return reused.page


@pytest.fixture
def module_page(request: pytest.FixtureRequest, stack: Stack, watched: Watched) -> Page:
    """For modules alone: a bare page of the gateway, with its policy, on which nothing runs and nothing asks. It is
    shared, unless somebody asks for `own_context`: leave nothing behind in it.

    `module_page.evaluate("import('/static/lib/format.js').then((m) => m.span(75))")`
    """
    if "own_context" in request.fixturenames:
        return bare_page(watched.new_page(stack.address))
    page = SHARED.first_page(stack)
    watched.borrow(page.context, page)
    return page


def bare_page(page: Page) -> Page:
    bare = (
        '<!doctype html><html lang="en" data-auth="none" data-version="0"><title>bare</title><body><div id="app"></div>'
    )

    def serve(route: Paused) -> None:
        policy = route.fetch().headers.get("content-security-policy", "")
        route.fulfill(body=bare, content_type="text/html", headers={"content-security-policy": policy})

    intercept(page, "**/", serve)
    page.goto("/")
    return page
