"""The page of a run says what is so: who did what, who is alive, and why something is not there."""

from __future__ import annotations

import time
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from support.pretended_runs import RUN_ID, a_run, pretend
from support.routes import intercept

TURNED = "a\u202eb\u2066c"


def opened(page: Page, **more: Any) -> None:
    pretend(page, a_run(**more), lambda _: [])
    page.goto(f"/#/runs/{RUN_ID}")
    expect(page.locator("main h1")).to_have_text("pretended")


@pytest.mark.parametrize(
    ("asked_by", "done_by", "words"),
    [
        ("k1", {"kind": "keeper", "id": None}, "requested by API key k1 · carried out by the keeper"),
        (None, {"kind": "worker", "id": "w1"}, "requested by a caller without a key · carried out by worker w1"),
    ],
)
def test_a_cancelled_run_says_who_asked_and_who_did_it(
    page: Page, asked_by: str | None, done_by: dict[str, Any], words: str
) -> None:
    now = time.time()
    more = {} if asked_by is None else {"cancel_requested_by": asked_by}
    opened(
        page,
        status="CANCELLED",
        start_time=None,
        end_time=now,
        cancel_requested_at=now - 7300,
        cancel_reason="not today",
        last_change={"what": "cancelled", "at": now, "by": done_by},
        **more,
    )
    facts = page.locator(".run-head .facts > div")
    expect(facts.filter(has_text="Last change")).to_contain_text(f"Cancelled: {words}")
    expect(facts.filter(has_text="Cancellation requested")).to_contain_text("2 h 01 m ago")
    expect(facts.filter(has_text="Cancellation reason")).to_contain_text("not today")
    expect(page.locator("main")).to_contain_text("The run never started.")
    expect(page.locator("main")).not_to_contain_text("Nothing has begun yet")


def test_a_run_that_is_being_cancelled_says_since_when(page: Page) -> None:
    at = time.time() - 7300
    change = {"what": "cancel_requested", "at": at, "by": {"kind": "caller", "id": None}}
    opened(page, status="CANCELLING", cancel_requested_at=at, last_change=change)
    facts = page.locator(".run-head .facts")
    expect(facts).to_contain_text("Cancellation requested by a caller without a key · 2 h 01 m ago")


@pytest.mark.usefixtures("own_context")
def test_a_worker_is_called_alive_only_while_that_is_fresh(page: Page) -> None:
    page.clock.install()
    opened(page, worker_alive=True, worker_heartbeat_at=time.time() - 5)
    worker = page.locator(".run-head .facts > div").filter(has=page.get_by_role("link", name="w1"))
    expect(worker).to_contain_text("w1 alive")
    expect(worker).not_to_contain_text("heard of")
    intercept(page, "**/*", lambda _: None)  # no answer comes any more, also none that tells the time
    page.clock.run_for(25_000)
    expect(worker).to_contain_text("w1 last heartbeat")
    expect(worker).not_to_contain_text("alive")


@pytest.mark.parametrize(
    ("run", "words"),
    [
        ({"status": "COMPLETED", "end_time": time.time()}, "were not stored. The graph is probably too large"),
        ({"status": "PENDING", "worker_id": None, "start_time": None}, "are not known yet"),
    ],
)
def test_why_there_is_no_graph_fits_the_state(page: Page, run: dict[str, Any], words: str) -> None:
    opened(page, tasks={"a": "PENDING"}, **run)
    expect(page.locator(".run-graph")).to_contain_text(words)


def test_characters_that_turn_a_line_are_escaped_or_kept_apart(page: Page) -> None:
    """FLOW-259"""
    record = {"state": "FAILED", "error": TURNED, "output": {TURNED: TURNED}}
    opened(page, params={"name": TURNED}, tasks={"a": "FAILED"}, task_records={"a": record}, error=TURNED)
    page.locator(".run-tasks summary").click()
    escaped = "a\\u202eb\\u2066c"
    expect(page.locator(".run-aside .json pre").first).to_contain_text(f'"name": "{escaped}"')
    expect(page.locator(".run-tasks pre").last).to_contain_text(f'"{escaped}": "{escaped}"')
    bidi = "(element) => getComputedStyle(element).unicodeBidi"
    for name, how in (
        ("h1", "isolate"),
        (".facts dd", "isolate"),
        (".run-error > .json pre", "plaintext"),
        (".run-error-words", "plaintext"),
        (".run-task-error", "isolate"),
    ):
        assert page.locator(f".run-view {name}").first.evaluate(bidi) == how, name


def test_a_command_is_read_in_full(page: Page) -> None:
    page.set_viewport_size({"width": 1280, "height": 900})
    opened(page, status="COMPLETED")
    expect(page.locator(".run-commands code").first).to_be_visible()
    cut = "(all) => all.filter((each) => each.scrollWidth > each.clientWidth).length"
    assert page.locator(".run-commands code").evaluate_all(cut) == 0


def test_a_run_that_waits_for_its_next_try_shows_the_failed_ones(page: Page) -> None:
    """RETRY-14: what failed, and when the next try comes."""
    now = time.time()
    failed = {"attempts": [1], "worker_id": "w1", "reason": "execution_error", "error": "the disk is full"}
    opened(
        page,
        status="PENDING",
        not_before=now + 600,
        waiting={"reason": "retry", "message": "A try failed.", "message_ja": "失敗", "until": now + 600},
        tries=[failed | {"try": 1, "started_at": now - 90, "ended_at": now - 30, "kind": "exception:OSError"}],
        max_tries=3,
        last_change={"what": "retrying", "at": now, "by": {"kind": "worker", "id": "w1"}},
        **{"try": 2},
    )
    card = page.locator("section", has=page.get_by_role("heading", name="Failed tries"))
    expect(card).to_contain_text("Try 2 of 3 starts at")
    for words in ("Try 1", "exception:OSError", "the disk is full"):
        expect(card.locator("li")).to_contain_text(words)
    expect(page.locator(".run-head .facts")).to_contain_text("Try failed, retrying by worker w1")
