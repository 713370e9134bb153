"""A run from its submission to its end, as a user of the dashboard sees and controls it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, Route, expect

from support.browsers import Watched, check
from support.servers import unique
from support.stacks import Stack


def test_a_run_turns_green_under_the_eye(stack: Stack, page: Page, watched: Watched, tmp_path: Path) -> None:
    """FLOW-247, FLOW-250: without loading the page again, and by asking for what has changed only."""
    tag_word = unique("seen")
    page.goto("/#/runs")
    expect(page.locator("main h1")).to_be_visible()
    page.evaluate("window.sameDocument = true")
    gate = tmp_path / "gate"
    gate.touch()
    run_id = stack.submit("nightly_report", {"scale": 0.1, "while_exists": str(gate), "name": tag_word})
    row = page.locator(f"[data-id='{run_id}']")
    expect(row).to_have_attribute("data-status", "RUNNING")
    gate.unlink()
    expect(row).to_have_attribute("data-status", "COMPLETED")
    expect(row.locator(".badge")).to_contain_text("Completed")
    assert page.evaluate("window.sameDocument")
    asked = [url for url in watched.requested if "/runs?" in url]
    assert any("updated_after=" in url for url in asked), asked

    row.get_by_role("link", name="nightly_report").click()
    main = page.locator("main")
    for task in ("extract_orders", "clean_orders", "publish"):
        expect(main).to_contain_text(task)
    page.go_back()
    expect(row).to_be_visible()


def test_a_run_is_followed_over_a_stream_with_its_tasks(
    stack: Stack, page: Page, watched: Watched, tmp_path: Path
) -> None:
    """FLOW-192, FLOW-251, FLOW-258: by `fetch`, for an EventSource could carry no key."""
    main = page.locator("main")
    gate = tmp_path / "gate"
    gate.touch()
    run_id = stack.submit("nightly_report", {"scale": 0.1, "while_exists": str(gate)})
    page.goto(f"/#/runs/{run_id}")
    expect(main.locator(".run-head .badge").first).to_have_class(re.compile("status-running"))
    gate.unlink()
    expect(main.locator(".badge.status-completed").first).to_be_visible()
    assert [url for url in watched.requested if f"/runs/{run_id}/watch" in url]
    expect(main.locator(".badge.status-running")).to_have_count(0)


def test_a_running_run_is_cancelled_from_the_page(stack: Stack, page: Page) -> None:
    """The page may act (this takes the place of FLOW-249): one button, one question, and the end is seen."""
    run_id = stack.submit("train_model", {"scale": 100})
    stack.until_status(run_id, "RUNNING")
    page.goto(f"/#/runs/{run_id}")
    page.locator("main").get_by_role("button", name="Cancel run").click()
    dialog = page.locator("dialog")
    dialog.get_by_role("textbox").fill("the data were wrong")
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    assert stack.status(run_id) == "RUNNING", "Escape means no"
    page.locator("main").get_by_role("button", name="Cancel run").click()
    dialog.get_by_role("textbox").fill("the data were wrong")
    dialog.get_by_role("button", name="Cancel run").click()
    expect(page.locator("main .badge.status-cancelled").first).to_be_visible()
    expect(page.locator("main")).to_contain_text("the data were wrong")
    assert stack.status(run_id) == "CANCELLED"
    expect(page.locator("main").get_by_role("button", name="Cancel run")).to_have_count(0)


def test_a_run_is_submitted_again_from_the_page(stack: Stack, page: Page) -> None:
    """The new run is opened, and says whose repetition it is."""
    run_id = stack.submit("resize_images", {"scale": 0.1})
    stack.until_status(run_id, "COMPLETED")
    page.goto(f"/#/runs/{run_id}")
    page.locator("main").get_by_role("button", name="Run again").click()
    page.get_by_role("dialog").get_by_role("button", name="Run again").click()
    page.wait_for_function("(old) => location.hash.startsWith('#/runs/') && !location.hash.includes(old)", arg=run_id)
    again = page.evaluate("location.hash").removeprefix("#/runs/").split("?")[0]
    stack.until_status(again, "COMPLETED")
    assert stack.get(f"/runs/{again}")["rerun_of"] == run_id
    expect(page.locator("main .badge.status-completed").first).to_be_visible()


def test_five_thousand_runs_are_reached_by_scrolling(
    fresh_stack: Callable[..., Stack], new_page: Callable[..., Page]
) -> None:
    """FLOW-250: the oldest comes last, few rows are in the page at a time, and the page stays quick."""
    stack = fresh_stack("--no-worker", "--no-keeper")
    oldest = stack.submit("the_oldest")
    for number in range(5):
        runs = [{"flow_name": f"flow_{number}_{at}"} for at in range(1000)]
        answer = stack.ask("POST", "/runs/batch", json={"runs": runs})
        assert answer.json()["accepted"] == 1000, answer.text
    page = new_page(stack)
    page.goto("/#/runs")
    rows = page.locator("main [data-id]")
    expect(rows.first).to_be_visible()
    shown = check(page, "reach", oldest)
    assert 0 < shown < 200, f"{shown} rows in the page"
    expect(page.locator(f"[data-id='{oldest}']")).to_contain_text("the_oldest")


@pytest.mark.usefixtures("own_context")
def test_the_page_works_below_a_path_of_a_proxy(stack: Stack, page: Page, watched: Watched) -> None:
    """FLOW-245, FLOW-247: every address in it is relative; nothing is asked for above the prefix."""
    run_id = stack.submit("resize_images", {"scale": 0.1})
    stack.until_status(run_id, "COMPLETED")

    def pass_on(route: Route) -> None:
        route.fulfill(response=route.fetch(url=route.request.url.replace("/ops/pyoco/", "/", 1)))

    page.route("**/ops/pyoco/**", pass_on)
    for place in ("#/runs", f"#/runs/{run_id}", "#/workers"):
        page.goto(f"/ops/pyoco/{place}")
        expect(page.locator("main h1").first).to_be_visible()
        expect(page.locator("main .skeleton")).to_have_count(0)
    expect(page.locator("main")).to_contain_text("worker-1")
    assert watched.requested
    assert [url for url in watched.requested if not url.startswith(f"{stack.address}/ops/pyoco/")] == []
