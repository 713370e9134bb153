"""Flows of an app: their graphs, run in this process, and what is refused before anything is sent."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import pyoco
import pytest
from pyoco import Flow

from pyoco_server import App, ends, task
from pyoco_server.app.flows import AppFlow
from support import app_flows
from support.app_flows import Order, Refused, app, count, double, fetch

DUE = datetime(2026, 5, 6, 7, 8, 9)  # noqa: DTZ001  (naive instants stay naive)


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine makes a folder for artifacts in the current one."""
    monkeypatch.chdir(tmp_path)


def edges(flow: AppFlow[..., Any]) -> dict[str, set[str]]:
    return {each.name: {other.name for other in each.dependencies} for each in flow.graph().tasks}


def test_a_flow_runs_in_this_process() -> None:
    """APP-5"""
    assert app_flows.measure(url="abc") == 3
    assert app_flows.measure("abc", customer="x") == 3
    assert app_flows.measured_twice("abcd") == "8"
    assert app_flows.fetched("abc") == b"abc"
    assert app_flows.joined("ab") == "2 195"
    order = Order(1, DUE, [Decimal("1.5"), Decimal(2)])
    assert app_flows.both(order) == {
        "total": {"large": Decimal("3.5")},
        "postpone": Order(1, DUE.replace(year=2027), order.prices),
    }
    with pytest.raises(Refused) as raised:
        app_flows.refused()
    assert raised.value.code == 7


def test_a_task_is_the_plain_function_outside_of_a_flow() -> None:
    """APP-3"""
    assert fetch("abc") == b"abc"
    assert count(b"abcd") == 4
    assert fetch.__doc__ == "The content of a page."
    flow = Flow(name="plain") >> fetch >> count
    assert {each.name for each in flow.tasks} == {"fetch", "count"}


def test_a_task_in_many_flows_has_the_edges_of_each() -> None:
    """APP-4: the engine keeps edges in its tasks, which all flows share."""
    mine = App("mine")

    @task
    def one() -> int:
        return 1

    @task
    def two(one: int = 0) -> int:
        return one + 1

    @mine.flow
    def upwards() -> int:
        return one >> two

    @mine.flow
    def downwards() -> int:
        return two >> one

    assert edges(upwards) == {"one": set(), "two": {"one"}}
    assert edges(downwards) == {"one": {"two"}, "two": set()}
    assert (upwards(), downwards()) == (2, 1)
    assert one.task.dependencies == set()


def test_graphs_of_many_shapes() -> None:
    """APP-4"""
    mine = App("mine")

    @task
    def size(fetch: bytes) -> int:
        return len(fetch)

    @task
    def report(count: int, size: int) -> str:
        return f"{count}/{size}"

    @mine.flow
    def fan(url: str) -> str:
        fetch >> [count, size]
        return ends(count, size) >> report

    @mine.flow
    def a_list(url: str) -> Any:
        return [fetch >> count, fetch >> size]

    @mine.flow
    def a_flow(url: str) -> Any:
        return Flow(name="other") >> fetch >> count

    @mine.flow
    def loop(url: str) -> Any:
        return fetch >> count[2]

    @mine.flow
    def theirs(url: str) -> Any:
        @pyoco.task  # type: ignore[untyped-decorator]
        def shout(url: str) -> str:
            return url.upper()

        return shout

    assert edges(fan) == {"fetch": set(), "count": {"fetch"}, "size": {"fetch"}, "report": {"count", "size"}}
    assert fan("ab") == "2/2"
    assert a_list("ab") == {"count": 2, "size": 2}
    assert (a_flow("ab"), a_flow.graph().name) == (2, "a_flow")
    assert loop("ab") == 2
    assert theirs("ab") == "AB"


def test_a_call_of_a_task_names_its_inputs() -> None:
    """APP-3"""
    assert app_flows.called_by_name("abcde") == 5
    mine = App("mine")

    @task
    def add(a: int, b: int) -> int:
        return a + b

    @mine.flow
    def sums(first: int) -> int:
        return add(first, b=10)

    @mine.flow
    def conflict(first: int) -> Any:
        return [add(first, 1), add(first, 2)]

    @mine.flow
    def dollar(first: int) -> Any:
        return add(first, "$x")  # type: ignore[arg-type]

    assert sums(first=5) == 15
    for flow in (conflict, dollar):
        with pytest.raises(ValueError, match=r"with different values of 'b'|begins with"):
            flow(1)


@pytest.mark.parametrize(
    ("function", "error", "says"),
    [
        (lambda url: fetch and (fetch >> double) and (fetch >> count), ValueError, "uses 'double', which no returned"),
        (lambda url: None, TypeError, "returned NoneType"),
        (lambda url: [], TypeError, "returned list"),
        (lambda url: ends(fetch), ValueError, "less than two tasks"),
        (lambda url: [fetch, fetch >> count], ValueError, "returns 'fetch' as an end, but 'count' comes after it"),
        (lambda url: fetch if url else count, TypeError, "param 'url' has no value"),
        (lambda url: fetch(url + "x"), TypeError, "param 'url' has no value"),
        (lambda url: fetch(url.upper()), AttributeError, "param 'url' has no value"),
        (lambda url: fetch if url == "x" else count, TypeError, "param 'url' has no value"),
        (lambda url: cast(Any, fetch)([url]), TypeError, "not inside of other values"),
        (lambda url: cast(Any, count)({"a": fetch}), TypeError, "not inside of other values"),
        (lambda url: ends(fetch[2], count), ValueError, "only have one end"),
        (lambda url: app_flows.measure(url=url), TypeError, "cannot be a part of another flow"),
        (lambda url: fetch >> task(name="fetch")(lambda: 1), ValueError, "two tasks of the flow are named 'fetch'"),
    ],
)
def test_a_graph_that_cannot_be_is_refused(function: Any, error: type[Exception], says: str) -> None:
    """APP-4"""
    flow = App("mine").flow(name="bad")(function)
    with pytest.raises(error, match=says):
        flow.graph()


def test_options_that_do_not_exist_are_refused() -> None:
    """APP-4"""
    mine: Any = App("mine")
    with pytest.raises(TypeError, match="option 'concurrency' is not available in this version; there are name, tag"):
        mine.flow(concurrency="2 per {customer}")
    with pytest.raises(TypeError, match="no option 'shedule'; did you mean schedule"):
        mine.flow(shedule="0 6 * * *")
    for bad in ({"retry": "often"}, {"timeout": "0s"}, {"schedule": "61 * * * *"}, {"timezone": "UTC"}, {"tag": "a.b"}):
        with pytest.raises(ValueError, match=next(iter(bad)) if "tag" not in bad else "is not a tag"):
            mine.flow(**bad)(lambda: fetch)
    with pytest.raises(TypeError, match="not one word"):
        mine.flow(tags="nightly")(lambda: fetch)
    mine.flow(name="same")(lambda: fetch)
    with pytest.raises(ValueError, match="two flows named 'same'"):
        mine.flow(name="same")(lambda: count)
    with pytest.raises(TypeError, match="has no name of its own"):
        mine.flow(name="stars")(lambda *urls: fetch)


@pytest.mark.parametrize("name", ["", "a b", "-a", "preview", "x" * 65, "ü"])
def test_an_app_has_a_name_for_paths(name: str) -> None:
    """APP-2"""
    with pytest.raises(ValueError, match="the name of an app"):
        App(name)


def test_wrong_arguments_are_refused_before_anything_is_sent() -> None:
    """APP-5: no server is there to refuse them."""
    submit: Any = app_flows.measure.submit
    for args, kwargs, says in (
        ((), {}, "missing a required argument: 'url'"),
        ((), {"link": "x"}, "missing a required argument: 'url'"),
        ((), {"url": "x", "link": "x"}, "unexpected keyword argument 'link'"),
        (("x", "y", "z"), {}, "too many positional arguments"),
    ):
        with pytest.raises(TypeError, match=says):
            submit(*args, **kwargs)
    with pytest.raises(TypeError, match="flow measure: missing"):
        app_flows.measure.map([{"url": "x"}, {}])


def test_what_an_app_offers_is_described() -> None:
    """APP-10"""
    offered = {flow.name: flow for flow in app.offered()}
    assert list(offered) == sorted(app.flows)
    measure, twice, both = offered["measure"], offered["twice"], offered["both"]
    assert measure.document() == {
        "name": "measure",
        "app": "reports",
        "doc": "Measure a page.\n\nIt takes its time.",
        "tags": [],
        "params": {
            "type": "object",
            "properties": {"url": {"type": "string"}, "customer": {"type": "string", "default": ""}},
            "required": ["url"],
            "additionalProperties": False,
        },
        "returns": {"type": "integer"},
        "schedule": None,
        "retry": None,
        "timeout": None,
        "tool": False,
    }
    assert twice.tool
    assert (twice.tags, twice.timeout) == (("nightly",), 300.0)
    assert twice.retry is not None
    assert (twice.retry["tries"], twice.retry["backoff"]) == (2, "fixed")
    assert both.params["properties"]["size"] == {"type": "string", "enum": ["small", "large"], "default": "large"}
    assert both.params["properties"]["order"]["properties"]["due"] == {"type": "string", "format": "date-time"}
    mine = App("mine", tag="gpu")
    mine.flow(name="daily", schedule="0 6 * * *", timezone="Asia/Tokyo", tags=["a"])(lambda: fetch)
    (daily,) = mine.offered()
    assert daily.schedule == {"when": {"cron": "0 6 * * *"}, "timezone": "Asia/Tokyo"}
    assert daily.tags == ("gpu", "a")
