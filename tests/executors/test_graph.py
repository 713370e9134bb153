"""What follows what in a flow, as it is shown."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest
from pyoco import Flow, task
from pyoco.core.engine import Engine
from pyoco.core.models import RunContext, Task
from pyoco.dsl.graph import build_flow_from_graph
from pyoco.dsl.nodes import CaseNode, SubFlowNode, SwitchNode, TaskNode
from pyoco.dsl.syntax import FlowFragment

from pyoco_server.core.outcome import GRAPH_BYTES_MAX as BYTES_MAX
from pyoco_server.core.outcome import GRAPH_TASKS_MAX as TASKS_MAX
from pyoco_server.executors.flow.engine import SILENCE
from pyoco_server.executors.flow.graph import graph_of


def step(name: str) -> Task:
    return Task(func=lambda: None, name=name)


def a_flow(*waits: tuple[str, str]) -> Flow:
    """Pairs: this one, and one that it waits for."""
    tasks = {name: step(name) for pair in waits for name in pair}
    for name, other in waits:
        tasks[name].dependencies.add(tasks[other])
    return Flow(name="f", tasks=set(tasks.values()))


def from_file(graph: str) -> Flow:
    return build_flow_from_graph(graph=graph, tasks={name: step(name) for name in "abcdef"})


def test_a_chain_is_shown_as_a_chain() -> None:
    assert graph_of(from_file("c >> a >> b")) == {"a": ("c",), "b": ("a",), "c": ()}


def test_branches_and_joins_are_shown() -> None:
    flow = a_flow(("b", "a"), ("c", "a"), ("d", "b"), ("d", "c"))
    assert graph_of(flow) == {"a": (), "b": ("a",), "c": ("a",), "d": ("b", "c")}


def test_an_order_that_the_engine_does_not_keep_is_the_same_each_time() -> None:
    names = [f"t{number}" for number in range(40)]
    flow = a_flow(*((name, "first") for name in names), *(("last", name) for name in names))
    graph = graph_of(flow)
    assert list(graph) == sorted(["first", "last", *names])
    assert graph["last"] == tuple(sorted(names))


def test_what_a_shared_task_waits_for_in_another_flow_is_not_shown() -> None:
    shared = task(second)
    Flow(name="other") >> task(first) >> shared
    assert graph_of(Flow(name="f") >> shared) == {"second": ()}


PROGRAMS: list[tuple[str, str, dict[str, tuple[str, ...]]]] = [
    ("repeat", "a >> repeat(count=2){ b >> c } >> d", {"a": (), "b": ("a",), "c": ("b",), "d": ("c",)}),
    ("foreach", "foreach(over=items, item=x){ a >> b } >> c", {"a": (), "b": ("a",), "c": ("b",)}),
    ("until", 'a >> until(cond="params.done"){ b } >> c', {"a": (), "b": ("a",), "c": ("b",)}),
    (
        "switch",
        "a >> switch(on=kind){ x: b >> c; default: d } >> e",
        {"a": (), "b": ("a",), "c": ("b",), "d": ("a",), "e": ("c", "d")},
    ),
    (
        "nested",
        "repeat(count=2){ a >> switch(on=kind){ x: repeat(count=2){ b }; default: c } } >> d",
        {"a": (), "b": ("a",), "c": ("a",), "d": ("b", "c")},
    ),
]


@pytest.mark.parametrize(("text", "graph"), [row[1:] for row in PROGRAMS], ids=[row[0] for row in PROGRAMS])
def test_a_program_shows_what_follows_what(text: str, graph: dict[str, tuple[str, ...]]) -> None:
    flow = from_file(text)
    assert flow.has_control_flow()
    assert graph_of(flow) == graph
    assert list(graph_of(flow)) == list(graph)  # as it is read


@pytest.mark.parametrize("text", ["a >> b >> c", *(row[1] for row in PROGRAMS)])
def test_the_names_are_those_that_the_run_has(text: str) -> None:
    """Once round a loop or ten times: the engine knows a task by one name, and the branch not taken, too."""
    flow, context = from_file(text), RunContext()
    params = {"items": [1, 2], "kind": "x", "done": True}
    Engine(trace_backend=SILENCE).run(flow, params=params, run_context=context)
    assert context.tasks.keys() == context.task_records.keys() == graph_of(flow).keys()


def test_a_task_that_stands_twice_in_a_program_makes_no_circle() -> None:
    a, b, c = (cast(FlowFragment, task(each)) for each in (first, second, third))
    assert graph_of(Flow(name="f") >> (a >> b)[2] >> a >> c) == {"first": (), "second": ("first",), "third": ("first",)}


def first() -> None: ...
def second() -> None: ...
def third() -> None: ...


def test_a_task_beside_the_program_is_shown_alone() -> None:
    """The engine never begins it, but knows it."""
    flow = from_file("repeat(count=1){ b }")
    flow.add_task(step("a"))
    assert graph_of(flow) == {"b": (), "a": ()}


def wide(tasks: int, name_length: int = 1) -> Flow:
    return Flow(name="f", tasks={step(f"{number:0{name_length}}") for number in range(tasks)})


def test_a_graph_of_too_many_tasks_is_not_shown() -> None:
    assert len(graph_of(wide(TASKS_MAX))) == TASKS_MAX == 500
    assert graph_of(wide(TASKS_MAX + 1)) == {}


def test_a_graph_of_too_many_bytes_is_not_shown() -> None:
    fits = graph_of(wide(100, 157))
    size = len(json.dumps(fits, separators=(",", ":")))
    assert 0.99 * BYTES_MAX < size <= BYTES_MAX == 16_384
    assert graph_of(wide(100, 158)) == {}
    assert graph_of(Flow(name="f", tasks={step("あ" * 5500)})) == {}  # bytes, not characters


def test_a_thicket_of_edges_is_given_up_early() -> None:
    some, others = ([f"{letter}{number}" for number in range(240)] for letter in "ab")
    assert graph_of(a_flow(*((name, other) for name in some for other in others))) == {}


def shared_branches(number: int) -> Flow:
    """Both ways of each branch lead to the same next one: the ways through it double with each."""
    tasks = [step(f"t{place}") for place in range(number)]
    program = SubFlowNode([TaskNode(step("end"))])
    for each in tasks:
        both = [CaseNode(way, program) for way in "ab"]
        program = SubFlowNode([TaskNode(each), SwitchNode("x", both)])
    flow = Flow(name="f", tasks=set(tasks), _has_control_flow=True)
    flow.build_program = lambda: program  # as a user's own flow may
    return flow


def test_a_program_with_too_many_ways_through_it_is_given_up() -> None:
    assert len(graph_of(shared_branches(8))) == 9
    assert graph_of(shared_branches(14)) == {}
    assert graph_of(shared_branches(60)) == {}  # a year, if they were walked


@pytest.mark.parametrize(
    "flow",
    [
        None,
        Flow(name="f", tasks={Task(func=print, name=cast(Any, 5))}),
        Flow(name="f", _has_control_flow=True, _definition=[5]),
    ],
    ids=["none", "a number for a name", "no program"],
)
def test_what_is_no_flow_as_we_know_it_has_no_graph(flow: Any) -> None:
    assert graph_of(flow) == {}
