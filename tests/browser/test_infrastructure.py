"""The eyes of the browser tests see what they are there for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from playwright.sync_api import Page, expect

from support.browsers import Watched
from support.stacks import Stack, aside, until


def test_the_page_opens_without_any_trouble(page: Page) -> None:
    """FLOW-243, FLOW-247"""
    page.goto("/")
    expect(page.locator("header.top")).to_be_visible()


def test_trouble_of_a_page_is_seen(page: Page, watched: Watched, expects_trouble: Callable[..., None]) -> None:
    page.goto("/")
    page.evaluate("console.error('one'); console.warn('two'); setTimeout(() => { throw new Error('three') })")
    page.evaluate("fetch('http://127.0.0.1:1/').catch(() => 0)")  # the policy says no
    page.evaluate("fetch('runs/no-such-run').catch(() => 0)")
    wanted = ("console error: one", "console warning: two", "page error: .*three", "Content Security Policy", "404")
    until(lambda: len(watched.settle()) >= len(wanted), 10)
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
