"""What fits into the record of a worker of what it knows of its flows (APP-10)."""

from __future__ import annotations

import json
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from pyoco_server.core.flow_announcement import Announcer, announcement_of
from pyoco_server.core.offered_flow import OfferedFlow

SCHEMA = {"type": "object", "properties": {"url": {"type": "string"}}, "required": ["url"]}
MEASURE = OfferedFlow(name="measure", app="reports", doc="Measure a page.", params=SCHEMA, returns={"type": "integer"})

flows = st.lists(
    st.builds(
        OfferedFlow,
        name=st.text(min_size=1, max_size=40),
        app=st.just("reports"),
        doc=st.text(max_size=400),
        params=st.dictionaries(st.text(max_size=20), st.text(max_size=200), max_size=3),
    ),
    max_size=8,
)


def written(flow: OfferedFlow) -> int:
    return len(json.dumps(flow.document(), ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace"))


@given(flows, st.integers(0, 4000))
def test_an_announcement_never_exceeds_its_room(offered: list[OfferedFlow], room: int) -> None:
    """APP-10: docs go first, then schemas; names are left out last, and then it says so."""
    announced = announcement_of(offered, room)
    assert sum(written(flow) + 1 for flow in announced.flows) <= room
    assert [flow.name for flow in announced.flows] == [flow.name for flow in offered[: len(announced.flows)]]
    assert announced.complete == (len(announced.flows) == len(offered))
    lost_schema = any(flow.params != old.params for flow, old in zip(announced.flows, offered, strict=False))
    if lost_schema:
        assert not any(flow.doc for flow in announced.flows)
    if sum(written(flow) + 1 for flow in offered) <= room:
        assert list(announced.flows) == offered


def test_the_longest_doc_goes_first() -> None:
    """APP-10"""
    long, short = replace(MEASURE, name="long", doc="x" * 500), replace(MEASURE, name="short")
    room = written(long) + written(short) - 100
    assert [flow.doc for flow in announcement_of((short, long), room).flows] == [MEASURE.doc, ""]


def test_without_room_for_schemas_a_declared_result_stays_declared() -> None:
    bare = replace(MEASURE, doc="", params={}, returns={})
    assert announcement_of([MEASURE], written(bare) + 1).flows == (bare,)


def test_a_resolver_announces_nothing_and_an_empty_app_everything() -> None:
    """APP-10"""
    announcer = Announcer()
    assert (announcer.of(None).flows, announcer.of(None).complete) == ((), False)
    assert (announcer.of(()).flows, announcer.of(()).complete) == ((), True)


def test_an_announcement_is_made_once_for_each_set_of_flows() -> None:
    announcer, first, second = Announcer(), (MEASURE,), (replace(MEASURE, name="other"),)
    made = announcer.of(first)
    assert announcer.of(first) is made
    assert announcer.of(second).flows == second
