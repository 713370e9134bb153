"""Where boxes, lines and bars of a run go: the modules alone, without a run."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
from playwright.sync_api import Page

SIZE = {"width": 100, "height": 20, "gapX": 30, "gapY": 10}


def lay_out(page: Page, graph: dict[str, Any], more: list[str] | None = None) -> dict[str, Any]:
    script = "([graph, more, size]) => import('/static/lib/dag.js').then((m) => m.layOut(graph, more, size))"
    laid: dict[str, Any] = page.evaluate(script, [graph, more or [], SIZE])
    return laid


def boxes_of(laid: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {box["name"]: box for box in laid["boxes"]}


def test_a_task_stands_behind_all_it_waits_for_and_boxes_do_not_touch(module_page: Page) -> None:
    draw = random.Random(7)
    names = [f"t{number}" for number in range(60)]
    graph = {
        name: draw.sample(names[max(0, at - 15) : at], min(at, draw.choice((0, 1, 2)))) for at, name in enumerate(names)
    }
    laid = lay_out(module_page, graph)
    boxes = boxes_of(laid)
    assert boxes.keys() == graph.keys()
    assert {(line["from"], line["to"]) for line in laid["lines"]} == {(a, b) for b, some in graph.items() for a in some}
    for name, some in graph.items():
        assert boxes[name]["layer"] == max((boxes[each]["layer"] + 1 for each in some), default=0)
    columns = itertools.groupby(sorted(boxes.values(), key=lambda box: (box["x"], box["y"])), key=lambda box: box["x"])
    for _, column in columns:
        for above, below in itertools.pairwise(column):
            assert below["y"] - above["y"] >= SIZE["height"] + SIZE["gapY"] - 0.01
    assert min(box["y"] for box in boxes.values()) >= 0
    assert max(box["y"] + SIZE["height"] for box in boxes.values()) <= laid["height"] + 0.01


def test_lines_that_need_not_cross_do_not(module_page: Page) -> None:
    """Two chains, told in the order in which they would cross."""
    boxes = boxes_of(lay_out(module_page, {"a": [], "b": [], "to_b": ["b"], "to_a": ["a"]}))
    assert (boxes["a"]["y"] < boxes["b"]["y"]) == (boxes["to_a"]["y"] < boxes["to_b"]["y"])
    assert boxes["a"]["y"] == pytest.approx(boxes["to_a"]["y"])


def test_a_line_that_passes_a_layer_goes_around_its_boxes(module_page: Page) -> None:
    laid = lay_out(module_page, {"a": [], "b": ["a"], "c": ["a", "b"]})
    [path] = [line["path"] for line in laid["lines"] if (line["from"], line["to"]) == ("a", "c")]
    middle = boxes_of(laid)["b"]
    passes = float(path.split("H")[0].split(" ")[-1])
    assert not middle["y"] <= passes <= middle["y"] + SIZE["height"]


@pytest.mark.parametrize(
    ("graph", "more", "names"),
    [
        ({}, [], set()),
        ({}, ["alone"], {"alone"}),
        ({"a": ["b"], "b": ["a"]}, [], {"a", "b"}),
        ({"a": ["a", "ghost", "ghost"]}, ["late"], {"a", "ghost", "late"}),
        ({"a": None, "b": [1, "a"], "constructor": ["b"]}, [], {"a", "b", "constructor"}),
    ],
)
def test_an_odd_graph_is_drawn_all_the_same(
    module_page: Page, graph: dict[str, Any], more: list[str], names: set[str]
) -> None:
    """Cycles, undeclared names, odd values: every task has its box, once."""
    laid = lay_out(module_page, graph, more)
    assert sorted(box["name"] for box in laid["boxes"]) == sorted(names)
    assert all(box["x"] >= 0 and box["y"] >= 0 for box in laid["boxes"])


def test_five_hundred_tasks_are_laid_out_at_once(module_page: Page) -> None:
    """As many as there may be, with lines across all layers."""
    names = [f"t{number}" for number in range(500)]
    graph = {name: [names[at - 1], *names[: at : max(1, at // 6)]] if at else [] for at, name in enumerate(names)}
    script = """(graph) => import('/static/lib/dag.js').then((m) => {
      const began = performance.now();
      return [m.layOut(graph).boxes.length, performance.now() - began];
    })"""
    count, took_ms = module_page.evaluate(script, graph)
    assert count == 500
    assert took_ms < 60_000, "a hundredth of it on a machine that does nothing else"


def chart(page: Page, run: dict[str, Any]) -> dict[str, Any]:
    drawn: dict[str, Any] = page.evaluate("(run) => import('/static/lib/gantt.js').then((m) => m.chartOf(run))", run)
    return drawn


def test_bars_have_no_negative_length_and_ended_ones_do_not_grow(module_page: Page) -> None:
    """Clocks that went back, times that are missing, tasks that say they are done and not when. CLI-17"""
    records = {
        "back": {"started_at": 108, "ended_at": 104, "duration_ms": 5},
        "told": {"started_at": 102, "ended_at": None, "duration_ms": 1500},
        "cut": {"started_at": 109, "ended_at": None},
        "text": {"started_at": "yesterday"},
        "null": None,
    }
    run = {
        "status": "FAILED",
        "submitted_at": 90,
        "start_time": 100,
        "end_time": 110,
        "attempt_id": "a",
        "tasks": {"done": "SUCCEEDED", "cut": "RUNNING", "never": "PENDING"},
        "task_records": records,
    }
    drawn = chart(module_page, run)
    assert (drawn["queued"], drawn["present"]) == ({"from": 90, "to": 100}, {"from": 100, "to": 110})
    bars = {bar["name"]: bar for bar in drawn["tasks"]}
    assert [bar["name"] for bar in drawn["tasks"]][:3] == ["told", "back", "cut"]
    assert (bars["back"]["from"], bars["back"]["to"]) == (108, 108)
    assert (bars["told"]["to"], bars["cut"]["to"]) == (103.5, 110)
    assert bars["text"]["from"] is bars["null"]["from"] is bars["done"]["from"] is None
    assert (bars["never"]["waitsFrom"], bars["never"]["waitsTo"]) == (100, 110)
    assert bars["done"]["waitsFrom"] is None
    assert (bars["never"]["state"], bars["cut"]["state"]) == ("NOT_RUN", "RUNNING")


def test_a_run_that_was_handed_back_has_no_present_attempt(module_page: Page) -> None:
    past = [{"attempt": 1, "worker_id": "w", "started_at": 100, "ended_at": 105, "why": "handed_back"}, {"attempt": 2}]
    run = {"status": "RUNNING", "submitted_at": 90, "start_time": 100, "earlier_attempts": past, "attempt": 1}
    drawn = chart(module_page, run)
    assert drawn["present"] is None
    assert [(bar["from"], bar["to"]) for bar in drawn["past"]] == [(100, 105)]
    assert drawn["queued"] == {"from": 90, "to": 100}


def test_a_long_wait_is_left_out_unless_it_is_asked_for(module_page: Page) -> None:
    run = {"status": "COMPLETED", "submitted_at": 1000, "start_time": 9000, "end_time": 9010, "attempt_id": "a"}
    script = """([run, whole]) => import('/static/lib/gantt.js').then((m) => m.domainOf(m.chartOf(run), 9999, whole))"""
    by_itself, asked = (module_page.evaluate(script, [run, whole]) for whole in (None, True))
    assert (by_itself["from"], by_itself["to"], by_itself["cut"]) == (9000, 9010, True)
    assert (asked["from"], asked["cut"], asked["live"]) == (1000, False, False)


def test_marks_of_the_axis_are_round_and_few(module_page: Page) -> None:
    script = "(asked) => import('/static/lib/gantt.js').then((m) => asked.map((each) => m.ticksOf(...each)))"
    asked = [[0, 10, 5], [-30, 60, 6], [0, 0.012, 4], [0, 9 * 86400, 4], [0, 0, 5], [0, 1e9, 3]]
    marks = module_page.evaluate(script, asked)
    assert marks[0] == [0, 2, 4, 6, 8, 10]
    assert marks[1] == [-30, -15, 0, 15, 30, 45, 60]
    assert marks[2] == pytest.approx([0, 0.005, 0.01])
    assert marks[3] == [0, 3 * 86400, 6 * 86400, 9 * 86400]
    assert marks[4] == [0]
    assert len(marks[5]) <= 4


def test_no_two_marks_of_an_axis_have_the_same_label(module_page: Page) -> None:
    script = """async (lengths) => {
      const gantt = await import('/static/lib/gantt.js');
      const format = await import('/static/lib/format.js');
      return lengths.map((length) => {
        const marks = gantt.ticksOf(0, length, 6);
        return marks.map((at) => format.markText(at, marks[1] - marks[0], Math.max(...marks)));
      });
    }"""
    lengths = [factor * 10**power for power in range(-5, 6) for factor in (1, 1.7, 2.4, 3.9, 6.6)]
    drawn: list[list[str]] = module_page.evaluate(script, lengths)
    for length, labels in zip(lengths, drawn, strict=True):
        assert len(set(labels)) == len(labels) > 2, (length, labels)
    assert module_page.evaluate(script, [0.0008, 0.02, 4])[0] == ["0 µs", "200 µs", "400 µs", "600 µs", "800 µs"]


def test_short_spans_are_told_in_microseconds(module_page: Page) -> None:
    script = "(all) => import('/static/lib/format.js').then((m) => all.map((each) => m.span(each)))"
    assert module_page.evaluate(script, [0, 0.00025, 0.0009996, 0.0123, 2.5]) == [
        "0 ms", "250 µs", "1 ms", "12 ms", "2.5 s",
    ]  # fmt: skip
