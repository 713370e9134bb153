"""What needs attention: the strip above every view."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from support.routes import intercept
from support.stacks import Stack, until


def finding(kind: str, count: int = 1, level: str = "warning", **facts: Any) -> dict[str, Any]:
    message = f"{kind} {count} <b>{'x' * 10}</b>"
    return {"kind": kind, "level": level, "count": count, "message": message, "message_ja": "要確認", "facts": facts}


def look_again(page: Page) -> None:
    """As when a user returns to the window: every poll is due at once."""
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")


def test_a_finding_leads_to_where_it_can_be_helped(module_page: Page) -> None:
    """FLOW-247, SCHED-20: each kind of `GET /attention`."""
    leads = {
        "#/runs?tag=a+b&status=PENDING": finding("tag_without_worker", tag="a b"),
        "#/runs?tag=slow&status=PENDING": finding("growing_queue", tag="slow"),
        "#/runs?flow=f%26g&status=FAILED": finding("failing_flow", flow="f&g"),
        "#/letters": finding("dead_letters", 3),
        "#/workers?worker=w1": finding("workers_lost", worker_id="w1", run_ids=[]),
        "#/workers": finding("wheel_failures", 2, worker_ids=["w1", "w2"]),
        "#/runs/r1": finding("stale_runs", run_ids=["r1"]),
        "#/runs?status=RUNNING": finding("stale_runs", 2, run_ids=["r1", "r2"]),
        "#/runs/r2": finding("disputed_runs", run_ids=["r2"]),
        "#/runs?kind=pack&status=RUNNING": finding("disputed_runs", 2, run_ids=["r1", "r2"]),
        "#/budgets": finding("money_differs", 2, audited_at=1.0),
        "#/schedules/nightly": finding("schedule_overdue", schedules=["nightly"], oldest_at=1.0),
        "#/schedules": finding("schedule_overdue", 2, schedules=["nightly", "weekly"], oldest_at=1.0),
    }
    ask = "(all) => import('/static/lib/attention.js').then((m) => all.map((each) => m.leadsTo(each)))"
    assert module_page.evaluate(ask, list(leads.values())) == list(leads)
    nowhere = [finding("nats_down"), finding("pack_letters"), finding("workers_lost", worker_id={"odd": 1})]
    assert module_page.evaluate(ask, nowhere) == [None, None, "#/workers"]


def test_what_was_put_aside_comes_back_when_it_is_worse_or_anew(module_page: Page) -> None:
    ask = """([before, after, seconds]) => import('/static/lib/attention.js').then((m) => {
      const aside = m.putAside(before, {}, 1000);
      return m.sorted([after], aside, 1000 + seconds).shown.length === 1;
    })"""

    def returns(before: dict[str, Any], after: dict[str, Any], seconds: float = 5) -> bool:
        return bool(module_page.evaluate(ask, [before, after, seconds]))

    five = finding("failing_flow", 5, flow="f")
    assert not returns(five, five)
    assert not returns(five, finding("failing_flow", 4, flow="f"))
    assert returns(five, finding("failing_flow", 6, flow="f"))
    assert returns(five, finding("failing_flow", 5, flow="g"))
    assert returns(five, finding("growing_queue", 5, tag="f"))
    assert returns(five, finding("failing_flow", 5, level="danger", flow="f"))
    assert returns(five, five, 3600)


def test_a_failing_flow_is_told_and_can_be_put_aside(fresh_stack: Callable[..., Stack], new_page: Any) -> None:
    """FLOW-247: on a real gateway, from the first failures to more of them."""
    stack = fresh_stack("--no-keeper", priced_enabled=0)

    def fail(count: int) -> None:
        for run_id in [stack.submit("charge_cards", {"scale": 0.01}) for _ in range(count)]:
            stack.until_status(run_id, "FAILED")

    def told() -> int:
        return sum(item["count"] for item in stack.get("/attention")["items"] if item["kind"] == "failing_flow")

    page = new_page(stack)
    page.goto("/#/queues")
    expect(page.locator(".attention-well")).to_be_visible()
    fail(5)
    until(lambda: told() == 5)
    look_again(page)
    line = page.locator(".attention-item.danger", has_text="charge_cards")
    expect(line).to_be_visible()
    expect(page.locator(".attention [role=status]")).to_contain_text("charge_cards")
    assert line.locator("a").get_attribute("href") == "#/runs?flow=charge_cards&status=FAILED"

    line.get_by_role("button", name="Dismiss").click()
    expect(line).to_have_count(0)
    expect(page.locator(".attention button:focus")).to_have_count(1)  # on what is left, not lost
    page.reload()
    expect(page.get_by_role("button", name="Dismissed: 1")).to_be_visible()
    expect(line).to_have_count(0)

    fail(1)
    until(lambda: told() == 6)
    look_again(page)
    expect(line).to_be_visible()
    line.locator("a").click()
    expect(page.locator("main h1")).to_be_focused()
    assert page.url.endswith("#/runs?flow=charge_cards&status=FAILED")


@pytest.mark.usefixtures("own_context")
def test_many_findings_are_dangers_first_three_at_a_time_and_stay_while_nobody_answers(
    page: Page, expects_trouble: Callable[..., None]
) -> None:
    """FLOW-259: what they say is text. An outage leaves them, and says how old they are."""
    expects_trouble("ERR_INTERNET_DISCONNECTED", "ERR_FAILED")
    items: list[Any] = [finding("growing_queue", 60 + n, tag=f"t{n}") for n in range(4)]
    items += [finding("dead_letters", 1234, level="danger"), {"kind": 7}, None, {"kind": "bare"}]
    intercept(page, "**/attention", lambda route: route.fulfill(body=json.dumps({"at": 1, "items": items})))
    page.goto("/#/queues")
    lines = page.locator(".attention-item")
    expect(lines).to_have_count(3)
    expect(lines.first).to_contain_text("dead_letters 1234 <b>")
    assert page.locator(".attention b").count() == 0
    expect(page.locator("nav .menu-mark:visible")).to_have_text("999+")
    same = lines.nth(1).element_handle()
    page.get_by_role("button", name="3 more").click()
    expect(lines).to_have_count(6)
    expect(page.get_by_role("button", name="Show fewer")).to_be_focused()
    with page.expect_response("**/attention"):
        look_again(page)
    assert page.evaluate("(each) => each.isConnected", same), "it was made anew under the reader's hands"

    page.context.set_offline(True)
    expect(page.locator(".attention.is-old")).to_contain_text("As of")
    expect(lines).to_have_count(6)
    page.context.set_offline(False)
    expect(page.locator(".attention.is-old")).to_have_count(0)


def test_it_is_read_aloud_when_something_came_or_went_and_not_at_each_number(page: Page) -> None:
    items = [finding("growing_queue", 60, tag="t")]
    intercept(page, "**/attention", lambda route: route.fulfill(body=json.dumps({"at": 1, "items": items})))
    page.goto("/#/queues")
    spoken = page.locator(".attention [role=status]")
    expect(spoken).to_contain_text("growing_queue 60")
    for count in (61, 75):
        items[:] = [finding("growing_queue", count, tag="t")]
        look_again(page)
        expect(page.locator(".attention-item")).to_contain_text(f"growing_queue {count}")
        expect(spoken).to_contain_text("growing_queue 60")
    items[:] = [finding("growing_queue", 76, level="danger", tag="t")]
    look_again(page)
    expect(spoken).to_contain_text("growing_queue 76")
    items.append(finding("dead_letters", 1))
    look_again(page)
    expect(spoken).to_contain_text("Needs attention: 2.")
    items.clear()
    look_again(page)
    expect(spoken).to_be_empty()


def test_what_the_line_above_says_is_not_said_again(page: Page, expects_trouble: Callable[..., None]) -> None:
    expects_trouble("503")
    items = [finding("nats_down", level="danger"), finding("dead_letters", 1)]
    intercept(page, "**/attention", lambda route: route.fulfill(json={"at": 1, "items": items}))
    page.goto("/#/queues")
    lines = page.locator(".attention-item")
    expect(lines).to_have_count(2)
    intercept(page, "**/ready", lambda route: route.fulfill(status=503, json={"nats": False}))
    look_again(page)
    expect(page.locator(".connection")).to_contain_text("NATS")
    expect(lines).to_have_count(1)
    expect(lines).to_contain_text("dead_letters")
    items.pop()
    look_again(page)
    expect(lines).to_have_count(0)
    expect(page.locator(".attention-well")).to_have_count(0)
