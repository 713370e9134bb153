"""The charts of the last hour."""

from __future__ import annotations

from typing import Any

from playwright.sync_api import Page, expect

from support.routes import intercept
from support.stacks import Stack, until

NAMES = [
    "submitted",
    "completed",
    "failed",
    "cancelled",
    "in_flight",
    "waiting",
    "wait_p50",
    "wait_p95",
    "wait_p99",
    "run_p50",
    "run_p95",
    "run_p99",
]


def test_axes_have_few_and_round_ticks(module_page: Page) -> None:
    """Never more than five, the last one not below the largest value, whatever the values are."""
    ask = "([name, tops]) => import('/static/lib/scale.js').then((m) => tops.map((top) => m[name](top)))"

    def ticks(name: str, *tops: float | str | None) -> Any:
        return module_page.evaluate(ask, [name, list(tops)])

    assert ticks("countTicks", 0, 1, 3, 7, 58, 1000) == [
        [0, 1],
        [0, 1],
        [0, 1, 2, 3],
        [0, 2, 4, 6, 8],
        [0, 20, 40, 60],
        [0, 500, 1000],
    ]
    assert ticks("spanTicks", 0.13, 0.3, 95, 5000)[:2] == [[0, 0.05, 0.1, 0.15], [0, 0.1, 0.2, 0.3]]
    assert ticks("shareTicks", 0, 0.03, 0.4, 1) == [
        [0, 0.01],
        [0, 0.01, 0.02, 0.03],
        [0, 0.1, 0.2, 0.3, 0.4],
        [0, 0.25, 0.5, 0.75, 1],
    ]
    odd: list[float | str | None] = [None, "x", -3, 1e-9, 1e12]
    for name in ("countTicks", "spanTicks", "shareTicks"):
        assert all(1 < len(each) <= 5 and each[0] == 0 for each in ticks(name, *odd)), name
    tops = [0.0011, 0.04, 0.9, 3, 17, 61, 700, 4000, 90_000, 1e6, 123_456_789]
    for name in ("countTicks", "spanTicks"):
        for top, each in zip(tops, ticks(name, *tops), strict=True):
            assert len(each) <= 5, (name, top, each)
            assert each[-1] >= top, (name, top, each)


def test_where_nothing_was_measured_the_line_has_a_gap(module_page: Page) -> None:
    ask = """(values) => import('/static/lib/scale.js').then((m) =>
      [m.linePath(values, (x) => x, (y) => y), m.dotPath(values, (x) => x, (y) => y)])"""
    assert module_page.evaluate(ask, [1, 2, None, 3, None, 4, 5]) == ["M0 1L1 2M5 4L6 5", "M3 3h0"]
    assert module_page.evaluate(ask, [None, None]) == ["", ""]
    bars = "import('/static/lib/scale.js').then((m) => m.barPath([0, 2], [1, null, 0], (x) => x, 1, (y) => y))"
    assert module_page.evaluate(bars) == "M0 1h1V0h-1z"


def test_the_memory_grows_piece_by_piece_and_begins_anew_after_a_restart(module_page: Page) -> None:
    ask = """(answers) => import('/static/lib/recent.js').then((m) => {
      const recent = new m.Recent();
      return answers.map((answer) => [recent.add(answer), recent.begin, recent.length, recent.after ?? null]);
    })"""

    def answer(begin: float, length: int) -> dict[str, Any]:
        return {"from": begin, "step_seconds": 10, **{name: [1] * length for name in NAMES}}

    grown = module_page.evaluate(ask, [answer(600, 3), answer(630, 0), answer(630, 2), answer(650, 359)])
    assert grown == [[True, 600, 3, 620], [True, 600, 3, 620], [True, 600, 5, 640], [True, 640, 360, 4230]]
    restarted = module_page.evaluate(ask, [answer(600, 3), answer(700, 2), answer(700, 2)])
    assert restarted == [[True, 600, 3, 620], [False, 0, 0, None], [True, 700, 2, 710]]
    odd: list[Any] = [None, {}, {"from": "x", "submitted": "y"}, answer(600, 1) | {"failed": ["x"], "waiting": None}]
    assert module_page.evaluate(ask, odd)[-1] == [True, 600, 1, 600]

    minutes = """(answer) => import('/static/lib/recent.js').then((m) => {
      const recent = new m.Recent();
      recent.add(answer);
      return [recent.minutes().at, recent.minutes().columns, recent.sum('completed', 60), recent.sum('completed')];
    })"""
    # From half a minute on: 3 steps, a whole minute, and a minute that is not over. Only the whole one is comparable.
    at, columns, last_minute, everything = module_page.evaluate(minutes, answer(630, 11))
    assert (at, columns["completed"], columns["share"]) == ([660], [6], [0.5])
    assert (last_minute, everything) == (6, 11)
    # A part of a minute is better than nothing: alone, with another part, and beside minutes in which nothing happened.
    assert module_page.evaluate(minutes, answer(630, 2))[:2][0] == [600]
    assert module_page.evaluate(minutes, answer(650, 2))[0] == [600, 660]
    quiet = {name: [1, *[0] * 8] for name in NAMES}
    at, columns, *_ = module_page.evaluate(minutes, answer(650, 9) | quiet)
    assert (at, columns["failed"], columns["share"]) == ([600, 660], [1, 0], [0.5, None])


def test_the_number_of_a_chart_is_one_of_its_bars(page: Page) -> None:
    """Early on: submitted in the last seconds of a minute, ended in the first of the next."""
    counts = {name: [0, 0] for name in NAMES} | {"submitted": [7, 0], "completed": [0, 7]}
    answer = {"from": 650, "step_seconds": 10, "now": 675, **counts}
    intercept(page, "**/metrics/recent*", lambda route: route.fulfill(json=answer))
    page.goto("/#/metrics")
    chart = page.locator("section.chart", has=page.get_by_role("heading", name="Throughput"))
    expect(chart).to_contain_text("7 per minute")
    expect(chart).to_contain_text("0 to 7")


def test_the_charts_show_what_the_gateway_remembers(page: Page, stack: Stack) -> None:
    """FLOW-247: figures, lines, the cursor by keyboard, and the table, against `GET /metrics/recent`."""
    for flow in ("resize_images", "charge_cards"):
        stack.until_status(stack.submit(flow, {"scale": 0.1}), "COMPLETED", "FAILED")
    until(lambda: sum(stack.get("/metrics/recent")["failed"]) > 0)
    page.goto("/#/metrics")
    told = stack.get("/metrics/recent")
    failed = page.locator(".figure-failed dd").first
    until(lambda: int(failed.inner_text().strip("–") or 0) >= sum(told["failed"]))
    expect(page.locator(".view-head")).to_contain_text("this gateway")
    expect(page.locator(".figure-workers dd").first).to_have_text("1")
    expect(page.locator(".figure-slots dd").first).to_contain_text("of 4")

    chart = page.locator("section.chart", has=page.get_by_role("heading", name="Run time"))
    chart.get_by_text("As a table").click()
    rows = chart.locator("tbody tr")
    until(lambda: rows.count() >= max(2, len(told["run_p50"])))  # a gateway that was just started has one, for a while
    plot = chart.locator(".chart-plot")
    plot.press("Home")
    plot.press("ArrowRight")
    second = rows.nth(-2)
    assert chart.locator(".chart-when").inner_text() == second.locator("th").inner_text()
    cells = second.locator("td").all_inner_texts()
    assert chart.locator(".chart-legend li > .number").all_inner_texts() == cells
    expect(chart.locator("[aria-live]")).to_contain_text(f"p50 {cells[0]}")
    expect(page.locator(".chart-pointer path")).to_have_count(5)  # in all charts at once
    plot.press("Escape")
    expect(page.locator(".chart-pointer path")).to_have_count(0)
    styles = page.locator(".chart-legend .line").evaluate_all("(all) => all.map((each) => each.classList[1])")
    assert {"solid", "dashed", "dotted"} <= set(styles), "told apart by more than colours"
