"""The eyes of the browser tests see what they are there for."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from support.browsers import Watched
from support.routes import intercept
from support.stacks import Stack, aside, until

#: The turns of a test whose listener was called.
heard: list[int] = []


def test_the_page_opens_without_any_trouble(page: Page) -> None:
    """FLOW-243, FLOW-247"""
    page.goto("/")
    expect(page.locator("header.top")).to_be_visible()


def test_trouble_of_a_page_is_seen(page: Page, watched: Watched, expects_trouble: Callable[..., None]) -> None:
    page.goto("/")
    page.evaluate("console.error('one'); console.warn('two'); setTimeout(() => { throw new Error('three') })")
    page.evaluate("fetch('http://127.0.0.1:1/').catch(() => 0)")  # the policy says no
    intercept(page, "**/runs/unavailable", lambda route: route.fulfill(status=503))
    intercept(page, "**/runs/cut-off", lambda route: route.abort("connectionreset"))
    page.evaluate("fetch('runs/unavailable').catch(() => 0)")
    page.evaluate("fetch('runs/cut-off').catch(() => 0)")
    page.evaluate("fetch('runs/no-such-run').catch(() => 0)")
    seen = ("console error: one", "console warning: two", "page error: .*three", "Content Security Policy")
    wanted = (*seen, "status of 503", "console error: .*ERR_CONNECTION_RESET", "request failed: .*RESET", "404")
    until(lambda: len(watched.settle()) >= len(wanted), 10)
    assert [each for each in wanted if not any(re.search(each, line) for line in watched.trouble)] == []
    expects_trouble(*wanted[:-1])
    assert all("404" in line for line in watched.settle())
    expects_trouble("404")


def test_a_module_can_be_tried_alone(module_page: Page) -> None:
    assert module_page.evaluate("import('/static/lib/format.js').then((m) => m.span(75))") == "1 m 15 s"


def test_a_coroutine_runs_beside_the_browser(stack: Stack) -> None:
    async def work() -> str:
        await asyncio.sleep(0)
        return stack.nats_url

    assert aside(work).startswith("nats://127.0.0.1:")


@pytest.mark.parametrize("turn", [1, 2])
def test_a_test_sees_nothing_of_what_another_left_in_the_page(
    page: Page, turn: int, expects_trouble: Callable[..., None]
) -> None:
    """Each turn leaves everything behind, and finds nothing."""
    expects_trouble("404")
    page.goto("/")
    expect(page.locator("header.top")).to_be_visible()
    found = page.evaluate(
        """async () => {
          const answer = await fetch('runs/left-behind');
          return [
            history.length, innerWidth, document.cookie, Object.keys(localStorage), sessionStorage.getItem('left'),
            'left' in window, matchMedia('(prefers-color-scheme: dark)').matches, matchMedia('print').matches,
            matchMedia('(prefers-reduced-motion: reduce)').matches, answer.status,
          ];
        }"""
    )
    assert found == [2, 1280, "", [], None, False, False, False, False, 404], f"turn {turn}"
    heard.clear()
    page.on("console", lambda _: heard.append(turn))
    page.evaluate("console.log('heard')")
    until(lambda: page.evaluate("0") == 0 and heard, 10)
    assert heard == [turn]
    page.add_init_script("window.left = true")
    page.emulate_media(media="print", color_scheme="dark", reduced_motion="reduce")
    page.set_viewport_size({"width": 380, "height": 800})
    intercept(page, "**/runs/left-behind", lambda paused: paused.fulfill(json={}))
    page.reload()
    assert page.evaluate(
        """async () => {
          document.cookie = 'left=1';
          localStorage.setItem('left', 'x');
          sessionStorage.setItem('left', 'x');
          location.hash = '#/workers';
          return [innerWidth, left, (await fetch('runs/left-behind')).status];
        }"""
    ) == [380, True, 200]


def test_what_cannot_be_taken_back_is_refused_on_the_page_of_all_tests(page: Page) -> None:
    with pytest.raises(AssertionError, match="own_context"):
        page.route("**/*", lambda route: route.abort())
