"""The page while parts of the system are away, and after they are back, without a reload."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Page, expect

from support.stacks import Stack

OUTAGE = (r"ERR_CONNECTION", r"status of 50[34]", r"ERR_EMPTY_RESPONSE", r"ERR_INCOMPLETE")


@pytest.fixture(scope="module")
def breakable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """One for these tests: each leaves it whole."""
    stack = Stack(tmp_path_factory.mktemp("breakable"), "--no-keeper", priced_enabled=1)
    yield stack.start()
    stack.stop()


def test_a_run_is_followed_through_the_death_of_the_gateway(
    breakable: Stack, new_page: Callable[..., Page], expects_trouble: Callable[..., None]
) -> None:
    """FLOW-251: the stream is cut off in the middle; the page connects again and sees the end."""
    expects_trouble(*OUTAGE)
    stack = breakable
    run_id = stack.submit("train_model", {"scale": 0.5})
    page = new_page(stack)
    page.goto(f"/#/runs/{run_id}")
    main = page.locator("main")
    expect(main).to_contain_text("fold_1")
    page.evaluate("window.sameDocument = true")
    stack.kill("gateway")
    expect(main.locator(".badge.status-completed").first).to_be_visible()
    assert stack.status(run_id) == "COMPLETED"
    assert page.evaluate("window.sameDocument"), "it was loaded anew"


def test_the_page_heals_by_itself(
    breakable: Stack, new_page: Callable[..., Page], expects_trouble: Callable[..., None]
) -> None:
    """FLOW-250, FLOW-251: everything is killed and started again under the page; then NATS hangs for a while."""
    expects_trouble(*OUTAGE)
    stack = breakable
    first = stack.submit()
    page = new_page(stack)
    page.goto("/#/runs")
    expect(page.locator(f"[data-id='{first}'][data-status=COMPLETED]")).to_be_visible()
    page.evaluate("window.sameDocument = true")
    banner = page.locator(".connection")
    expect(banner).to_be_hidden()

    stack.stop()
    expect(banner).to_contain_text("The gateway does not answer")
    expect(page.locator(f"[data-id='{first}']")).to_be_visible()  # what was known is still shown
    stack.start()
    second = stack.submit()
    expect(banner).to_be_hidden()
    expect(page.locator(f"[data-id='{second}'][data-status=COMPLETED]")).to_be_visible()

    stack.freeze("nats")
    expect(banner).to_contain_text("NATS")
    stack.thaw("nats")
    expect(banner).to_be_hidden()
    third = stack.submit()
    expect(page.locator(f"[data-id='{third}']")).to_be_visible()  # the worker may take longer to come back
    assert page.evaluate("window.sameDocument"), "it was loaded anew"
