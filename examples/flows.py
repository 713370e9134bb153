"""Flows that the example worker offers by name, and tasks that a flow.yaml may use.

Start a worker with them: `pyoco-worker --flow-resolver examples.flows:resolve`
"""

from __future__ import annotations

import time
from typing import Any

from pyoco import Flow, task


@task
def greet(name: str = "world") -> str:
    """Takes `name` from the params."""
    return f"Hello, {name}!"


@task
def shout(greet: str) -> str:
    """Takes the result of the task named `greet`."""
    return greet.upper()


@task
def count(n: int = 3, pause: float = 0.5) -> int:
    """Takes its time, so that there is something to watch."""
    total = 0
    for number in range(n):
        time.sleep(pause)
        total += number
    return total


@task
def report(ctx: Any) -> dict[str, Any]:
    """Sees what the other tasks returned."""
    return {"results": dict(ctx.results)}


@task
def stumble() -> None:
    raise RuntimeError("this flow fails on purpose")


@task
def noop() -> None:
    """As little as possible: what a run costs without its work."""


FLOWS: dict[str, Flow] = {
    "hello": Flow(name="hello") >> greet >> shout,
    "slow": Flow(name="slow") >> count >> report,
    "broken": Flow(name="broken") >> stumble,
    "noop": Flow(name="noop") >> noop,
}


def resolve(flow_name: str) -> Flow:
    """Raises KeyError for a name it does not know: the worker then answers that it has no such flow."""
    return FLOWS[flow_name]
