"""Workers and queues: who works, what waits."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from support.routes import Paused, intercept
from support.stacks import Stack, until

_ODD = ["<img src=x onerror=alert(1)>", "\u202egnidrocca", "🐙" * 60, "w" * 128]


def _worker(worker_id: str, state: str = "IDLE", **more: Any) -> dict[str, Any]:
    return {"worker_id": worker_id, "state": state, "hidden": False, "tags": ["t"], "slots": 4, "running": [], **more}


def test_those_in_trouble_come_first_and_nobody_jumps_for_taking_a_run(module_page: Page) -> None:
    workers = [
        _worker("b10"),
        _worker("b9", "RUNNING", running=["r"]),
        _worker("a", "STOPPED_GRACEFUL"),
        _worker("z", "DISCONNECTED", running=["r", "s"]),
    ]
    found = module_page.evaluate(
        """(workers) => import('/static/lib/fleet.js').then(
            (m) => [m.inOrder(workers).map((each) => each.worker_id), m.summary(workers)])""",
        workers,
    )
    # Slots of workers that are gone do not count.
    assert found == [["z", "b9", "b10", "a"], {"alive": 2, "slots": 8, "busy": 1, "gone": 1}]


def test_growth_is_told_only_when_the_past_is_known(module_page: Page) -> None:
    asked = [{"depth": 7, "depth_before": each} for each in (None, 7, 2, 9)]
    found = module_page.evaluate("(q) => import('/static/lib/fleet.js').then((m) => q.map(m.growth))", asked)
    assert [(each["way"], each["by"]) for each in found] == [("unknown", 0), ("same", 0), ("up", 5), ("down", 2)]


def test_a_wheel_is_found_with_those_who_have_it(module_page: Page) -> None:
    wheels = [
        {"name": "my_tasks-1.0-py3-none-any.whl", "modified": 1, "tags": ["gpu"]},
        {"name": "My.Tasks-1.10-py3-none-any.whl", "modified": 2, "tags": []},
    ]
    sync = {"installed": [wheels[1]["name"]], "failed": [{"wheel_name": wheels[0]["name"], "error": "no room"}]}
    workers = [_worker("a", wheel_sync=sync), _worker("b", wheel_sync=None), _worker("c", wheel_sync={"installed": 5})]
    packages, told, wanted = module_page.evaluate(
        """([wheels, workers]) => import('/static/lib/fleet.js').then((m) => [m.byPackage(wheels),
            Object.fromEntries(m.holders(workers)), wheels.map((each) => m.wantedBy(each, workers).length)])""",
        [wheels, workers],
    )
    assert [(each["package"], [wheel["modified"] for wheel in each["wheels"]]) for each in packages] == [
        ("my-tasks", [2, 1])
    ]
    assert told["My.Tasks-1.10-py3-none-any.whl"]["has"] == ["a"]
    assert told["my_tasks-1.0-py3-none-any.whl"]["failed"] == [{"worker": "a", "why": "no room"}]
    assert wanted == [0, 2]


def test_workers_are_shown_with_their_state_and_can_be_hidden(stack: Stack, page: Page) -> None:
    """FLOW-248"""
    run_id = stack.submit("resize_images", {"scale": 3000})
    page.goto("/#/workers")
    row = page.locator(".row", has_text="worker-1")
    expect(row.locator(".badge").first).to_have_text("Running")
    expect(row.locator(f'a[href="#/runs/{run_id}"]').first).to_be_visible()
    expect(row.locator(".cell-slots .number")).to_have_text("1 / 4")
    expect(page.locator(".summary")).to_contain_text("1 alive · 1 of 4 slots busy")
    stack.ask("POST", f"/runs/{run_id}/cancel")
    row.get_by_role("button", name="worker-1").click()
    assert page.url.endswith("worker=worker-1")
    expect(row.locator(".row-detail")).to_contain_text("--wheel-sync")  # how to enable the sync
    row.get_by_role("button", name="Hide from lists").click()
    until(lambda: stack.get("/workers/worker-1")["hidden"])
    try:
        expect(row.locator(".marks")).to_have_text("Hidden")  # it stays open, for it is in the address
        page.goto("/#/workers?hidden=1&scope=all")
        expect(row.locator(".marks")).to_have_text("Hidden")
        row.get_by_role("button", name="worker-1").click()
        row.get_by_role("button", name="Show in lists").click()
        expect(row.locator(".marks")).to_have_text("")
    finally:
        stack.ask("PATCH", "/workers/worker-1", json={"hidden": False})


@pytest.mark.parametrize(("auth", "says"), [("api_key", True), ("none", False)])
@pytest.mark.usefixtures("own_context")
def test_a_run_that_may_be_somebody_elses_says_so_where_there_are_keys(
    module_page: Page, auth: str, *, says: bool
) -> None:
    """Workers serve every tenant: the runs of others are listed, and cannot be opened."""
    title = module_page.evaluate(
        """async ([auth, worker]) => {
            document.documentElement.dataset.auth = auth;
            const { WorkerRow } = await import('/static/views/workers_row.js');
            const row = new WorkerRow(() => {}, () => {});
            row.update(worker);
            return row.element.querySelector('.run-link').title;
          }""",
        [auth, _worker("w", "RUNNING", running=["0a1b2c3d-x"])],
    )
    assert title.startswith("0a1b2c3d-x")
    assert ("another tenant" in title) is says


def test_filters_of_workers_are_in_the_address(stack: Stack, page: Page, expects_trouble: Callable[..., None]) -> None:
    page.goto("/#/workers?worker=nobody-here")
    expects_trouble("404")
    expect(page.locator(".note-line")).to_contain_text("No worker “nobody-here” is known")
    page.goto("/#/workers?tag=unheard")
    expect(page.locator(".nothing")).to_contain_text("pyoco-worker --flow-resolver MODULE:CALLABLE --tags unheard")
    field, steps = page.get_by_label("Tag"), page.evaluate("history.length")
    field.fill("default")
    expect(page.locator(".row", has_text="worker-1")).to_be_visible()
    assert page.evaluate("history.length") == steps, "who types leaves no steps behind"
    expect(page.locator(".workers > div > .command")).to_contain_text("workers --tag default --output table")
    all_of_them = page.get_by_role("button", name="All", exact=True)
    field.fill("defaul")
    all_of_them.focus()
    page.keyboard.press("Enter")  # at once: what was typed counts
    expect(all_of_them).to_have_attribute("aria-pressed", "true")
    expect(all_of_them).to_be_focused()
    assert page.evaluate("location.hash") == "#/workers?scope=all&tag=defaul"
    page.evaluate("location.hash = '#/workers?tag=default'")
    expect(field).to_have_value("default")
    field.focus()
    page.go_back()
    expect(field).to_have_value("defaul")
    page.go_back()
    expect(page.get_by_role("button", name="Live", exact=True)).to_have_attribute("aria-pressed", "true")
    page.get_by_role("button", name="Show the others").press("Enter")
    expect(page.locator(".row", has_text="worker-1")).to_be_visible()
    expect(page.locator("h1")).to_be_focused()
    field.fill("x")
    page.goto("/#/queues")
    page.evaluate("new Promise((done) => setTimeout(done, 400))")  # later than what was typed would be taken
    assert page.evaluate("location.hash") == "#/queues"


def test_five_hundred_odd_workers_stay_in_place_while_they_change(page: Page) -> None:
    """FLOW-259. Rows are kept from one look to the next: focus and what is open survive."""
    turns = 0

    def answer(route: Paused) -> None:
        nonlocal turns
        turns += 1
        odd = [_worker(name, "STRANGE", tags=[name], versions=7, wheel_sync={"failed": 3}) for name in _ODD]
        many = [_worker(f"w{n:03}", "RUNNING", running=[str(uuid.uuid4())] * (turns % 4)) for n in range(496)]
        route.fulfill(body=json.dumps([*odd, *many][:: (-1) ** turns]), content_type="application/json")

    intercept(page, "**/workers?*", answer)
    page.goto("/#/workers")
    expect(page.locator(".row")).to_have_count(500)
    page.get_by_role("button", name="w007", exact=True).click()
    page.evaluate("window.kept = document.activeElement.closest('.row')")
    before = turns
    until(lambda: (page.evaluate("0"), turns > before)[1], 20)
    # The list came in another order each time, and each row is where it was.
    expect(page.locator(".row.open .row-detail")).to_be_visible()
    assert page.evaluate("window.kept === document.activeElement.closest('.row') && window.kept.matches('.open')")
    assert page.locator("img[src=x]").count() == 0


def test_a_queue_that_nobody_serves_says_what_to_do(stack: Stack, page: Page) -> None:
    tag = f"nobody-{uuid.uuid4().hex[:6]}"
    run_ids = [stack.submit(tag=tag) for _ in range(3)]
    page.goto("/#/queues")
    row = page.locator(".row", has_text=tag)
    expect(row.locator(".cell-depth .number")).to_have_text("3")
    expect(row.locator(".row-warning")).to_contain_text(f"pyoco-worker --flow-resolver MODULE:CALLABLE --tags {tag}")
    expect(page.locator(".row", has_text="default").locator(".cell-served")).to_contain_text("1 worker")
    expect(page.locator(".row", has_text="default").locator(".row-warning")).to_be_hidden()
    assert row.locator("a.queue-tag").get_attribute("href") == f"#/runs?tag={tag}&status=PENDING"
    with page.expect_response("**/queues"):  # the second look, which finds the same run waiting
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    page.evaluate("new Promise((done) => setTimeout(done))")
    expect(row.locator(".cell-oldest time")).to_have_text(re.compile(r"\d"))
    for run_id in run_ids:
        stack.ask("POST", f"/runs/{run_id}/cancel")
    expect(row).to_have_count(0)


def test_a_gateway_that_does_not_know_the_question_is_told_of(page: Page, expects_trouble: Callable[..., None]) -> None:
    expects_trouble("404")
    intercept(page, re.compile(r"/queues$"), lambda route: route.fulfill(status=404, body='{"detail": "Not Found"}'))
    page.goto("/#/queues")
    expect(page.locator(".nothing")).to_contain_text("The gateway refused this request")
