"""The log on the page of a run: what is drawn, what is fetched, and where one gets to it from."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from typing import Any, Literal

import pytest
from playwright.sync_api import Locator, Page, expect

from support.browsers import Watched, check
from support.pretended_runs import RUN_ID, a_line, a_run, pretend, pretend_log
from support.routes import Paused, intercept

Query = dict[str, list[str]]
MARKUP = "<img src=x onerror=window.pwned=1>"
ENDED = {"status": "FAILED", "end_time": 1_760_000_000.0, "updated_at": 1_760_000_000.0}
TASKS: dict[str, Any] = {
    "tasks": {"load": "SUCCEEDED", "save": "FAILED"},
    "graph": {"load": [], "save": ["load"]},
    "task_records": {
        "load": {"state": "SUCCEEDED", "started_at": 1_760_000_000.0, "ended_at": 1_760_000_001.0},
        "save": {"state": "FAILED", "started_at": 1_760_000_001.0, "ended_at": 1_760_000_002.0, "error": "no disk"},
    },
}
#: The numbers of the lines that are in the page.
NUMBERS = "[...document.querySelectorAll('.log-number')].map((each) => Number(each.textContent))"


def a_long_log(count: int, asked: list[Query]) -> Callable[[Query], list[dict[str, Any]]]:
    """As the gateway answers of a log with so many lines."""

    def answer(query: Query) -> list[dict[str, Any]]:
        asked.append(query)
        number = {
            name: int(query[name][0].rsplit(".")[-1]) for name in ("after", "before", "tail", "limit") if name in query
        }
        first, end = number.get("after", 0) + 1, number.get("before", count + 1)
        if "tail" in number:
            first = max(first, end - number["tail"])
        return [a_line(seq, f"line {seq}") for seq in range(first, min(end, first + number.get("limit", 10_000)))]

    return answer


def opened(page: Page) -> Locator:
    """The log of the pretended run, on the screen."""
    page.goto(f"/#/runs/{RUN_ID}")
    expect(page.get_by_role("log", name="Lines of the log")).to_be_visible()
    page.locator(".run-logs").evaluate("(each) => each.scrollIntoView()")
    return page.get_by_role("log")


def test_a_million_lines_scroll_with_few_of_them_in_the_page(page: Page) -> None:
    """LOG-17, LOG-18, LOG-19: from the end, from the beginning, and on from there; each line once"""
    asked: list[Query] = []
    pretend(page, a_run(**ENDED), lambda _: [])
    pretend_log(page, a_long_log(1_000_000, asked), headers={"Pyoco-Log-More": "true"})
    log = opened(page)
    expect(log).to_contain_text("line 1000000")
    log.focus()
    page.keyboard.press("Home")
    expect(page.locator('.log-row[data-id="1.1"]')).to_be_in_viewport()
    seen = page.evaluate(
        """async (numbers) => {
          const frame = document.querySelector('.log-frame');
          const [seen, began] = [new Set(eval(numbers)), performance.now()];
          let [rows, lines, at] = [0, 0, 0];
          while (at < 13_000 && performance.now() - began < 60_000) {
            frame.scrollTop += at < 1500 ? frame.clientHeight : 12 * frame.clientHeight;
            await new Promise(requestAnimationFrame);
            const shown = eval(numbers);
            for (const each of shown) seen.add(each);
            at = shown.at(-1);
            rows = Math.max(rows, shown.length);
            lines = Math.max(lines, frame.scrollHeight / 20);
          }
          const all = Array.from({ length: 1500 }, (_, before) => before + 1);
          return { missing: all.filter((each) => !seen.has(each)), rows, lines };
        }""".replace("eval(numbers)", NUMBERS),
        None,
    )
    assert seen["missing"] == []
    assert seen["rows"] < 200
    assert seen["lines"] < 10_500, "what was left behind is forgotten"
    up = "document.querySelector('.log-frame').scrollTop = 0"
    page.wait_for_function(f"() => {{ {up}; return {NUMBERS}[0] < 2500 }}")  # and fetched again
    numbers = page.evaluate(NUMBERS)
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    log.focus()
    page.keyboard.press("End")
    expect(page.locator('.log-row[data-id="1.1000000"]')).to_be_in_viewport()
    assert not any("limit" in query and int(query["limit"][0]) > 1000 for query in asked)


def test_what_programs_print_is_drawn_and_never_obeyed(page: Page) -> None:
    """LOG-4, LOG-9: colours, weight, control characters, markup, exceptions, cut lines and gaps"""
    lines = [
        a_line(1, f"\x1b[31mred {MARKUP}\x1b[0m \x1b[1;38;2;10;20;30mown\x1b[0m"),
        a_line(2, "bell \x07 clear \x1b[2J back\rover \u202eturned"),
        a_line(9, "", stream="system", event="gap", missing_lines=6, missing_bytes=2048, why="buffer"),
        a_line(10, "it failed", stream="log", level="ERROR", logger="app", exc=f"Traceback\n{MARKUP}", cut_bytes=4096),
        a_line(11, "\u0627\u0644\u0633\u0644\u0627\u0645 日本語", stream="stderr", task=None),
    ]
    pretend(page, a_run(**ENDED, **TASKS), lambda _: [])
    pretend_log(page, lambda _: lines)
    page.goto(f"/#/runs/{RUN_ID}")
    rows = page.locator(".log-row")
    expect(rows).to_have_count(5)
    red = rows.nth(0).locator(".ansi-ink-1")
    expect(red).to_have_text(f"red {MARKUP}")
    own = rows.nth(0).locator(".ansi-bold.ansi-ink")
    assert own.evaluate("(each) => each.style.getPropertyValue('--ansi-ink')") == "rgb(10 20 30)"
    expect(rows.nth(1).locator(".log-text")).to_have_text(r"bell \x07 clear \x1b[2J back\x0dover \u202eturned")
    expect(rows.nth(2)).to_contain_text("6 lines are missing here (2 KiB). They came faster than")
    expect(rows.nth(3).locator(".log-text")).to_have_text(re.compile(r"^it failed \[4 KiB cut off\]\nTraceback\n<img"))
    expect(rows.nth(3).locator(".log-level")).to_have_text("ERROR")
    schemes: tuple[Literal["dark", "light"], ...] = ("dark", "light")
    for scheme in schemes:
        page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        for question in ("nameless", "twins", "faint", "obeyed"):
            assert check(page, question) == [], (question, scheme)
    page.set_viewport_size({"width": 380, "height": 800})
    for pressed in ("true", "false"):
        expect(page.get_by_role("button", name="Wrap lines")).to_have_attribute("aria-pressed", pressed)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "the page scrolls sideways"
        page.get_by_role("button", name="Wrap lines").click()


def test_lines_are_filtered_by_the_gateway_and_the_address_says_how(page: Page) -> None:
    """LOG-11 to LOG-16"""
    asked: list[Query] = []

    def answer(query: Query) -> list[dict[str, Any]]:
        asked.append({name: value for name, value in query.items() if name not in ("tail", "limit")})
        return [] if "search" in query else [a_line(1, "first"), a_line(1, "again", attempt=2)]

    pretend(page, a_run(**ENDED, **TASKS, attempt=2), lambda _: [])
    pretend_log(page, answer)
    page.goto(f"/#/runs/{RUN_ID}")
    expect(page.locator(".log-attempt")).to_have_text(["Attempt 1", "Attempt 2"])
    page.locator(".log-tools").get_by_label("Task").select_option("save")
    page.locator(".log-tools").get_by_label("Attempt").select_option("1")
    page.locator(".log-tools").get_by_label("Level").select_option("WARNING")
    page.get_by_role("button", name="Standard error", exact=True).click()
    page.wait_for_url("**log_stream=stderr")
    page.get_by_label("Find in the log").fill("disk 100%")
    expect(page.locator(".run-logs")).to_contain_text("No line matches these filters.")
    wanted = {"task": ["save"], "attempt": ["1"], "level": ["WARNING"], "stream": ["stderr", "system"]}
    assert (asked[0], asked[-1]) == ({}, wanted | {"search": ["disk 100%"]})
    place = "log_task=save&log_attempt=1&log_level=WARNING&log_stream=stderr&log_search=disk+100%25"
    assert page.evaluate("location.hash") == f"#/runs/{RUN_ID}?{place}"
    page.reload()
    expect(page.get_by_label("Find in the log")).to_have_value("disk 100%")
    assert asked[-1] == wanted | {"search": ["disk 100%"]}
    page.get_by_role("button", name="Clear filters").click()
    expect(page.locator(".log-row")).to_have_count(2)
    assert page.evaluate("location.hash") == f"#/runs/{RUN_ID}"


def test_a_task_and_an_error_lead_to_their_lines(page: Page) -> None:
    def answer(query: Query) -> list[dict[str, Any]]:
        task = query.get("task", ["load"])[0]
        return [a_line(seq, f"{task} {seq}", task=task) for seq in range(1, 201)]

    pretend(page, a_run(**ENDED, **TASKS), lambda _: [])
    pretend_log(page, answer)
    page.goto(f"/#/runs/{RUN_ID}")
    log = page.get_by_role("log")
    page.locator(".run-error-task").get_by_role("button", name="Last log lines").click()
    expect(log).to_contain_text("save 200")
    expect(log).to_be_focused()
    expect(page.locator('.log-row[data-id="1.200"]')).to_be_in_viewport()
    page.locator('.dag-node[data-task="load"]').click()
    page.locator(".run-record").get_by_role("button", name="Log lines of this task").click()
    expect(log).to_contain_text("load 200")
    expect(page.locator(".log-tools").get_by_label("Task")).to_have_value("load")
    assert page.evaluate("location.hash") == f"#/runs/{RUN_ID}?task=load&log_task=load"


@pytest.mark.parametrize("language", ["en", "ja"])
def test_a_log_without_lines_says_why(page: Page, language: str, watched: Watched) -> None:
    """LOG-22, SAFE-5: for a redacted run, no log is requested"""
    page.add_init_script(f"localStorage.setItem('pyoco.language', '{language}')")
    words = {
        "en": ("has not started", "Nothing printed yet. Lines", "printed nothing", "keeps no logs"),
        "ja": ("開始されていません", "出力されると", "何も出力しなかったか", "保存しません"),
    }[language]
    runs = [a_run(status="PENDING", worker_id=None), a_run(), a_run(**ENDED), a_run(**ENDED)]
    for number, (run, said) in enumerate(zip(runs, words, strict=True)):
        pretend(page, run, lambda _: [])
        pretend_log(page, lambda _: [], headers={"Pyoco-Logs": "off"} if number == 3 else None)
        page.goto("/#/queues")
        expect(page.locator(".run-logs")).to_have_count(0)
        page.goto(f"/#/runs/{RUN_ID}")
        expect(page.locator(".log-note")).to_contain_text(said)
        expect(page.get_by_role("log")).to_be_hidden()
    pretend(page, a_run(**ENDED, kind="pack", redacted=True), lambda _: [])
    page.goto("/#/queues")
    expect(page.locator(".run-logs")).to_have_count(0)
    before = len(watched.requested)
    page.goto(f"/#/runs/{RUN_ID}")
    expect(page.locator(".run-pack")).to_be_visible()
    expect(page.locator(".run-logs")).to_be_hidden()
    assert not [url for url in watched.requested[before:] if "/logs" in url]


def test_new_lines_are_followed_only_at_the_end(page: Page) -> None:
    """LOG-21: the stream continues after the last known line"""
    streams: list[Paused] = []
    pretend(page, a_run(), lambda _: [])
    pretend_log(page, lambda query: [a_line(seq, f"line {seq}") for seq in range(1, 101)] if "tail" in query else [])
    intercept(page, re.compile(f"/runs/{RUN_ID}/logs/stream"), streams.append)
    opened(page)
    expect(page.locator(".log-foot")).to_contain_text("Live")

    def come(first: int) -> None:
        while not streams:
            page.wait_for_timeout(10)
        paused = streams.pop()
        assert paused.request.url.endswith(f"after=1.{first - 1}")
        lines = [a_line(seq, f"line {seq}") for seq in range(first, first + 50)]
        paused.fulfill(
            body="".join(f"id: {line['id']}\nevent: line\ndata: {json.dumps(line)}\n\n" for line in lines),
            content_type="text/event-stream",
        )

    come(101)
    expect(page.locator('.log-row[data-id="1.150"]')).to_be_in_viewport()
    page.evaluate("document.querySelector('.log-frame').scrollTop = 0")
    expect(page.locator(".log-foot")).to_contain_text("Paused")
    come(151)
    expect(page.locator(".log-foot")).to_contain_text("200 lines")
    expect(page.locator('.log-row[data-id="1.1"]')).to_be_in_viewport()
    page.get_by_role("button", name="Last lines").click()
    expect(page.locator('.log-row[data-id="1.200"]')).to_be_in_viewport()


def test_lines_are_copied_with_those_that_were_scrolled_away(page: Page) -> None:
    pretend(page, a_run(**ENDED), lambda _: [])
    pretend_log(page, lambda _: [a_line(seq, f"\x1b[32mline\x1b[0m {seq}\x07") for seq in range(1, 501)])
    opened(page)
    page.get_by_role("button", name="First lines").click()
    expect(page.locator('.log-row[data-id="1.2"]')).to_be_in_viewport()
    copied = page.evaluate(
        """async () => {
          const frame = document.querySelector('.log-frame');
          const textOf = (id) => document.querySelector(`.log-row[data-id="${id}"] .log-text`);
          const from = textOf('1.2');
          getSelection().setBaseAndExtent(from, 1, textOf('1.3'), 1);
          await new Promise((done) => setTimeout(done, 50));
          frame.scrollTop = frame.scrollHeight;
          for (let turn = 0; turn < 3; turn += 1) await new Promise(requestAnimationFrame);
          getSelection().extend(textOf('1.500'), 1);
          const clipboardData = new DataTransfer();
          const event = new ClipboardEvent('copy', { bubbles: true, cancelable: true, clipboardData });
          from.dispatchEvent(event);
          return event.clipboardData.getData('text/plain').split('\\n');
        }"""
    )
    assert (len(copied), copied[0], copied[1], copied[-1]) == (499, r" 2\x07", r"line 3\x07", "line")
    page.evaluate("navigator.clipboard.writeText = async (text) => { window.copied = text }")
    page.get_by_role("button", name="Copy lines").click()
    page.wait_for_function("() => window.copied !== undefined")
    whole = page.evaluate("window.copied.split('\\n')")
    at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(1_760_000_000))
    assert (len(whole), whole[0]) == (500, rf"{at}.001Z load stdout line 1\x07")
