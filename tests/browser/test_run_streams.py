"""Many pages of runs in one browser, which has six connections for all of them."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from support.browsers import Watched
from support.servers import unique
from support.stacks import Stack, until

CALM = "document.documentElement.dataset.connection === 'ok' && document.querySelector('.connection').hidden"


def watchers(stack: Stack) -> int:
    found = re.search(r"^pyoco_watchers (\d+)", stack.ask("GET", "/metrics").text, re.MULTILINE)
    assert found is not None
    return int(found[1])


def followed(watched: Watched) -> set[str]:
    return {url for url in watched.requested if "/watch" in url}


def opened(page: Page, stack: Stack, run_id: str) -> Page:
    """Another page of the same browser."""
    other = page.context.new_page()
    other.goto(f"/#/runs/{run_id}")
    expect(other.locator(".run-waiting")).to_contain_text("No worker serves")
    return other


@pytest.mark.usefixtures("own_context")
def test_eight_pages_of_runs_are_live_and_a_ninth_page_still_loads(page: Page, stack: Stack, watched: Watched) -> None:
    """FLOW-251: three of them hold a stream, the others ask. All see the end, and none takes the queue inside of the
    browser for a gateway that does not answer."""
    ids = [stack.submit(tag=unique("nobody")) for _ in range(8)]
    pages = [opened(page, stack, run_id) for run_id in ids]
    until(lambda: watchers(stack) == 3, what="three streams")
    page.goto("/#/queues")
    expect(page.locator("main h1")).to_have_text("Queues")
    pages[0].close()
    until(lambda: page.evaluate("1") and len(followed(watched)) == 4, what="another one in its place")
    for run_id in ids:
        stack.ask("POST", f"/runs/{run_id}/cancel")
    for each in pages[1:]:
        expect(each.locator(".run-head .badge.status-cancelled")).to_be_visible()
        assert each.evaluate(CALM)
    assert page.evaluate(CALM)
    until(lambda: watchers(stack) == 0, what="no stream")


@pytest.mark.usefixtures("own_context")
def test_without_locks_pages_share_their_streams_all_the_same(page: Page, stack: Stack) -> None:
    """FLOW-251: a page that came without TLS from another machine has none. One takes over what another leaves."""
    page.context.add_init_script("delete Navigator.prototype.locks")
    run_id = stack.submit(tag=unique("nobody"))
    pages = [opened(page, stack, run_id) for _ in range(4)]
    assert pages[0].evaluate("navigator.locks === undefined")
    until(lambda: watchers(stack) == 3, what="three streams")
    with pages[3].expect_response(re.compile("/watch")):
        pages[0].close()
    stack.ask("POST", f"/runs/{run_id}/cancel")
    for each in pages[1:]:
        expect(each.locator(".run-head .badge.status-cancelled")).to_be_visible()


@pytest.mark.usefixtures("own_context")
def test_a_page_that_nobody_looks_at_gives_its_stream_back(page: Page, stack: Stack) -> None:
    run_id = stack.submit(tag=unique("nobody"))
    with page.expect_response(re.compile("/watch")):
        page.goto(f"/#/runs/{run_id}")
    look = """(hidden) => { Object.defineProperty(document, 'hidden', { value: hidden, configurable: true });
      document.dispatchEvent(new Event('visibilitychange')) }"""
    with page.expect_event("requestfailed", lambda request: "/watch" in request.url):
        page.evaluate(look, True)
    with page.expect_response(re.compile("/watch")):
        page.evaluate(look, False)
    stack.ask("POST", f"/runs/{run_id}/cancel")
    expect(page.locator(".run-head .badge.status-cancelled")).to_be_visible()


@pytest.mark.usefixtures("own_context")
def test_a_page_without_a_key_hears_nothing_more(page: Page, module_page: Page, stack: Stack) -> None:
    """FLOW-258: the stream ends with the key, and what is on its way is not shown, not even as the window's title."""
    run_id = stack.submit(tag=unique("nobody"))
    with page.expect_response(re.compile("/watch")):
        page.goto(f"/#/runs/{run_id}")
    main = page.locator("script[type=module]").get_attribute("src") or ""
    connection = main.replace("main.js", "lib/connection.js")
    with page.expect_event("requestfailed", lambda request: "/watch" in request.url):
        page.evaluate(f"import('/{connection}').then((m) => m.lock('refused'))")
    stack.ask("POST", f"/runs/{run_id}/cancel")
    page.evaluate(f"import('/{connection}').then((m) => m.unlock())")
    expect(page.locator(".run-head .badge.status-cancelled")).to_be_visible()
    found = module_page.evaluate("""async () => {
      const { RunFeed } = await import('/static/views/run_feed.js');
      const { lock, unlock } = await import('/static/lib/connection.js');
      const seen = [];
      const feed = new RunFeed('x', { onRun: (run) => { seen.push(run.status); throw new Error('of the view'); } });
      const event = (status) => feed.onEvent(
        { event: 'snapshot', id: '1', data: JSON.stringify({ snapshot: { status, worker_id: 'w' } }) });
      globalThis.reportError = (error) => seen.push(error.message);
      event('RUNNING'); lock('refused'); event('COMPLETED'); unlock(); event(5); event('FAILED');
      feed.stop();
      return seen;
    }""")
    assert found == ["RUNNING", "of the view", "FAILED", "of the view"]
