"""Whatever a run, a worker, a letter or a wheel is called: it is shown as text, and nothing of it is obeyed."""

from __future__ import annotations

from collections.abc import Callable

from playwright.sync_api import Page, expect

from support.browsers import check, panels_of
from support.odd_records import MARKUP, write_odd_records
from support.stacks import Stack


def test_nothing_that_is_shown_is_obeyed(fresh_stack: Callable[..., Stack], new_page: Callable[..., Page]) -> None:
    """FLOW-259: in flow names, tags, params, errors, tracebacks, task names, graphs, worker ids, versions, reasons of
    a cancel, dead letters and the wheel history; over HTTP what it takes, and past it what it refuses."""
    stack = fresh_stack("--no-keeper")
    by_http = stack.submit(f"flow {MARKUP}"[:200], {MARKUP: MARKUP}, tags=["default"])
    stack.ask("POST", f"/runs/{by_http}/cancel", json={"reason": MARKUP})
    odd = write_odd_records(stack)
    page = new_page(stack)
    dialogs: list[str] = []

    def on_dialog(dialog: object) -> None:
        dialogs.append(str(dialog))

    page.on("dialog", on_dialog)
    page.goto("/")
    seen: set[str] = set()
    for place in [*panels_of(page), f"runs/{by_http}", f"runs/{odd}"]:
        page.goto(f"/#/{place}")
        expect(page.locator("main h1").first).to_be_visible()
        expect(page.locator("main .skeleton")).to_have_count(0)
        if place in {"runs", f"runs/{odd}", f"runs/{by_http}", "letters"}:
            expect(page.locator("main")).to_contain_text("<img src=x onerror")
        page.evaluate("document.querySelectorAll('main details').forEach((each) => { each.open = true })")
        assert check(page, "obeyed") == [], place
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{place} is too wide"
        if "<img src=x" in page.locator("main").inner_text():
            seen.add(place)
    assert {"runs", f"runs/{odd}"} <= seen
    assert not dialogs


def test_an_odd_address_leads_to_a_page_and_not_to_a_defect(page: Page, expects_trouble: Callable[..., None]) -> None:
    """FLOW-259: the part behind `#` may come from a third party."""
    expects_trouble(r"status of (404|422)")
    page.goto("/")
    for place in (
        f"#/{MARKUP}",
        f"#/runs/{MARKUP}",
        "#/runs/..%2F..%2Fmetrics",
        "#/runs/%",
        f"#/runs?tag={MARKUP}&status=nonsense&q=%00&page=-1&limit=1e9",
        f"#/workers?worker={MARKUP}",
        "#/__proto__",
        "#//evil.example/x",
        "#" + "/a" * 3000,
    ):
        page.goto("/" + place)
        page.reload()
        expect(page.locator("main :is(h1, .nothing-title)").first).to_be_visible()
        assert check(page, "obeyed") == [], place
