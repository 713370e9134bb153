"""The tenants' money, and the page and the line of a priced run."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from support.browsers import Watched, check
from support.pretended_runs import RUN_ID, a_run, pretend
from support.routes import Paused, intercept
from support.stacks import Stack

MARKUP = "<img src=x onerror=alert(1)>"
DAY = 86_400


def a_budget(tenant: str, **more: Any) -> dict[str, Any]:
    return {
        "tenant_id": tenant,
        "display_name": tenant,
        "status": "ACTIVE",
        "balance_usd_micros": 8_765_432_100,
        "held_usd_micros": 1_234_500,
        "charged_usd_micros": 700_051,
        "credited_usd_micros": 9_007_199_254_740_991,
    } | more


def a_line(txn: int, kind: str, **more: Any) -> dict[str, Any]:
    return {
        "txn_id": txn,
        "op_key": f"{kind}:{txn}",
        "kind": kind,
        "run_id": RUN_ID,
        "actor": "worker",
        "memo": None,
        "created_at": time.time() - 60,
        "available_usd_micros": -1_234_500,
        "held_usd_micros": 1_234_500,
        "charged_usd_micros": 0,
    } | more


class Ledger:
    """What the gateway would say of the money. The rest of the page is real."""

    def __init__(self, page: Page) -> None:
        self.budgets = [a_budget("acme"), a_budget("beta", display_name=f"Beta {MARKUP}", status="SUSPENDED")]
        self.lines = [a_line(number, "RESERVE") for number in range(120, 0, -1)]
        self.steps: list[dict[str, Any]] = []
        self.asked: list[str] = []
        intercept(page, re.compile(r"/budgets(/|\?|$)"), self._answer)

    def _answer(self, route: Paused) -> None:
        address = route.request.url
        self.asked.append(address)
        path, _, query = address.partition("?")
        asked = dict(part.split("=") for part in query.split("&") if part)
        if path.endswith("/journal"):
            before = int(asked.get("before", 10**9))
            page = [line for line in self.lines if line["txn_id"] < before][:50]
            more = page[-1]["txn_id"] if len(page) == 50 else None
            route.fulfill(json={"lines": page, "next_before": more})
        elif path.endswith("/spend"):
            step, now = int(asked["step"]), time.time()
            begin = (now - int(asked["seconds"])) // step * step
            steps = [each | {"start_at": begin + each["start_at"] * step} for each in self.steps]
            route.fulfill(json={"now": now, "from": begin, "step_seconds": step, "steps": steps})
        elif path.endswith("/budgets"):
            after = asked.get("after", "")
            page = [each for each in self.budgets if each["tenant_id"] > after][: int(asked["limit"])]
            more = page[-1]["tenant_id"] if len(page) == int(asked["limit"]) else None
            route.fulfill(json={"budgets": page, "next_after": more})
        else:
            tenant = path.rpartition("/")[2]
            route.fulfill(json=next(each for each in self.budgets if each["tenant_id"] == tenant))


@pytest.fixture
def ledger(page: Page) -> Ledger:
    return Ledger(page)


def test_amounts_are_written_from_whole_micros(module_page: Page) -> None:
    """No digit is lost, and none is invented."""
    ask = (
        "(values) => import('/static/lib/money.js').then((m) => values.map((value) => [m.usd(value), m.change(value)]))"
    )
    found = module_page.evaluate(ask, [0, 1, 100, 1_234_500, 9_007_199_254_740_991, -5_000_000, 1.5, None, "7"])
    assert found == [
        ["$0.0000", "–"],
        ["$0.000001", "+$0.000001"],
        ["$0.0001", "+$0.0001"],
        ["$1.2345", "+$1.2345"],
        ["$9,007,199,254.740991", "+$9,007,199,254.740991"],
        ["−$5.0000", "−$5.0000"],
        ["–", "–"],
        ["–", "–"],
        ["–", "–"],
    ]
    ticks = "(tops) => import('/static/lib/money.js').then((m) => tops.map((top) => m.moneyTicks(top)))"
    tops = [0, 1, 350, 1_000_000, 7_654_321, 9_000_000_000_000_000]
    for top, each in zip(tops, module_page.evaluate(ticks, tops), strict=True):
        assert 2 <= len(each) <= 5, (top, each)
        assert each[-1] >= top, (top, each)
        assert all(tick % 100 == 0 for tick in each), "an axis has no smaller digits than amounts have"


def test_an_axis_of_days_has_few_ticks(module_page: Page) -> None:
    ask = """(spans) => import('/static/lib/scale.js').then(
        (m) => spans.map(([days, least]) => m.dayTicks(86400, 86400 * (days + 1), 8, least)))"""
    for ticks in module_page.evaluate(ask, [[1, 0], [7, DAY], [30, DAY], [400, DAY]]):
        assert 1 <= len(ticks) <= 41


def test_the_tenants_are_listed_with_their_money(page: Page, ledger: Ledger) -> None:
    page.goto("/#/budgets")
    rows = page.locator(".budgets-rows .row")
    expect(rows).to_have_count(2)
    expect(rows.nth(0)).to_contain_text("acme")
    expect(rows.nth(0).locator(".cell-balance")).to_contain_text("$8,765.4321")
    expect(rows.nth(0).locator(".cell-held")).to_contain_text("$1.2345")
    expect(rows.nth(0).locator(".cell-charged")).to_contain_text("$0.700051")
    expect(rows.nth(0).locator(".cell-credited")).to_contain_text("$9,007,199,254.740991")
    expect(rows.nth(1)).to_contain_text(f"Beta {MARKUP} · suspended")
    expect(page.locator("main img")).to_have_count(0)
    rows.nth(0).get_by_role("link", name="acme").click()
    expect(page.get_by_role("heading", level=1, name="acme")).to_be_visible()


def test_many_tenants_come_page_by_page(page: Page, ledger: Ledger) -> None:
    ledger.budgets = [a_budget(f"t{number:03}") for number in range(70)]
    page.goto("/#/budgets")
    expect(page.locator(".budgets-rows .row")).to_have_count(50)
    expect(page.locator(".summary")).to_have_text("Tenants: the first 50")
    page.get_by_role("button", name="More tenants").click()
    expect(page.locator(".budgets-rows .row")).to_have_count(70)
    expect(page.get_by_role("button", name="More tenants")).to_have_count(0)


def test_without_a_key_it_says_that_one_is_needed_and_takes_it(page: Page, ledger: Ledger) -> None:
    """SAFE-5: where the server needs no key, the rest of the page is usable without one"""
    budgets, ledger.budgets = ledger.budgets, []
    page.goto("/#/budgets")
    expect(page.locator(".nothing")).to_contain_text("API key required")
    expect(page.locator(".nothing")).to_contain_text("pyoco-server-admin budget credit --tenant")
    forget = page.get_by_role("button", name="Forget the key")
    expect(forget).to_have_count(0)
    page.get_by_role("button", name="Enter a key").click()
    prompt = page.locator("dialog.key-prompt")
    prompt.get_by_label("Key").fill("not-a-key")
    prompt.get_by_role("button", name="Use this key").click()
    expect(prompt).to_contain_text("does not accept this key")
    prompt.get_by_role("button", name="Continue without a key").click()
    expect(page.locator(".nothing")).to_contain_text("API key required")
    page.get_by_role("button", name="Enter a key").click()
    page.keyboard.press("Escape")
    expect(prompt).to_have_count(0)
    page.get_by_role("button", name="Enter a key").click()
    ledger.budgets = budgets[:1]
    prompt.get_by_label("Key").fill("a-key-of-acme")
    prompt.get_by_role("button", name="Use this key").click()
    expect(page.locator(".budgets-rows .row")).to_have_count(1)
    forget.click()
    ledger.budgets = []
    prompt.get_by_role("button", name="Continue without a key").click()
    expect(page.locator(".nothing")).to_contain_text("API key required")
    expect(forget).to_have_count(0)


def test_without_a_ledger_the_panel_says_so_and_the_rest_goes_on(
    page: Page, expects_trouble: Callable[..., None]
) -> None:
    expects_trouble("503")
    error = {"err_id": "ERR-PYOCO-0036", "detail": "dependency unavailable", "message": "x", "message_ja": "x"}
    intercept(page, re.compile(r"/budgets\?"), lambda route: route.fulfill(status=503, json=error))
    page.goto("/#/budgets")
    expect(page.locator(".nothing")).to_contain_text("The ledger does not respond")
    page.goto("/#/workers")
    expect(page.locator("main h1")).to_have_text("Workers")


def test_one_tenants_journal_is_read_on_and_grows(page: Page, ledger: Ledger) -> None:
    ledger.lines[0] |= {"kind": "CORRECTION", "actor": "operator", "memo": f"why {MARKUP}", "charged_usd_micros": 50}
    page.goto("/#/budgets/acme")
    rows = page.locator(".journal tbody tr")
    expect(rows).to_have_count(50)
    first = rows.nth(0)
    for words in ("Correction", "−$1.2345", "+$1.2345", "+$0.00005", "operator", f"why {MARKUP}", RUN_ID[:8]):
        expect(first).to_contain_text(words)
    expect(page.locator("main img")).to_have_count(0)
    older = page.get_by_role("button", name="Older entries")
    older.click()
    expect(rows).to_have_count(100)
    older.click()
    expect(rows).to_have_count(120)
    expect(older).to_have_count(0)
    assert [int(each) for each in rows.evaluate_all("(rows) => rows.map((row) => row.dataset.txn)")] == [
        line["txn_id"] for line in ledger.lines
    ]
    assert first.get_by_role("link").get_attribute("href") == f"#/runs/{RUN_ID}"


def test_on_a_phone_each_entry_of_the_journal_is_a_card(page: Page, ledger: Ledger) -> None:
    """Eight columns beside each other would be read through a keyhole."""
    page.set_viewport_size({"width": 380, "height": 800})
    page.goto("/#/budgets/acme")
    first = page.locator(".journal tbody tr").first
    expect(first).to_be_visible()
    assert page.locator(".table-wrap:has(.journal)").evaluate("(each) => each.scrollWidth <= each.clientWidth")
    edges = first.locator("td:visible").evaluate_all("(cells) => cells.map((cell) => cell.getBoundingClientRect().top)")
    assert edges == sorted(set(edges)), "one below the other"
    names = first.locator("td").evaluate_all("(cells) => cells.map((cell) => cell.dataset.name)")
    assert names[:3] == ["Time", "Type", "Available"]
    expect(page.get_by_role("table", name="").get_by_role("row").nth(1)).to_have_attribute("data-txn", "120")
    page.set_viewport_size({"width": 1280, "height": 800})
    expect(page.locator(".journal thead th").first).to_be_visible()


@pytest.mark.usefixtures("own_context")
def test_new_entries_come_on_top_and_the_old_ones_stay(page: Page, ledger: Ledger) -> None:
    page.clock.install()
    page.goto("/#/budgets/acme")
    rows = page.locator(".journal tbody tr")
    expect(rows).to_have_count(50)
    page.evaluate("document.querySelector('.journal tbody tr').id = 'the-same'")
    ledger.lines.insert(0, a_line(121, "SETTLE"))
    page.clock.run_for(16_000)
    expect(rows).to_have_count(51)
    expect(rows.nth(0)).to_contain_text("Charge")
    expect(rows.nth(1)).to_have_attribute("id", "the-same")
    ledger.lines[:0] = [a_line(number, "REFUND") for number in range(221, 121, -1)]
    page.clock.run_for(16_000)
    expect(rows.nth(0)).to_have_attribute("data-txn", "221")
    expect(rows).to_have_count(50)  # there would be a gap: it begins anew


def test_spend_is_drawn_over_the_chosen_time(page: Page, ledger: Ledger) -> None:
    ledger.steps = [
        {"start_at": 1, "charged_usd_micros": 1_000_000, "runs": 3},
        {"start_at": 5, "charged_usd_micros": 2_500_050, "runs": 4},
    ]
    page.goto("/#/budgets/acme")
    chart = page.locator(".budget-spend .chart")
    expect(chart.locator(".chart-now")).to_have_text("$3.50005 for 7 runs")
    expect(chart.locator("path.bar").first).to_have_attribute("d", re.compile("M.*M"))
    chart.locator("summary").click()
    expect(chart.locator("tbody tr")).to_have_count(31)
    expect(chart.locator("tbody")).to_contain_text("$2.50005")
    page.get_by_role("button", name="24 hours").click()
    expect(chart.locator("tbody tr")).to_have_count(25)
    expect(page.get_by_role("button", name="24 hours")).to_have_attribute("aria-pressed", "true")
    assert page.evaluate("location.hash") == "#/budgets/acme?span=day"
    assert any("seconds=86400&step=3600" in address for address in ledger.asked)


def test_nothing_charged_is_said_in_words(page: Page, ledger: Ledger) -> None:
    page.goto("/#/budgets/acme")
    expect(page.locator(".chart-empty")).to_contain_text("Nothing was charged since")


def test_it_is_for_everybody_in_both_languages(page: Page, ledger: Ledger) -> None:
    """Names to be read aloud, headings in order, contrast, no page that scrolls sideways."""
    ledger.steps = [{"start_at": 5, "charged_usd_micros": 2_500_050, "runs": 4}]
    pretend_pack(page)
    places = {"budgets": ".budgets-rows", "budgets/beta": ".journal", f"runs/{RUN_ID}": ".run-pack"}
    places["runs?kind=pack"] = ".runs-body .runs-row"
    page.goto("/#/workers")
    for language, width in (("en", 1280), ("ja", 390)):
        page.set_viewport_size({"width": width, "height": 900})
        if language == "ja":
            page.locator(".language").click()
        for place, part in places.items():
            where = f"{place} in {language}"
            page.goto(f"/#/{place}")
            expect(page.locator(f"main {part}").first, where).to_be_visible()
            expect(page.locator("html"), where).to_have_attribute("lang", language)
            expect(page.locator("main h1").first, where).to_be_visible()
            expect(page.locator("main .skeleton"), where).to_have_count(0)
            for question in ("nameless", "twins", "faint"):
                assert check(page, question) == [], f"{where}: {question}"
            levels = check(page, "headings")
            assert levels[0] == 1, where
            assert all(later - earlier <= 1 for earlier, later in pairwise(levels)), f"{where}: {levels}"
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{where} scrolls sideways"


def a_pack(**more: Any) -> dict[str, Any]:
    cost = {"reserved_usd_micros": 1_234_500, "used_usd_micros": 700_051, "minimum_fee_usd_micros": 5_000}
    now = time.time()
    pack: dict[str, Any] = {
        "kind": "pack",
        "flow_name": "decision",
        "tag": "packs",
        "tags": [],
        "status": "FAILED",
        "worker_id": None,
        "attempt_id": None,
        "tenant_id": "acme",
        "end_time": now,
        "pack_type": "decision",
        "priced_status": "FAILED",
        "money_state": "SETTLED",
        "finalizing": False,
        "reason_code": "TIMEBOX_EXCEEDED",
        "error": f"TIMEBOX_EXCEEDED: {MARKUP}",
        "cost": cost,
        "tokens_consumed": 42,
        "timebox_sec": 90,
        "trace_id": "0af7651916cd43dd8448eb211c80319c",
        "last_change": {"what": "failed", "at": now, "by": {"kind": "keeper", "id": None}},
    }
    return a_run(**pack | more)


def pretend_pack(page: Page, **more: Any) -> None:
    pack = a_pack(**more)
    pretend(page, pack, lambda _: [pack])
    lines = [a_pack(run_id=str(uuid.uuid4()), money_state=state) for state in ("RESERVED", "REFUNDED", "DISPUTED")]
    listed = [{name: value for name, value in each.items() if value is not None} for each in [pack, *lines]]
    intercept(
        page,
        re.compile(r"/runs\?.*kind=pack"),
        lambda route: route.fulfill(json={"items": listed, "next_cursor": None}),
    )


def test_the_page_of_a_pack_tells_its_money_and_offers_nothing_it_cannot_do(page: Page) -> None:
    pretend_pack(page)
    page.goto(f"/#/runs/{RUN_ID}")
    section = page.locator(".run-pack")
    for words in ("failed", "charged", "$0.700051", "$1.2345", "$0.0050", "decision", "1 m 30 s", "TIMEBOX_EXCEEDED"):
        expect(section).to_contain_text(words)
    expect(section).to_contain_text("0af7651916cd43dd8448eb211c80319c")
    main = page.locator("main")
    expect(main.locator(".run-error")).to_contain_text(MARKUP)
    expect(main.locator("img")).to_have_count(0)
    expect(main.get_by_role("button", name="Cancel run")).to_have_count(0)
    expect(main.get_by_role("button", name="Run again")).to_have_count(0)
    expect(main.locator(".run-head .facts")).to_contain_text("Failed by the keeper")
    expect(main).to_contain_text(
        f'curl -H "Authorization: Bearer $PYOCO_API_KEY" {page.url.split("#")[0]}v1/runs/{RUN_ID}'
    )
    expect(main).not_to_contain_text("pyoco-client cancel")
    expect(main.locator(".dag, .gantt")).to_have_count(0)


def test_a_pack_that_waits_says_so_and_one_in_dispute_asks_for_a_person(page: Page) -> None:
    waiting = {"reason": "queue", "message": "Other priced runs come first.", "position": 2, "workers_alive": 1}
    pretend_pack(
        page,
        status="PENDING",
        priced_status="QUEUED",
        money_state="DISPUTED",
        end_time=None,
        start_time=None,
        error=None,
        reason_code=None,
        waiting=waiting | {"slots": 4, "slots_busy": 0},
        last_change={"what": "failed", "at": 1.0, "by": {"kind": "operator", "id": None}},
    )
    page.goto(f"/#/runs/{RUN_ID}")
    expect(page.locator(".run-waiting")).to_contain_text("Other priced runs come first.")
    expect(page.locator(".run-waiting")).not_to_contain_text("Busy slots")
    expect(page.locator(".run-pack")).to_contain_text("An operator has to decide.")
    expect(page.locator(".run-head .facts")).to_contain_text("by an operator")


def test_a_started_pack_in_dispute_waits_for_an_operator_and_for_no_place(page: Page) -> None:
    waiting = {"reason": "disputed", "message": "Its money contradicts itself.", "position": 1, "workers_alive": 0}
    pretend_pack(
        page, status="RUNNING", priced_status="PROCESSING", money_state="DISPUTED", end_time=None, waiting=waiting
    )
    page.goto(f"/#/runs/{RUN_ID}")
    expect(page.locator(".run-waiting")).to_contain_text("Its money contradicts itself.")
    expect(page.locator(".run-waiting")).not_to_contain_text("Position in queue")


def test_a_started_pack_is_neither_waiting_nor_stale(page: Page) -> None:
    old = time.time() - 3600
    pretend_pack(page, status="RUNNING", priced_status="PROCESSING", end_time=None, heartbeat_at=old, updated_at=old)
    page.goto(f"/#/runs/{RUN_ID}")
    expect(page.locator(".run-pack")).to_contain_text("processing")
    expect(page.locator(".run-waiting")).to_be_hidden()
    expect(page.locator(".status-stale")).to_have_count(0)


def test_a_list_shows_the_money_in_words_and_stops_no_pack(page: Page) -> None:
    pretend_pack(page)
    page.goto("/#/runs?kind=pack")
    rows = page.locator(".runs-body .runs-row")
    expect(rows).to_have_count(4)
    for words in ("charged", "reserved", "refunded", "disputed"):
        expect(page.locator(".runs-money .badge", has_text=words)).to_have_count(1)
    expect(rows.nth(0)).to_contain_text("$0.700051 of $1.2345")
    expect(rows.nth(0).locator(".runs-kind")).to_have_text("pack")
    expect(page.locator(".runs-tag:visible")).to_have_count(0)
    expect(page.get_by_role("button", name="Cancel all matching")).to_have_count(0)
    rows.nth(0).locator("input[type=checkbox]").check()
    expect(page.locator(".runs-bulk")).to_be_visible()
    expect(page.locator(".runs-bulk").get_by_role("button", name="Cancel", exact=True)).to_have_count(0)


def test_a_redacted_run_is_a_row_without_money_that_says_why(page: Page) -> None:
    """SAFE-5"""
    run = {"run_id": RUN_ID, "kind": "pack", "status": "COMPLETED", "pack_type": "decision", "redacted": True}
    run |= {"submitted_at": time.time() - 9, "updated_at": time.time() - 3}
    intercept(page, re.compile(r"/runs\?"), lambda route: route.fulfill(json={"items": [run], "next_cursor": None}))
    page.goto("/#/runs")
    row = page.locator(".runs-body .runs-row")
    expect(row).to_have_count(1)
    expect(row.locator(".runs-flow-name")).to_have_text("decision")
    expect(row.locator(".runs-cost")).to_have_text("key needed")
    expect(row.locator(".runs-money .badge")).to_have_count(0)


def test_no_key_comes_into_a_command(stack: Stack, page: Page, watched: Watched) -> None:
    pretend_pack(page)
    page.goto("/")
    page.evaluate("sessionStorage.setItem('pyoco.key', 'a-secret-key')")
    page.goto(f"/#/runs/{RUN_ID}")
    expect(page.locator("main")).to_contain_text("$PYOCO_API_KEY")
    expect(page.locator("main")).not_to_contain_text("a-secret-key")
