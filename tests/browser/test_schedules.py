"""The schedules: their list, the page of one, and what can be done there."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from support.browsers import check, only_looks
from support.routes import Paused, intercept
from support.stacks import Stack

MARKUP = "<img src='x' onerror='pwned=1'>"
RUN_ID = "2973531a-935c-5176-9963-23fc83c37ea1"
#: New York, 2027-03-13 02:30: the night after it, that time does not exist.
SPRING = 1_804_923_000
DAY = 86_400


def a_tick(tick: int, outcome: str = "run", **more: Any) -> dict[str, Any]:
    return {"tick": tick, "due_at": tick, "handled_at": tick + 0.5, "source": "tick", "outcome": outcome} | more


def a_schedule(name: str, **more: Any) -> dict[str, Any]:
    schedule: dict[str, Any] = {
        "id": "3c1f9a52-8f0e-4b7e-9a55-0d6b3f1c2e11",
        "name": name,
        "what": {"kind": "flow", "flow_name": "report", "params": {"day": "{{ scheduled_time.date }}"}},
        "when": {"cron": "30 2 * * *"},
        "timezone": "America/New_York",
        "start_at": None,
        "end_at": None,
        "jitter": 0.0,
        "overlap": "skip",
        "catch_up": {"policy": "last", "window": 86400.0},
        "paused": False,
        "pause_reason": None,
        "labels": [],
        "notify": [],
        "created_at": 1.0,
        "updated_at": 1.0,
        "updated_by": None,
        "next_ticks": [int(time.time()) // 60 * 60 + 60 * (3 + number) for number in range(5)],
        "waiting_ticks": 0,
        "overdue": False,
    }
    return schedule | more


class Pretended:
    """What the gateway would say. Requests that the page makes are noted."""

    def __init__(self, page: Page) -> None:
        at = SPRING - 40 * DAY
        self.history = [
            a_tick(at + 5 * DAY, "waiting"),
            a_tick(at + 4 * DAY, "refused", err_id="ERR-PYOCO-0040", message=f"no budget {MARKUP}", message_ja="予算"),
            a_tick(at + 3 * DAY, "skipped", reason="overlap"),
            a_tick(at + 2 * DAY, run_id=RUN_ID, run_status="COMPLETED", source="backfill"),
            a_tick(at + DAY, run_id=RUN_ID.replace("2", "3"), run_status="FAILED"),
            a_tick(at - 200 * DAY, "skipped", reason="missed", count=120, last_tick=at - 80 * DAY),
        ]
        reason = f"away {MARKUP}"
        self.items = [
            a_schedule("nightly", overdue=True, waiting_ticks=1, last_tick=self.history[0], labels=["money"]),
            a_schedule("weekly", paused=True, pause_reason=reason, next_ticks=[], last_tick=self.history[3]),
        ]
        self.asked: list[str] = []
        self.done: list[tuple[str, str, Any]] = []
        intercept(page, re.compile(r"/schedules(/|\?|$)"), self._answer)

    def _answer(self, route: Paused) -> None:
        request = route.request
        path, _, query = request.url.partition("?")
        self.asked.append(request.url)
        parts = path.split("/schedules")[1].strip("/").split("/")
        if request.method != "GET":
            assert request.headers["x-pyoco-request"] == "1"
            self.done.append((request.method, "/".join(parts), json.loads(request.post_data or "null")))
            answer: dict[str, Any] = {"run_id": RUN_ID, "status": "PENDING"}
        elif parts == [""]:
            wanted = [each for each in self.items if "label=" not in query or each["labels"]]
            answer = {"items": wanted, "next_cursor": None}
        elif parts[1:] == ["preview"]:
            local = ["2027-03-13T02:30:00-05:00", "2027-03-14T03:30:00-04:00"]
            ticks = [(SPRING, None), (SPRING + DAY, "gap")]
            items = [
                {"tick": tick, "local": local[number], "dst": dst, "latest_at": tick}
                for number, (tick, dst) in enumerate(ticks)
            ]
            answer = {"items": items}
        elif parts[1:] == ["ticks"]:
            first = "cursor=" not in query
            answer = {
                "items": self.history[:4] if first else self.history[4:],
                "next_cursor": "more" if first else None,
            }
            if "limit=60" in query:
                answer = {"items": self.history, "next_cursor": None}
        else:
            answer = next(each for each in self.items if each["name"] == parts[0])
        route.fulfill(json=answer)


@pytest.fixture
def pretended(page: Page) -> Pretended:
    return Pretended(page)


def test_when_it_ticks_is_told_in_words(module_page: Page) -> None:
    """SCHED-10, SCHED-11"""
    words: dict[str, tuple[str, str]] = {
        "0 6 * * *": ("Every day at 06:00", "毎日 06:00"),
        "@daily": ("Every day at 00:00", "毎日 00:00"),
        "*/15 9-17 * * MON-FRI": (
            "Every 15 minutes from 09:00 to 17:45, Monday to Friday",
            "毎週月曜日～金曜日、09:00から17:45まで15分ごと",
        ),
        "30 2 * * SUN": ("Every Sunday at 02:30", "毎週日曜日 02:30"),
        "0 8 * * FRI-SUN": ("Friday to Sunday at 08:00", "毎週金曜日～日曜日 08:00"),
        "0 0 1,15 * *": ("On day 1 and 15 of the month at 00:00", "毎月1、15日 00:00"),
        "* * * * *": ("Every minute", "1分ごと"),
        "*/10 * * * * *": ("Every 10 seconds", "10秒ごと"),
        "5,35 * * * *": ("Every hour at :05 and :35", "毎時:05、:35"),
        "15 */2 * * *": ("Every 2 hours at :15, from 00:15", "00:15から2時間ごと（:15）"),
        "15 */12 * * *": ("Every day at 00:15 and 12:15", "毎日 00:15、12:15"),
        "0 12 24 12 *": ("On day 24 at 12:00, in December", "12月の24日 12:00"),
        "@every 90m": ("Every 90m", "90mごと"),
        # There are no words for it, so the expression is shown.
        "*/7 3-5 */2 * *": ("", ""),
        "0 L * * *": ("", ""),
        "9-2 * * * *": ("", ""),
    }
    ask = """async ([language, all]) => {
      const { speak } = await import('/static/lib/i18n.js');
      const { whenWords } = await import('/static/lib/schedule_words.js');
      speak(language);
      const words = all.map(whenWords);
      speak('en');
      return words;
    }"""
    every: list[dict[str, Any]] = [{"every": 5}, {"every": 5400, "offset": 60}, {"every": 86400}, {"at": [1, 2]}]
    whens: list[dict[str, Any]] = [{"cron": each} for each in words] + every
    english, japanese = (module_page.evaluate(ask, [language, whens]) for language in ("en", "ja"))
    assert english[: len(words)] == [each for each, _ in words.values()]
    assert japanese[: len(words)] == [each for _, each in words.values()]
    told = ["Every 5 seconds", "Every 90 minutes, 1 minute later", "Every 24 hours", "At 2 listed times"]
    assert english[len(words) :] == told


def test_the_list_tells_what_when_and_what_became_of_it(page: Page, pretended: Pretended) -> None:
    """SCHED-20, SCHED-22"""
    page.goto("/#/schedules")
    rows = page.locator(".schedules-rows .row")
    expect(rows).to_have_count(2)
    nightly, weekly = rows.nth(0), rows.nth(1)
    for words in ("report", "Every day at 02:30", "30 2 * * *", "America/New_York", "in 2 m", "Overdue", "Waiting"):
        expect(nightly).to_contain_text(words)
    for words in ("Paused", f"away {MARKUP}", "Completed"):
        expect(weekly).to_contain_text(words)
    expect(weekly.get_by_role("link", name="Completed")).to_have_attribute("href", f"#/runs/{RUN_ID}")
    expect(page.locator("main img")).to_have_count(0)
    nightly.get_by_role("link", name="money").click()
    expect(rows).to_have_count(1)
    page.get_by_role("button", name="Paused").click()
    expect(page.get_by_role("searchbox", name="Label", exact=True)).to_have_value("money")
    expect(page).to_have_url(re.compile(r"#/schedules\?label=money&paused=true$"))


def test_without_schedules_it_says_how_to_make_one(page: Page, pretended: Pretended) -> None:
    pretended.items = []
    page.goto("/#/schedules")
    expect(page.locator(".nothing")).to_contain_text("schedule create nightly --cron")
    page.goto("/#/schedules?paused=true")
    expect(page.locator(".nothing")).to_contain_text("No schedule matches the filter")


def test_each_tick_is_a_cell_that_the_keyboard_reaches(
    page: Page, pretended: Pretended, expects_trouble: Callable[..., None]
) -> None:
    """SCHED-19, SCHED-30"""
    expects_trouble("404")  # of the run, which is pretended
    page.goto("/#/schedules/nightly")
    cells = page.locator(".schedule-strip .tick")
    expect(cells).to_have_count(6)
    states = ["skipped", "failed", "completed", "skipped", "refused", "waiting"]
    for number, state in enumerate(states):
        expect(cells.nth(number), str(number)).to_have_class(re.compile(f"status-{state}"))
    expect(cells.nth(0)).to_have_text("×120")
    expect(cells.nth(4)).to_have_attribute("title", re.compile(r"2027, 02:30 · Refused · no budget <img.*0040\)"))
    cells.nth(0).focus()
    for _ in range(2):
        page.keyboard.press("ArrowRight")
    expect(cells.nth(2)).to_be_focused()
    expect(page.locator(".schedule-told")).to_contain_text("Completed · Backfill")
    assert [each.get_attribute("tabindex") for each in cells.all()].count("0") == 1
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(f"#/runs/{RUN_ID}"))


def test_the_history_is_read_page_by_page(page: Page, pretended: Pretended) -> None:
    """SCHED-30"""
    page.goto("/#/schedules/nightly")
    rows = page.locator(".schedule .journal tbody tr")
    expect(rows).to_have_count(4)
    page.get_by_role("button", name="Older").click()
    expect(rows).to_have_count(2)
    expect(rows.nth(1)).to_contain_text("Missed: no keeper was there in time")
    page.get_by_role("button", name="Newer").click()
    expect(rows).to_have_count(4)
    page.get_by_label("Outcome", exact=True).select_option("refused")
    expect(rows).to_have_count(4)
    assert any("outcome=refused" in each for each in pretended.asked)


def test_a_clock_change_is_noted(page: Page, pretended: Pretended) -> None:
    """SCHED-29"""
    page.goto("/#/schedules/nightly")
    ticks = page.locator(".schedule-next li")
    expect(ticks.nth(0)).to_contain_text("Sat, Mar 13, 2027, 02:30")
    expect(ticks.nth(1)).to_contain_text("Sun, Mar 14, 2027, 03:30")
    expect(ticks.nth(1)).to_contain_text("does not exist")
    expect(ticks.nth(0)).not_to_contain_text("does not exist")


def test_who_only_looks_is_offered_nothing(page: Page, pretended: Pretended) -> None:
    only_looks(page)
    page.goto("/#/schedules/nightly")
    expect(page.locator(".schedule-next")).to_be_visible()
    for name in ("Run now", "Pause", "Delete"):
        expect(page.get_by_role("button", name=name, exact=True)).to_have_count(0)


def test_it_is_for_everybody_in_both_languages(page: Page, pretended: Pretended) -> None:
    """Names to be read aloud, headings in order, contrast, no page that scrolls sideways."""
    page.goto("/#/workers")
    for language, width in (("en", 1280), ("ja", 380)):
        page.set_viewport_size({"width": width, "height": 900})
        if language == "ja":
            page.locator(".language").click()
        for place, part in {
            "schedules": ".schedules-rows",
            "schedules/nightly": ".tick",
            "schedules/weekly": ".tick",
        }.items():
            where = f"{place} in {language}"
            page.goto(f"/#/{place}")
            expect(page.locator(f"main {part}").first, where).to_be_visible()
            for scheme in ("light", "dark"):
                page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
                assert check(page, "faint") == [], f"{where}: {scheme}"
            for question in ("nameless", "twins"):
                assert check(page, question) == [], f"{where}: {question}"
            levels = check(page, "headings")
            assert levels[0] == 1, where
            assert all(later - earlier <= 1 for earlier, later in pairwise(levels)), f"{where}: {levels}"
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{where} scrolls sideways"


@pytest.fixture
def ticking(stack: Stack) -> Iterator[str]:
    """One that has ticked, on the real thing."""
    name = "page-of-schedules"
    what = {"kind": "flow", "flow_name": "resize_images", "params": {"n": 1}}
    made = stack.ask("POST", "/schedules", json={"name": name, "what": what, "when": {"every": 1}, "overlap": "allow"})
    assert made.status_code == 201, made.text
    assert stack.ask("POST", f"/schedules/{name}/trigger").status_code == 200
    yield name
    stack.ask("DELETE", f"/schedules/{name}")


def test_it_is_paused_run_now_resumed_and_deleted(
    page: Page, stack: Stack, ticking: str, expects_trouble: Callable[..., None]
) -> None:
    """SCHED-14, SCHED-23, SCHED-25, SCHED-26, SCHED-27"""
    page.goto("/#/schedules")
    page.locator(f'.row[data-name="{ticking}"]').get_by_role("link", name=ticking).click()
    expect(page.locator(".schedule-strip a.tick").first).to_be_visible()
    page.get_by_role("button", name="Pause", exact=True).click()
    page.get_by_label("Reason").fill(f"why {MARKUP}")
    page.keyboard.press("Enter")
    expect(page.locator(".schedule-paused")).to_contain_text(f"why {MARKUP}")
    assert stack.get(f"/schedules/{ticking}")["pause_reason"] == f"why {MARKUP}"
    page.get_by_role("button", name="Run now").click()
    dialog = page.locator("dialog")
    dialog.get_by_label("Params as JSON").fill("[1]")
    dialog.get_by_role("button", name="Run now").click()
    expect(dialog.locator(".field-trouble")).to_contain_text("object")
    dialog.get_by_label("Params as JSON").fill('{"n": 12345678901234567890}')
    dialog.get_by_role("button", name="Run now").click()
    expect(page.locator(".tick.triggered")).to_have_count(2)
    page.locator(".toast").get_by_role("link").click()
    head = page.locator(".run-head .facts")
    expect(head).to_contain_text("Triggered")
    run_id = page.url.rpartition("/")[2]
    assert stack.get(f"/runs/{run_id}")["params"]["n"] == 12345678901234567890
    head.get_by_role("link", name=ticking).click()
    page.get_by_role("button", name="Resume").click()
    expect(page.locator(".schedule-paused")).to_have_count(0)
    page.get_by_role("button", name="Delete").click()
    page.locator("dialog").get_by_role("button", name="Delete").click()
    expect(page.locator(".toast").last).to_contain_text(f"{ticking} was deleted.")
    expect(page.locator("main h1")).to_have_text("Schedules")
    expects_trouble("404")
    page.goto(f"/#/schedules/{ticking}")
    expect(page.locator(".nothing")).to_contain_text("There is no schedule with this name")
    page.locator("main").get_by_role("link", name="Its runs").click()
    expect(page.locator(".runs-body").get_by_role("link", name=f"schedule:{ticking}").first).to_be_visible()
