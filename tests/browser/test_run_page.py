"""The page of one run: what it shows, what it follows, and what it leaves alone."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

from playwright.sync_api import Page, expect

from support.browsers import Watched
from support.pretended_runs import RUN_ID, a_run, pretend
from support.routes import stop_intercepting
from support.stacks import Stack, until

MARKUP = "<img src=x onerror=alert(1)>"


def test_a_failed_run_says_all_it_knows(stack: Stack, page: Page) -> None:
    """LOG-10: error, traceback, graph, timeline, log, records, who changed it last, and commands for a terminal."""
    run_id = stack.submit("charge_cards", {"card": "4111"})
    stack.until_status(run_id, "FAILED")
    page.goto(f"/#/runs/{run_id}")
    main = page.locator("main")
    expect(main.get_by_role("heading", name="charge_cards")).to_be_visible()
    expect(main.locator(".run-id")).to_contain_text(run_id)
    expect(main.locator(".run-head .facts")).to_contain_text("Failed by worker worker-1")
    expect(main.locator(".run-error")).to_contain_text("was declined by the bank")
    expect(main.locator(".run-error-task")).to_contain_text("Traceback (most recent call last)")
    failing = stack.get(f"/runs/{run_id}", include="records")
    assert [*failing["tasks"].values()].count("FAILED") == 1
    expect(main.locator(".dag-node")).to_have_count(len(failing["tasks"]))
    expect(main.locator(".dag-line")).to_have_count(sum(map(len, failing["graph"].values())))
    expect(main.locator(".dag-node.status-failed")).to_have_count(1)
    expect(main.locator(".gantt-bar.task")).to_have_count(2)
    expect(main.locator(".run-tasks > li")).to_have_count(3)
    main.get_by_role("button", name="Last log lines").click()
    for printed in ("40 cards in this batch", "the bank answered after 3 tries"):
        expect(main.locator(".log-row .log-text").filter(has_text=printed)).to_have_count(1)
    expect(main.locator(".run-commands")).to_contain_text(f" why {run_id}")
    assert page.title() == "charge_cards · Failed · pyoco"


def test_a_stream_that_ends_too_early_is_taken_up_again(page: Page, watched: Watched) -> None:
    """FLOW-251: with the id of the last event, until the run has ended; then once more for the last facts, and never
    again."""
    ends = {"status": "COMPLETED", "end_time": time.time(), "tasks": {"a": "SUCCEEDED"}}
    steps: dict[int, list[dict[str, Any]]] = {
        1: [{"tasks": {"a": "PENDING"}}],
        2: [],
        3: [{"tasks": {"a": "RUNNING"}}],
        4: [ends],
    }
    connections = pretend(page, a_run(), lambda number: steps[number])
    page.goto(f"/#/runs/{RUN_ID}")
    expect(page.locator(".run-head .badge.status-completed")).to_be_visible()
    assert connections == [-1, 10, 10, 30]
    reads = [url for url in watched.requested if url.endswith(f"/runs/{RUN_ID}?include=records")]
    assert len(reads) == 5, "at each connection, and at the end"


def test_a_change_touches_only_what_differs(page: Page) -> None:
    """400 tasks with large records: what is open stays open, what is shown stays the same element, what is closed is
    not even made."""
    names = [f"task_{number:03}" for number in range(400)]
    began = time.time() - 40
    records = {
        name: {"state": "SUCCEEDED", "started_at": began, "ended_at": began + 1, "output": {"blob": "x" * 1200}}
        for name in names
    }
    graph = {name: names[max(0, at - 3) : at] if at % 3 else [] for at, name in enumerate(names)}
    run = a_run(tasks=dict.fromkeys(names, "SUCCEEDED"), task_records=records, graph=graph, params={"a": 1})
    changes = [{"heartbeat_at": time.time() + number, "updated_at": time.time() + number} for number in range(5)]
    going = {"go": False}
    last = {"tasks": {**run["tasks"], "task_399": "FAILED"}, "status": "FAILED", "end_time": time.time()}
    pretend(page, run, lambda _: [*changes, last] if going["go"] else [])
    page.goto(f"/#/runs/{RUN_ID}")
    line = page.locator(".run-tasks > li", has_text="task_002")
    line.locator("summary").click()
    expect(line.locator("pre")).to_contain_text("blob")
    assert page.locator(".run-tasks pre").count() == 1, "the other 399 are not made before they are opened"
    page.evaluate(
        """() => {
          window.kept = [".run-tasks details[open] pre", ".run-aside .json pre", ".gantt-row:nth-child(5) .gantt-bar",
            ".dag-node", ".run-head .facts"].map((name) => [name, document.querySelector(name)]);
          document.querySelector(".run-tasks").scrollTop = 300;
          document.querySelector(".run-tasks details[open] summary").focus({ preventScroll: true });
        }"""
    )
    going["go"] = True
    expect(page.locator(".dag-node.status-failed")).to_have_count(1)
    expect(page.locator(".run-head .badge.status-failed")).to_be_visible()
    lost = page.evaluate("() => kept.filter(([, each]) => !each.isConnected).map(([name]) => name)")
    assert lost == [".run-head .facts"], "the head says when it ended; nothing else has a reason to be made anew"
    assert page.evaluate("document.querySelector('.run-tasks').scrollTop") == 300
    assert page.evaluate("document.activeElement.closest('li').dataset.task") == "task_002"


def test_a_task_is_chosen_by_keyboard_and_kept_in_the_address(stack: Stack, page: Page) -> None:
    run_id = stack.submit("resize_images", {"scale": 0.1})
    stack.until_status(run_id, "COMPLETED")
    page.goto("/#/runs?flow=resize_images")
    page.evaluate("(id) => { location.hash = `#/runs/${id}` }", run_id)
    first = page.locator(".dag-node").first
    expect(first).to_have_attribute("aria-label", re.compile(r"^list_images, Succeeded, "))
    first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="resize", exact=True, level=2)).to_be_visible()
    expect(page.locator(".run-record h2 [aria-live]")).to_have_text("resize")
    expect(page.locator(".run-record pre")).to_contain_text('"resized": 12')
    assert page.evaluate("location.hash") == f"#/runs/{run_id}?task=resize"
    expect(page.locator('.dag-node[aria-pressed="true"]')).to_have_attribute("data-task", "resize")
    page.reload()
    expect(page.locator(".run-record h2")).to_have_text("resize")
    page.evaluate("(id) => { location.hash = `#/runs/${id}?task=list_images` }", run_id)
    expect(page.locator(".run-record h2")).to_have_text("list_images")
    assert page.title() == "resize_images · Completed · pyoco", "it followed, and is the same page"
    page.keyboard.press("Escape")
    expect(page.locator(".run-record")).to_be_hidden()
    page.keyboard.press("Escape")
    page.wait_for_function("() => location.hash.startsWith('#/runs') && !location.hash.startsWith('#/runs/')")


def test_a_waiting_run_says_why_and_is_cancelled_with_a_reason(stack: Stack, page: Page, watched: Watched) -> None:
    run_id = stack.submit("resize_images", tag="nobody-serves-this")
    page.goto(f"/#/runs/{run_id}")
    expect(page.locator(".run-waiting")).to_contain_text("No worker serves tag nobody-serves-this")
    page.get_by_role("button", name="Cancel run").click()
    page.get_by_role("dialog").get_by_role("textbox").fill("not today")
    page.get_by_role("dialog").get_by_role("button", name="Cancel run").click()
    expect(page.locator(".run-head .facts")).to_contain_text("not today")
    expect(page.locator(".run-waiting")).to_be_hidden()
    expect(page.get_by_role("button", name="Cancel run")).to_have_count(0)


def test_leaving_the_page_ends_its_stream(stack: Stack, page: Page) -> None:
    run_id = stack.submit("train_model", {"scale": 100})
    with page.expect_response(re.compile("/watch")):
        page.goto(f"/#/runs/{run_id}")
    # Sooner than the run would end by itself.
    with page.expect_event("requestfailed", lambda request: "/watch" in request.url):
        page.evaluate("location.hash = '#/workers'")
    stack.ask("POST", f"/runs/{run_id}/cancel")


def test_a_run_that_is_not_there_or_no_more_says_so(page: Page, expects_trouble: Callable[..., None]) -> None:
    """Unknown ids, those of other tenants and malformed ones look the same; a removed run stays readable."""
    expects_trouble("404")
    for place in (RUN_ID, "no%20id", "..%2Fmetrics"):
        page.goto(f"/#/runs/{place}")
        expect(page.locator("main")).to_contain_text("Run not found")
        expect(page.get_by_role("link", name="Show all runs")).to_be_visible()
    began = {"state": "RUNNING", "started_at": time.time() - 40}
    run = a_run(tasks={"goes_on": "RUNNING"}, task_records={"goes_on": began}, graph={"goes_on": []})
    connections = pretend(page, run, lambda _: [])
    page.goto("/#/runs")
    page.goto(f"/#/runs/{RUN_ID}?task=goes_on")
    expect(page.get_by_role("heading", name="pretended")).to_be_visible()
    expect(page.locator("main time[data-as=span]").first).to_be_visible()
    until(lambda: page.evaluate("1") and connections)
    stop_intercepting(page)
    expect(page.locator(".run-notice")).to_contain_text("This run was removed")
    expect(page.get_by_role("heading", name="pretended")).to_be_visible()
    expect(page.get_by_role("button", name="Cancel run")).to_have_count(0)
    expect(page.locator(".run-head .badge")).to_have_text(["Removed"])
    expect(page).to_have_title("pretended · Removed · pyoco")
    page.locator(".run-tasks summary").click()
    expect(page.locator(".run-tasks details[open] dl")).to_be_visible()
    expect(page.locator("main time[data-as=span]")).to_have_count(0)  # nothing of it grows any more
    length = "document.querySelector('.gantt').style.getPropertyValue('--length')"
    before = page.evaluate(length)
    page.wait_for_function(
        "() => new Promise((done) => setTimeout(() => done(true), 1200))"
    )  # a tick of the page's clock
    assert page.evaluate(length) == before


def test_odd_runs_are_shown_as_they_are(page: Page) -> None:
    """FLOW-259, and whatever another version may leave out or add."""
    now = time.time()
    names = [MARKUP, "__proto__", "constructor", "ارسال", "x" * 5000, "", "null"]
    records: dict[str, Any] = {
        "null": None,
        MARKUP: {"state": "?", "started_at": now, "ended_at": now - 9, "output": 1},
    }
    past = [{"attempt": 1, "worker_id": MARKUP, "started_at": now - 90, "ended_at": now - 70, "why": "eaten"}, {}]
    odd = a_run(
        flow_name=MARKUP,
        status="LIMBO",
        tasks=dict.fromkeys(names, "UNHEARD OF"),
        task_records=records,
        graph={MARKUP: ["ghost", MARKUP], "ghost": [MARKUP]},
        earlier_attempts=past,
        error="e" * 30_000,
        heartbeat_at=now - 9999,
        task_records_truncated=True,
        params_truncated=True,
        start_time=now + 50,
        last_change={"what": "eaten", "at": now, "by": {"kind": "cat", "id": None}},
        tags=None,
    )
    bare = {"run_id": RUN_ID, "status": "COMPLETED"}
    program = a_run(kind="something-new", status="COMPLETED", tasks={"a": "SUCCEEDED"}, params={"name": MARKUP})
    for run, there, missing in (
        (odd, ".run-error, .dag-node, .gantt-bar, .run-attempts", ".run-nothing"),
        (bare, ".run-head .badge.status-completed", ".run-error-card"),
        (program, ".run-aside .json", ".dag, .gantt, .run-tasks"),
    ):
        pretend(page, run, lambda _: [])  # the newest of them counts
        page.goto("/#/workers")
        expect(page).to_have_title("Workers · pyoco")
        page.goto(f"/#/runs/{RUN_ID}?task=%3Cimg")
        for each in there.split(", "):
            expect(page.locator(each).first).to_be_visible()
        expect(page.locator(missing).locator("visible=true")).to_have_count(0)
        assert page.locator("main img").count() == 0
        wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wide <= 0, "the page itself never scrolls sideways"
