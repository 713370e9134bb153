"""What is done to many runs at once, and with a form, from the list of runs."""

from __future__ import annotations

from collections.abc import Callable

from playwright.sync_api import Page, expect

from servers import unique
from stacks import Stack


def of_label(stack: Stack, label: str, count: int, tag: str = "nobody") -> list[str]:
    runs = [{"flow_name": "resize_images", "params": {"scale": 0.1}, "tag": tag, "tags": [label]} for _ in range(count)]
    return [item["run_id"] for item in stack.ask("POST", "/runs/batch", json={"runs": runs}).json()["items"]]


def statuses(stack: Stack, ids: list[str]) -> list[str]:
    return [stack.status(run_id) for run_id in ids]


def test_a_range_of_rows_is_cancelled_and_the_others_are_not(stack: Stack, page: Page) -> None:
    label = unique("some")
    ids = of_label(stack, label, 5)
    page.goto(f"/#/runs?tag={label}")
    rows = page.locator(".runs-body .runs-row")
    expect(rows).to_have_count(5)
    rows.nth(1).get_by_role("checkbox").click()
    rows.nth(3).get_by_role("checkbox").click(modifiers=["Shift"])
    bulk = page.locator(".runs-bulk")
    expect(bulk).to_contain_text("3 selected")
    bulk.get_by_role("button", name="Cancel", exact=True).click()
    page.locator("dialog").get_by_role("textbox").fill("not these")
    page.locator("dialog").get_by_role("button", name="Cancel them").click()
    expect(bulk).to_contain_text("3 runs were asked to stop.")
    for run_id in ids[1:4]:
        stack.until_status(run_id, "CANCELLED")
    assert statuses(stack, [ids[0], ids[4]]) == ["PENDING", "PENDING"]
    assert stack.get(f"/runs/{ids[2]}")["cancel_reason"] == "not these"


def test_all_that_match_are_cancelled_after_a_look_at_what_that_is(stack: Stack, page: Page) -> None:
    label, other = unique("all"), unique("other")
    ids, spared = of_label(stack, label, 4), of_label(stack, other, 1)
    page.goto(f"/#/runs?tag={label}")
    page.get_by_role("button", name="Cancel all matching").click()
    dialog = page.locator("dialog")
    expect(dialog).to_contain_text(label)
    expect(dialog).to_contain_text("4 runs match now.")
    dialog.get_by_role("button", name="Cancel them").click()
    expect(page.locator(".runs-bulk")).to_contain_text("4 runs were asked to stop.")
    for run_id in ids:
        stack.until_status(run_id, "CANCELLED")
    assert statuses(stack, spared) == ["PENDING"]


def test_selected_runs_are_run_again(stack: Stack, page: Page) -> None:
    label = unique("again")
    ids = of_label(stack, label, 6, "default")
    for run_id in ids:
        stack.until_status(run_id, "COMPLETED")
    page.goto(f"/#/runs?tag={label}")
    expect(page.locator(".runs-body .runs-row")).to_have_count(6)
    page.get_by_role("checkbox", name="Select all that are loaded").check()
    page.locator(".runs-bulk").get_by_role("button", name="Run again").click()
    page.locator("dialog").get_by_role("button", name="Run again").click()
    expect(page.locator(".runs-bulk")).to_contain_text("6 new runs were submitted.")
    expect(page.locator(".runs-body .runs-row")).to_have_count(12)


def test_a_run_is_submitted_with_a_form(stack: Stack, page: Page) -> None:
    page.goto("/#/runs")
    page.get_by_role("button", name="Submit a run").click()
    dialog = page.locator("dialog")
    dialog.get_by_label("Flow").fill("resize_images")
    dialog.get_by_label("Params").fill("[1]")
    dialog.get_by_role("button", name="Submit").click()
    expect(dialog.get_by_role("alert")).to_contain_text("JSON object")
    dialog.get_by_label("Params").fill('{"scale": 0.1, "who": "form", "id": 12345678901234567890}')
    dialog.get_by_role("button", name="Submit").click()
    page.wait_for_function("location.hash.startsWith('#/runs/')")
    run_id = page.evaluate("location.hash").removeprefix("#/runs/")
    stack.until_status(run_id, "COMPLETED")
    params = {"scale": 0.1, "who": "form", "id": 12345678901234567890}  # more digits than a browser's number has
    assert stack.get(f"/runs/{run_id}")["params"] == params


def test_a_list_that_may_not_act_offers_nothing_of_this(
    fresh_stack: Callable[..., Stack], new_page: Callable[..., Page]
) -> None:
    """PYOCO_DASHBOARD_READ_ONLY: no key and no button, though the list itself is whole."""
    stack = fresh_stack("--no-worker", "--no-keeper", dashboard_read_only="1")
    of_label(stack, "seen", 1)
    page = new_page(stack)
    page.goto("/#/runs")
    expect(page.locator(".runs-body .runs-row")).to_have_count(1)
    page.keyboard.press("j")
    page.keyboard.press("x")
    expect(page.locator("main").get_by_role("checkbox")).to_have_count(0)
    expect(page.locator(".runs-bulk")).to_be_hidden()
    for name in ("Submit a run", "Cancel all matching"):
        expect(page.get_by_role("button", name=name)).to_have_count(0)
