"""What a flow.yaml may say, asked of values that are parsed already."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from datetime import UTC, date, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyoco_server.core.flow_file import PROBLEMS_MAX, FlowFile, TaskSpec, check_flow
from pyoco_server.core.strict_json import DEPTH_MAX
from pyoco_server.errors import InvalidFlow, Problem

GOOD: dict[str, Any] = {"flow": {"graph": "a >> b"}}


def check(document: object) -> FlowFile:
    return check_flow(document, b"text")


def problems_of(document: object) -> tuple[Problem, ...]:
    with pytest.raises(InvalidFlow) as caught:
        check(document)
    assert caught.value.problems
    return caught.value.problems


def the_problem_of(document: object) -> Problem:
    (problem,) = problems_of(document)
    return problem


def with_defaults(defaults: object) -> dict[str, Any]:
    return {"flow": {"graph": "a", "defaults": defaults}}


def test_the_example_of_the_contract_is_accepted() -> None:
    """FLOW-161, FLOW-163, FLOW-171"""
    flow = check(
        {
            "version": 1,
            "tasks": {
                "prepare": {"use": "demo/prepare"},
                "finish": {"callable": "m.tasks:finish", "inputs": {"data": "$node.prepare.output"}, "outputs": ["x"]},
            },
            "flow": {"defaults": {"mode": "batch"}, "graph": "prepare >> finish\n"},
            "pipes": {"p": "a >> b"},
            "runtime": {"expose_env": ["HOME"]},
        }
    )
    assert (flow.graph, flow.defaults, flow.pipes) == ("prepare >> finish\n", {"mode": "batch"}, {"p": "a >> b"})
    assert flow.tasks["prepare"] == TaskSpec(use="demo/prepare")
    assert flow.tasks["finish"] == TaskSpec(
        callable="m.tasks:finish", inputs={"data": "$node.prepare.output"}, outputs=("x",)
    )
    assert flow.expose_env == ("HOME",)


def test_a_file_is_known_by_its_bytes() -> None:
    """FLOW-173"""
    data = "flow: ü".encode()
    flow = check_flow(GOOD, data)
    assert (flow.sha256, flow.size, flow.text) == (hashlib.sha256(data).hexdigest(), 8, "flow: ü")


@pytest.mark.parametrize("flow", [{"graph": "a"}, {"graph": "a", "defaults": None}, {"graph": "a", "defaults": {}}])
def test_absent_or_null_defaults_count_as_none(flow: dict[str, Any]) -> None:
    """FLOW-171"""
    assert check({"flow": flow}).defaults == {}


REFUSED: list[tuple[str, object, tuple[str | int, ...], str]] = [
    ("FLOW-165", None, (), "mapping_type"),
    ("FLOW-165", [], (), "mapping_type"),
    ("FLOW-165", "text", (), "mapping_type"),
    ("FLOW-164", {}, ("flow",), "missing"),
    ("FLOW-162", GOOD | {"flows": {}}, ("flows",), "forbidden_key"),
    ("FLOW-162", GOOD | {"discovery": {}}, ("discovery",), "forbidden_key"),
    ("FLOW-163", GOOD | {"nmae": "x"}, ("nmae",), "unknown_key"),
    ("FLOW-163", GOOD | {True: "x"}, (), "key_type"),
    ("FLOW-163", {"flow": {"graph": "a", "name": "x"}}, ("flow", "name"), "unknown_key"),
    ("FLOW-163", GOOD | {"tasks": {"t": {"retries": 3}}}, ("tasks", "t", "retries"), "unknown_key"),
    ("FLOW-163", GOOD | {"runtime": {"env": []}}, ("runtime", "env"), "unknown_key"),
    ("FLOW-164", {"flow": {}}, ("flow", "graph"), "missing"),
    ("FLOW-164", {"flow": {"graph": ""}}, ("flow", "graph"), "graph_type"),
    ("FLOW-164", {"flow": {"graph": " \n"}}, ("flow", "graph"), "graph_type"),
    ("FLOW-164", {"flow": {"graph": None}}, ("flow", "graph"), "graph_type"),
    ("FLOW-164", {"flow": {"graph": ["a"]}}, ("flow", "graph"), "graph_type"),
    ("FLOW-165", {"flow": None}, ("flow",), "mapping_type"),
    ("FLOW-165", {"flow": "a >> b"}, ("flow",), "mapping_type"),
    ("FLOW-165", with_defaults([]), ("flow", "defaults"), "mapping_type"),
    ("FLOW-165", GOOD | {"tasks": None}, ("tasks",), "mapping_type"),
    ("FLOW-165", GOOD | {"tasks": ["a"]}, ("tasks",), "mapping_type"),
    ("FLOW-165", GOOD | {"tasks": {"t": None}}, ("tasks", "t"), "mapping_type"),
    ("FLOW-165", GOOD | {"tasks": {1: {}}}, ("tasks",), "key_type"),
    ("FLOW-165", GOOD | {"tasks": {"t": {"callable": "a:b", "use": "c"}}}, ("tasks", "t"), "callable_and_use"),
    ("FLOW-165", GOOD | {"tasks": {"t": {"callable": 1}}}, ("tasks", "t", "callable"), "text_type"),
    ("FLOW-165", GOOD | {"tasks": {"t": {"use": ""}}}, ("tasks", "t", "use"), "text_type"),
    ("FLOW-165", GOOD | {"tasks": {"t": {"inputs": []}}}, ("tasks", "t", "inputs"), "mapping_type"),
    ("FLOW-165", GOOD | {"tasks": {"t": {"inputs": {1: 2}}}}, ("tasks", "t", "inputs"), "key_type"),
    ("FLOW-165", GOOD | {"tasks": {"t": {"inputs": {"a": "$node.t.output.__class__"}}}},
     ("tasks", "t", "inputs", "a"), "reference"),
    ("FLOW-164", {"flow": {"graph": "repeat(count={{ loop.__init__ }}){ a }"}}, ("flow", "graph"), "reference"),
    ("FLOW-165", GOOD | {"pipes": {"p": "until(cond={{ $ctx.loop.__class__ == 1 }}, max_iter=1){ a }"}},
     ("pipes", "p"), "reference"),
    ("FLOW-165", GOOD | {"tasks": {"t": {"outputs": "x"}}}, ("tasks", "t", "outputs"), "list_type"),
    ("FLOW-165", GOOD | {"tasks": {"t": {"outputs": ["x", 1]}}}, ("tasks", "t", "outputs", 1), "text_type"),
    ("FLOW-165", GOOD | {"pipes": []}, ("pipes",), "mapping_type"),
    ("FLOW-165", GOOD | {"pipes": {"p": 1}}, ("pipes", "p"), "text_type"),
    ("FLOW-165", GOOD | {"runtime": []}, ("runtime",), "mapping_type"),
    ("FLOW-165", GOOD | {"runtime": {"expose_env": "HOME"}}, ("runtime", "expose_env"), "list_type"),
    ("FLOW-165", GOOD | {"runtime": {"expose_env": [None]}}, ("runtime", "expose_env", 0), "text_type"),
    *(("FLOW-165", GOOD | {"version": value}, ("version",), "version") for value in (0, 2, "1", 1.0, True, None)),
    *(("FLOW-172", with_defaults({"x": value}), ("flow", "defaults", "x"), "not_json") for value in (
        date(2026, 1, 1), datetime(2026, 1, 1, tzinfo=UTC), float("nan"), float("inf"), float("-inf"),
        b"x", {"a"}, (1,), object(), 2**64, -(2**63) - 1, 10**5000, "\ud800",
    )),
    ("FLOW-172", with_defaults({1: "x"}), ("flow", "defaults"), "key_type"),
    ("FLOW-172", with_defaults({"a": {None: "x"}}), ("flow", "defaults", "a"), "key_type"),
    ("FLOW-172", with_defaults({"a": [{"b": float("nan")}]}), ("flow", "defaults", "a", 0, "b"), "not_json"),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "document", "loc", "kind"), REFUSED)
def test_a_broken_rule_is_told_with_its_place(
    rule: str, document: object, loc: tuple[str | int, ...], kind: str
) -> None:
    """FLOW-161 to FLOW-165, FLOW-172"""
    problem = the_problem_of(document)
    assert (problem.loc, problem.type) == (("workflow", *loc), kind), rule


@pytest.mark.parametrize(
    ("document", "hint"),
    [
        (GOOD | {"task": {}}, "did you mean `tasks`?"),
        (GOOD | {"Pipes": {}}, "did you mean `pipes`?"),
        (GOOD | {"graph": "a"}, "belongs under `flow`"),
        (GOOD | {"tasks": {"t": {"callabel": "a:b"}}}, "did you mean `callable`?"),
        ({"flow": {"graph": "a", "tasks": {}}}, "belongs at the top level"),
        (GOOD | {"zzz": 1}, "allowed are `version`"),
    ],
)
def test_an_unknown_key_comes_with_a_hint(document: object, hint: str) -> None:
    """FLOW-163"""
    assert hint in the_problem_of(document).msg


def test_everything_that_is_wrong_is_told_at_once() -> None:
    """FLOW-161 to FLOW-165: who fixes a file wants to do it once."""
    found = problems_of(
        {
            "version": 2,
            "flows": {},
            "flow": {"grpah": "a", "defaults": {"when": date(2026, 1, 1)}},
            "tasks": {"t": {"use": 1}},
            "pipes": {"p": None},
        }
    )
    assert {problem.loc[1:] for problem in found} == {
        ("version",),
        ("flows",),
        ("flow", "grpah"),
        ("flow", "graph"),
        ("flow", "defaults", "when"),
        ("tasks", "t", "use"),
        ("pipes", "p"),
    }


def test_the_number_of_problems_is_bounded() -> None:
    """FLOW-163"""
    assert len(problems_of({f"key{number}": 1 for number in range(1000)})) == PROBLEMS_MAX


def test_a_message_repeats_little_of_the_users_text() -> None:
    """FLOW-163"""
    with pytest.raises(InvalidFlow) as caught:
        check(GOOD | {"k" * 100_000: 1})
    assert len(str(caught.value)) < 500
    assert all(len(str(step)) <= 80 for step in caught.value.problems[0].loc)


def test_null_stands_for_an_absent_callable_as_in_the_engine() -> None:
    """FLOW-165"""
    assert check(GOOD | {"tasks": {"t": {"callable": None, "use": "x"}}}).tasks["t"] == TaskSpec(use="x")


def test_inputs_may_hold_what_json_cannot() -> None:
    """FLOW-172 speaks of the defaults alone."""
    day = date(2026, 1, 1)
    assert check(GOOD | {"tasks": {"t": {"inputs": {"day": day}}}}).tasks["t"].inputs == {"day": day}


@pytest.mark.parametrize("number", [0, -(2**63), 2**64 - 1, 1e308, -0.0, True])
def test_numbers_every_reader_can_hold_are_accepted(number: float) -> None:
    """FLOW-172"""
    assert check(with_defaults({"n": number})).defaults == {"n": number}


def nested(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels):
        value = {"x": value}
    return value


def test_the_depth_of_the_defaults_is_bounded() -> None:
    """FLOW-172"""
    assert check(with_defaults(nested(DEPTH_MAX))).defaults == nested(DEPTH_MAX)
    assert the_problem_of(with_defaults(nested(DEPTH_MAX + 1))).type == "too_large"


def test_defaults_that_contain_themselves_are_refused() -> None:
    """FLOW-172"""
    loop: dict[str, Any] = {}
    loop["again"] = loop
    assert the_problem_of(with_defaults(loop)).type == "too_large"


def test_shared_values_are_counted_each_time_they_stand() -> None:
    """FLOW-172: nine to the power of ten in ten lines."""
    value: list[Any] = ["lol"]
    for _ in range(10):
        value = [value] * 9
    assert the_problem_of(with_defaults({"x": value})).type == "too_large"
    assert the_problem_of(with_defaults({"x": ["y" * 100_000] * 20})).type == "too_large"


def test_the_defaults_are_a_copy_in_which_nothing_is_shared() -> None:
    """FLOW-171"""
    shared = {"n": 1}
    copied = check(with_defaults({"a": shared, "b": shared})).defaults
    copied["a"]["n"] = 2
    assert (copied["b"], shared) == ({"n": 1}, {"n": 1})


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6) | st.dates() | st.binary(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["flow", "graph", "defaults", "tasks", "use", "callable", "inputs", "pipes", "version", 1]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


def flow_or_refusal(document: object) -> FlowFile | InvalidFlow:
    try:
        return check(document)
    except InvalidFlow as error:
        return error


def leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from leaves(inner)
    else:
        yield value


@given(anything, anything)
def test_any_document_is_a_flow_or_is_refused_with_problems(document: object, defaults: object) -> None:
    """FLOW-161 to FLOW-165, FLOW-171, FLOW-172"""
    for asked in (document, with_defaults(defaults), GOOD | {"tasks": document}, {"flow": document}):
        answer = flow_or_refusal(asked)
        if isinstance(answer, InvalidFlow):
            assert 0 < len(answer.problems) <= PROBLEMS_MAX
            assert all(problem.loc[0] == "workflow" for problem in answer.problems)
        else:
            assert json.loads(json.dumps(answer.defaults, allow_nan=False)) == answer.defaults
            assert not any(isinstance(leaf, bytes | date) for leaf in leaves(answer.defaults))
