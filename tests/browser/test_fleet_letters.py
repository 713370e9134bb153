"""Dead letters: looked at, redriven and deleted, one by one and in groups."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, Route, expect

from stacks import Stack, until


def _leave_letters(stack: Stack, n: int, tag: str) -> list[str]:
    """Runs that failed, each with its letter, under a label of the test's own."""
    runs = [stack.submit("charge_cards", {"card": f"{tag}-{each}"}, tags=[tag]) for each in range(n)]
    for run_id in runs:
        stack.until_status(run_id, "FAILED")
    until(lambda: len(stack.get("/dlq", tag=tag)["items"]) == n, what="letters")
    return runs


@pytest.fixture
def label() -> str:
    return f"label-{uuid.uuid4().hex[:8]}"


def test_an_empty_flow_is_a_filter_and_never_means_all(module_page: Page) -> None:
    found = module_page.evaluate(
        """() => import('/static/lib/letters.js').then((m) => {
            const filter = m.readFilter(new URLSearchParams('reason=timeout&no_flow=1'));
            const counts = { total: 9, groups: [{ reason: 'timeout', flow_name: null, count: 2, newest_at: 0 },
              { reason: 'timeout', flow_name: 'f', count: 3, newest_at: 0 }] };
            return [m.letterPath(filter), m.given(filter), m.placeOf(filter).no_flow, m.countOf(filter, counts),
              m.countOf({ ...filter, flow: null }, counts), m.countOf({ ...filter, tag: 'x' }, counts)];
          })"""
    )
    assert found == ["dlq?reason=timeout&flow=", {"reason": "timeout", "flow": ""}, "1", 2, 5, None]


def test_a_first_page_that_comes_again_keeps_what_was_loaded_below(module_page: Page) -> None:
    found = module_page.evaluate(
        """() => import('/static/lib/letters.js').then((m) => {
            const letters = (...ids) => ids.map((id) => ({ id: String(id), timestamp: 0, reason: 'x' }));
            const ids = (list) => list.map((each) => Number(each.id));
            return [ids(m.mergePage(letters(9, 8, 7, 3, 2), letters(11, 9, 7), false)),
              ids(m.mergePage(letters(9, 8), letters(9), true)), ids(m.mergePage(letters(9), [], false))];
          })"""
    )
    assert found == [[11, 9, 7, 3, 2], [9], []]


def test_a_letter_is_looked_at_and_redriven(stack: Stack, page: Page, label: str) -> None:
    (run_id,) = _leave_letters(stack, 1, label)
    page.goto(f"/#/letters?tag={label}")
    row = page.locator(".letter-rows .row")
    expect(row).to_have_count(1)
    expect(row).to_contain_text("was declined by the bank")
    row.get_by_role("button", name="charge_cards").click()
    detail = row.locator(".row-detail")
    expect(detail.locator(f'a[href="#/runs/{run_id}"]')).to_be_visible()
    expect(detail.locator(".json")).to_contain_text(f"{label}-0")  # what it was submitted with
    expect(detail).to_contain_text("The engine or a task raised an error.")
    letter_id = stack.get("/dlq", tag=label)["items"][0]["id"]
    assert page.url.endswith(f"letter={letter_id}")
    expect(page.locator(".letters > div > .command")).to_contain_text(f"pyoco-client dlq show {letter_id}")
    detail.get_by_role("button", name="Redrive").click()
    expect(page).not_to_have_url(f"{stack.address}/#/runs/{run_id}")
    page.wait_for_url("**/#/runs/*")
    again = page.url.rsplit("/", 1)[-1]
    assert stack.get(f"/runs/{again}")["rerun_of"] == run_id


def test_a_group_is_redriven_with_numbers_and_deleted_after_a_question(
    fresh_stack: Callable[..., Stack], new_page: Callable[..., Page], label: str
) -> None:
    stack = fresh_stack()
    page = new_page(stack)
    page.goto("/#/letters")
    expect(page.locator(".nothing-title")).to_have_text("No dead letters")
    _leave_letters(stack, 3, label)
    stack.until_status(stack.submit("no_such_flow"), "FAILED")
    page.reload()
    group = page.locator(".group", has_text="charge_cards")
    expect(group).to_contain_text("Execution error")
    group.click()
    expect(group).to_have_attribute("aria-pressed", "true")
    assert page.evaluate("location.hash") == "#/letters?reason=execution_error&flow=charge_cards"
    expect(page.locator(".letter-rows .row")).to_have_count(3)

    def press(name: str) -> None:
        page.get_by_role("button", name=name).click()

    press("Redrive all 3")
    page.get_by_role("dialog").get_by_role("button", name="Redrive").click()
    expect(page.locator(".bulk-status")).to_contain_text("Redriven: 3.")
    until(lambda: stack.get("/dlq/counts")["total"] == 4, what="three new failures")
    page.reload()
    press("Delete all 3")
    page.get_by_role("dialog").get_by_role("button", name="Back").click()
    assert stack.get("/dlq/counts")["total"] == 4
    press("Delete all 3")
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(page.locator(".bulk-status")).to_contain_text("Deleted: 3.")
    # The filter was kept: the letter of the other flow is still there.
    assert [group["flow_name"] for group in stack.get("/dlq/counts")["groups"]] == ["no_such_flow"]
    expect(page.locator(".letter-rows .row")).to_have_count(0)
    page.get_by_role("link", name="All letters").first.click()
    expect(page.locator(".letter-rows .row")).to_have_count(1)


def test_what_fits_a_filter_is_loaded_page_by_page(stack: Stack, page: Page, label: str) -> None:
    """The page asks for 50 at a time: on the way that becomes 2, and the cursors are the gateway's own."""
    _leave_letters(stack, 5, label)

    def shorten(route: Route) -> None:
        route.continue_(url=route.request.url.replace("limit=50", "limit=2"))

    page.route("**/dlq?*", shorten)
    page.goto(f"/#/letters?tag={label}")
    expect(page.locator(".letter-rows .row")).to_have_count(2)
    page.get_by_role("button", name="Load more").click()
    expect(page.locator(".letter-rows .row")).to_have_count(4)
    page.get_by_role("button", name="Load more").click()
    expect(page.locator(".letter-rows .row")).to_have_count(5)
    expect(page.get_by_role("button", name="Load more")).to_have_count(0)


def test_a_letter_of_an_address_is_shown_though_the_list_leaves_it_out(stack: Stack, page: Page, label: str) -> None:
    _leave_letters(stack, 1, label)
    letter_id = stack.get("/dlq", tag=label)["items"][0]["id"]
    page.goto(f"/#/letters?tag=another&letter={letter_id}")
    expect(page.locator(".letter-rows .row.open")).to_contain_text(f"{label}-0")
