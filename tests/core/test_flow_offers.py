"""Which flows live workers offer together, and which submissions cannot succeed (APP-11, APP-12)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from contracts.registry import a_worker
from pyoco_server.core.flow_offers import Wanted, find_offer, judge_name, nearest_name, offers_of
from pyoco_server.core.offered_flow import OfferedFlow
from pyoco_server.core.states import WorkerState
from pyoco_server.core.worker_record import FLOWS, PACKS, WorkerRecord

NOW = 1000.0
SILENCE = 20.0
SCHEMA = {"type": "object", "properties": {"url": {"type": "string"}}, "additionalProperties": False}
OTHER_SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "additionalProperties": False}
MEASURE = OfferedFlow(name="measure", app="reports", doc="Measure the size of a page.", params=SCHEMA)


def worker(
    worker_id: str, *names: str, tags: tuple[str, ...] = ("a",), age: float = 0.0, **more: object
) -> WorkerRecord:
    """One that serves an app with these flows."""
    flows = tuple(replace(MEASURE, name=name) for name in names)
    given = {"flows": flows, "flows_complete": True, "last_seen_at": NOW - age, "tags": tags, **more}
    return a_worker(worker_id, **given)


RESOLVER = worker("resolver", flows_complete=False)
APP = worker("app", "measure", "report")
GONE = worker("gone", age=SILENCE + 1, flows_complete=False)


@pytest.mark.parametrize(
    ("workers", "name", "verdict"),
    [
        ([], "x", None),
        ([RESOLVER], "x", None),
        ([APP], "measure", None),
        ([APP], "x", "refused"),
        ([APP], "Measure", "refused"),
        ([APP, GONE], "x", "refused"),
        ([APP, RESOLVER], "x", "warning"),
        ([APP, RESOLVER], "report", None),
        ([replace(APP, flows_complete=False)], "x", "warning"),
        ([worker("empty")], "x", "refused"),
        ([replace(APP, state=WorkerState.STOPPED_GRACEFUL), RESOLVER], "x", None),
        ([worker("late", "x", age=SILENCE + 1), APP], "x", "refused"),
        ([worker("b", "x", tags=("b",)), APP], "x", "refused"),
        ([worker("b", "x", tags=("b",)), RESOLVER], "y", None),
        ([worker("b", "x", tags=("b",))], "x", None),
        ([worker("b", "x", tags=("b",))], "y", "warning"),
        ([APP, worker("programs", flows_complete=False, kind="exec-native")], "x", "refused"),
        ([APP, worker("packs", flows_complete=False, lanes={PACKS: {"slots": 1, "busy": 0}})], "x", "refused"),
        ([APP, worker("flows", flows_complete=False, lanes={FLOWS: {"slots": 1, "busy": 0}})], "x", "warning"),
        ([APP, worker("second", "x")], "x", None),
        ([replace(APP, hidden=True)], "x", "refused"),
    ],
)
def test_a_name_is_refused_only_if_no_worker_of_its_tag_can_know_it(
    workers: list[WorkerRecord], name: str, verdict: str | None
) -> None:
    """APP-12: every live worker that takes flows of the tag tells all of its flows, and none is this one."""
    finding = judge_name(name, "a", workers, NOW, SILENCE)
    assert (finding and ("refused" if finding.refused else "warning")) == verdict


def test_a_finding_names_the_nearest_flow_and_cuts_long_names() -> None:
    """APP-12"""
    found = judge_name("measur", "a", [APP], NOW, SILENCE)
    assert found is not None
    assert found.message == "no live worker with the tag a announces a flow measur; did you mean measure?"
    none = judge_name("x" * 512, "a", [worker("empty")], NOW, SILENCE)
    assert none is not None
    assert none.message.endswith(f"flow {'x' * 128}; no flow is offered there")


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("report", "report"), ("REPORTS", "report"), ("measre", "measure"), ("mesaure", "measure"), ("zzz", "fetch-all")],
)
def test_the_nearest_name_is_the_one_with_most_letters_in_common(name: str, nearest: str) -> None:
    """APP-12"""
    assert nearest_name(name, {"measure", "report", "fetch-all"}) == nearest
    assert nearest_name(name, ()) is None


def test_flows_are_listed_by_name_with_all_who_offer_them() -> None:
    """APP-11"""
    tagged = replace(MEASURE, name="tagged", tags=("gpu",))
    workers = [worker("w2", "measure", tags=("b", "a")), worker("w1", flows=(MEASURE, tagged), tags=("a", "gpu"))]
    offers = offers_of(workers, Wanted(), "b")
    assert [(each.flow.name, each.workers, each.tag) for each in offers] == [
        ("measure", ("w1", "w2"), "b"),
        ("tagged", ("w1",), "gpu"),
    ]
    assert not any(each.conflict for each in offers)
    assert [each.tag for each in offers_of(workers, Wanted(), "nobody")] == ["a", "gpu"]
    unserved = worker("w", flows=(replace(tagged, tags=("nobody", "x")),))
    assert [each.tag for each in offers_of([unserved], Wanted(), "b")] == ["a"]


def test_different_signatures_are_a_conflict_and_a_dropped_one_is_not() -> None:
    """APP-11"""
    old, dropped = replace(MEASURE, params=OTHER_SCHEMA), replace(MEASURE, params={}, doc="")
    both = find_offer([worker("w1", flows=(MEASURE,)), worker("w2", flows=(old,))], "measure", "a")
    assert both is not None
    assert (both.conflict, both.flow) == (True, MEASURE)
    short = find_offer([worker("w1", flows=(dropped,)), worker("w2", flows=(MEASURE,))], "measure", "a")
    assert short is not None
    assert (short.conflict, short.flow, short.workers) == (False, MEASURE, ("w1", "w2"))
    assert find_offer([APP], "nothing", "a") is None


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        (Wanted(tag="a"), ["measure", "report"]),
        (Wanted(tag="b"), ["other"]),
        (Wanted(tag="c"), []),
        (Wanted(words=("page", "reports")), ["measure", "other", "report"]),
        (Wanted(words=("port", "another")), ["other"]),
        (Wanted(tag="b", words=("meas",)), []),
    ],
)
def test_the_list_is_narrowed_down_by_tag_and_words(wanted: Wanted, names: list[str]) -> None:
    """APP-11"""
    plain = worker("w2", flows=(replace(MEASURE, name="other", doc="Another page."),), tags=("b",))
    assert [each.flow.name for each in offers_of([APP, plain], wanted, "a")] == names
