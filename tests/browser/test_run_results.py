"""The page of a run shows what it has returned, what became of it, and how long a cancelled one may take."""

from __future__ import annotations

import time
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from support.pretended_runs import RUN_ID, a_run, pretend
from support.routes import intercept

_STORED = {"href": f"/runs/{RUN_ID}/result", "content_type": "application/json", "bytes": 20_000_000}


def opened(page: Page, **more: Any) -> None:
    pretend(page, a_run(**more), lambda _: [])
    page.goto(f"/#/runs/{RUN_ID}")
    expect(page.locator("main h1")).to_have_text("pretended")


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (_STORED | {"value": {"n": 3}, "truncated": False}, '"n": 3'),
        (_STORED | {"preview": "[1, 2", "truncated": True}, "Too large to show here"),
        (
            {
                "href": _STORED["href"],
                "truncated": True,
                "error": {"err_id": "ERR-PYOCO-0054", "message": "The value could not be encoded. object at $"},
            },
            "The value is not available. The value could not be encoded. object at $ ERR-PYOCO-0054",
        ),
    ],
    ids=["small", "large", "not kept"],
)
def test_a_result_is_at_the_top_and_says_what_is_not_there(page: Page, result: dict[str, Any], words: str) -> None:
    """RES-3, RES-4"""
    opened(page, status="COMPLETED", end_time=time.time(), result=result)
    card = page.locator(".run-main > section").filter(visible=True).first
    expect(card).to_contain_text("Result")
    expect(card).to_contain_text(words)
    expect(card.get_by_role("button", name="Download")).to_be_visible(visible="error" not in result)


def test_a_failed_run_links_to_its_letter_and_to_its_repetitions(page: Page) -> None:
    """CLI-18"""
    again = "0d0c0d0c-0000-4000-8000-000000000000"
    opened(page, status="FAILED", end_time=time.time(), letter_id="17", rerun_ids=[again])
    facts = page.locator(".run-head .facts")
    expect(facts.get_by_role("link", name="17")).to_have_attribute("href", "#/letters?letter=17")
    expect(facts.get_by_role("link", name=again[:8])).to_have_attribute("href", f"#/runs/{again}")


def test_a_cancelled_run_counts_down_and_may_be_killed_now(page: Page) -> None:
    """CLI-10"""
    now = time.time()
    intercept(page, "**/cancel", lambda route: route.fulfill(json=a_run(status="CANCELLING")))
    opened(page, status="CANCELLING", cancel_requested_at=now, cancel_deadline_at=now + 1000)
    expect(page.locator(".run-head .facts")).to_contain_text("is killed in 16 m")
    with page.expect_request(f"**/runs/{RUN_ID}/cancel") as asked:
        page.get_by_role("button", name="Kill now").click()
    assert asked.value.post_data_json == {"grace_sec": 0}
