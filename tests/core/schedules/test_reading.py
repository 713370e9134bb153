"""Schedules as their authors write them: read with all problems at once, in both languages."""

from __future__ import annotations

import time
from typing import Any

import pytest

from pyoco_server.core.schedules.reading import read_schedule
from pyoco_server.core.schedules.record import Definition
from pyoco_server.core.schedules.templates import TemplateContext, render
from pyoco_server.core.schedules.what import Offer, Ticket, flow_ask, job_ask
from pyoco_server.core.schedules.zones import zone_of
from pyoco_server.errors import InvalidSchedule, Problem, TriedOnce

NOW = 1_795_000_000.0
FULL: dict[str, Any] = {
    "name": "nightly",
    "what": {
        "kind": "flow",
        "flow_name": "report",
        "params": {"day": "{{ scheduled_time.date }}"},
        "tag": "default",
        "tags": ["nightly"],
    },
    "when": {"cron": "0 6 * * *"},
    "timezone": "Asia/Tokyo",
    "start_at": None,
    "end_at": None,
    "jitter": 0,
    "overlap": "skip",
    "catch_up": {"policy": "last", "window": 86400},
    "paused": False,
    "pause_reason": None,
    "labels": [],
    "notify": [],
}


def read(**more: Any) -> Definition:
    return read_schedule(FULL | more, NOW, Offer())


def problems(**more: Any) -> list[Problem]:
    with pytest.raises(InvalidSchedule) as refused:
        read(**more)
    return list(refused.value.problems)


def test_the_complete_shape_and_its_defaults() -> None:
    """SCHED-1 to SCHED-8"""
    assert read() == read_schedule({name: FULL[name] for name in ("name", "what", "when", "timezone")}, NOW, Offer())
    assert read(when={"every": "1h30m", "offset": "10m"}).when == {"every": 5400, "offset": 600}
    assert read(when={"cron": "@every 15m"}).when["seconds"] == 900
    at = read(when={"at": ["2026-12-01T09:00:00", 1796000400, "2026-12-01T09:00:00+09:00"]})
    assert at.when == {"at": [1796000400, 1796083200]}
    assert read(start_at="2026-12-01T09:00", jitter="10m").start_at == 1796083200
    exec_what = {"kind": "exec", "exec_name": "tool", "args": ["{{ scheduled_time.unix }}"], "timeout_sec": 5}
    assert read(what=exec_what).what == exec_what


def test_a_policy_is_stored_with_all_members_and_given_to_each_submission() -> None:
    """SCHED-2, RETRY-12: what was stored can be sent back, and null stays null: no retry."""
    flow = read(what={"kind": "flow", "flow_name": "f", "retry": {"tries": 3, "delay": "2s"}, "timeout": "5m"}).what
    assert (flow["retry"]["delay"], flow["retry"]["max_delay"], flow["timeout"]) == (2.0, 60.0, 300.0)
    assert read(what=flow).what == flow
    ticket = Ticket(context=TemplateContext(zone_of("UTC"), 60, lambda: None, "n", "r"), mark={})
    ask = flow_ask(flow, ticket, "default")
    assert (ask.retry, ask.timeout) == (flow["retry"], 300.0)
    linear = {"tries": 2, "backoff": "linear"}
    program = read(what={"kind": "exec", "exec_name": "t", "retry": linear, "timeout": "90s"}).what
    assert read(what=program).what == program
    job = job_ask(program, ticket, "j", "default", None)
    assert (job.retry, job.timeout_sec) == (program["retry"], 90.0)
    none = read(what={"kind": "flow", "flow_name": "f", "retry": None, "timeout": None}).what
    assert none == {"kind": "flow", "flow_name": "f", "retry": None}
    assert flow_ask(none, ticket, "default").retry == {}
    assert flow_ask({"flow_name": "f"}, ticket, "default").retry is None


def test_a_pack_is_executed_once() -> None:
    """RETRY-19: each member has its place; beside other problems they are problems of the schedule."""
    what: dict[str, Any] = {
        "kind": "pack",
        "pack_type": "ocr",
        "inputs": {},
        "reservation": {},
        "retry": None,
        "timeout": "5m",
    }
    with pytest.raises(TriedOnce) as refused:
        read(what=what)
    assert [each.loc for each in refused.value.problems] == [("body", "what", "retry"), ("body", "what", "timeout")]
    assert {("body", "name"), ("body", "what", "retry")} <= {each.loc for each in problems(what=what, name="preview")}


def test_every_problem_is_named_at_once_in_both_languages() -> None:
    """SCHED-31"""
    found = problems(
        name="preview",
        what={"kind": "flow", "flow_name": "", "params": {"a": ["{{ today }}"]}, "delay": 5},
        when={"cron": "0 6 * * MON-FRY"},
        timezone="Asia/Tokio",
        jitter="2h",
        overlap="never",
        catch_up={"policy": "some", "window": "31d"},
        labels="x",
        notfy=[],
        notify=["hook"],
    )
    places = {each.loc for each in found}
    assert places == {
        ("body", *rest)
        for rest in (
            ("name",),
            ("what", "flow_name"),
            ("what", "params", "a", 0),
            ("what", "delay"),
            ("when", "cron"),
            ("timezone",),
            ("jitter",),
            ("overlap",),
            ("catch_up", "policy"),
            ("catch_up", "window"),
            ("labels",),
            ("notfy",),
            ("notify",),
        )
    }
    assert all(each.msg_ja for each in found)
    (cron,) = (each for each in found if each.loc[-1] == "cron")
    assert (cron.field, cron.position) == ("day-of-week", 12)
    assert next(each for each in found if each.loc[-1] == "notfy").nearest == "notify"


@pytest.mark.parametrize(
    ("more", "place"),
    [
        ({"when": {}}, ("when",)),
        ({"when": {"cron": "0 6 * * *", "every": 60}}, ("when",)),
        ({"when": {"every": 0.5}}, ("when", "every")),
        ({"when": {"every": 1.5}}, ("when", "every")),
        ({"when": {"every": "367d"}}, ("when", "every")),
        ({"when": {"at": []}}, ("when", "at")),
        ({"when": {"at": ["soon"]}}, ("when", "at", 0)),
        ({"when": {"cron": "0 0 31 2 *"}}, ("when", "cron")),
        ({"when": {"cron": "@every 1.5s"}}, ("when", "cron")),
        ({"start_at": 100, "end_at": 100}, ("end_at",)),
        ({"timezone": "Mars/Base"}, ("timezone",)),
        ({"timezone": "right/Asia/Tokyo"}, ("timezone",)),
        ({"timezone": "localtime"}, ("timezone",)),
        ({"timezone": 5}, ("timezone",)),
        ({"what": None}, ("what",)),
        ({"what": {"kind": "cake"}}, ("what", "kind")),
        ({"what": {"kind": "flow", "flow_name": "f", "params": {"a": "{{ x"}}}, ("what", "params", "a")),
        ({"what": {"kind": "exec", "exec_name": "-rm"}}, ("what", "exec_name")),
        ({"what": {"kind": "exec", "exec_name": "t", "timeout_sec": 0}}, ("what", "timeout_sec")),
        ({"what": {"kind": "exec", "exec_name": "t", "files": []}}, ("what", "files")),
        ({"what": {"kind": "exec", "exec_name": "t", "timeout": "2d"}}, ("what", "timeout")),
        ({"what": {"kind": "exec", "exec_name": "t", "timeout": 5, "timeout_sec": 5}}, ("what", "timeout")),
        ({"what": {"kind": "flow", "flow_name": "f", "timeout": "8d"}}, ("what", "timeout")),
        ({"what": {"kind": "flow", "flow_name": "f", "timeout_sec": 5}}, ("what", "timeout_sec")),
        ({"what": {"kind": "flow", "flow_name": "f", "retry": "3 times"}}, ("what", "retry")),
        ({"what": {"kind": "flow", "flow_name": "f", "retry": {}}}, ("what", "retry", "tries")),
        ({"what": {"kind": "flow", "flow_name": "f", "retry": {"tries": 3, "x": 1}}}, ("what", "retry", "x")),
        (
            {"what": {"kind": "exec", "exec_name": "t", "retry": {"tries": 3, "retry_on": ["*", "exit:x"]}}},
            ("what", "retry", "retry_on", 1),
        ),
        ({"what": {"kind": "pack", "pack_type": "ocr", "inputs": {}, "reservation": {}}}, ("what", "kind")),
    ],
)
def test_one_problem_has_its_place(more: dict[str, Any], place: tuple[str | int, ...]) -> None:
    """SCHED-2, SCHED-3, SCHED-10, SCHED-11, SCHED-15"""
    assert [each.loc for each in problems(**more)] == [("body", *place)]


def test_a_pack_cannot_cancel_the_run_before_it() -> None:
    """SCHED-7"""
    what = {"kind": "pack", "pack_type": "ocr", "inputs": {}, "reservation": {}}
    assert ("body", "overlap") in [each.loc for each in problems(what=what, overlap="cancel_old")]


def test_templates() -> None:
    """SCHED-15"""
    context = TemplateContext(zone_of("Asia/Tokyo"), 1796101200, lambda: None, "nightly", "r1")
    values = {
        "{{ scheduled_time }}": "2026-12-01T14:00:00+09:00",
        "{{scheduled_time.utc}}": "2026-12-01T05:00:00Z",
        "{{ scheduled_time.date }} {{ scheduled_time.time }}": "2026-12-01 14:00:00",
        "{{ scheduled_time.unix }}": 1796101200,
        "at {{ scheduled_time.unix }}": "at 1796101200",
        "{{ previous_time }}": None,
        "{{ previous_time.unix }}": None,
        "{{ schedule_name }}/{{ run_id }}": "nightly/r1",
        "\\{{ x }}": "{{ x }}",
    }
    assert render({"all": list(values)}, context) == {"all": list(values.values())}


@pytest.mark.parametrize("text", ["{{" * 50_000, "{{ scheduled_time." * 7_000, "{{ x }}" * 10_000])
def test_many_bad_templates_are_refused_at_once_and_in_a_short_answer(text: str) -> None:
    """SCHED-15: in time linear in the length of the text"""
    started = time.process_time()
    found = problems(what={"kind": "flow", "flow_name": "report", "params": {"a": text}})
    assert time.process_time() - started < 1.0
    assert {(each.loc, each.type) for each in found} == {(("body", "what", "params", "a"), "template")}
    assert len(found) == 100
