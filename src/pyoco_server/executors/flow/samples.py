"""A flow to try things out with, for workers that have none of their own.

pyoco-worker --flow-resolver pyoco_server.executors.flow.samples:resolve
"""

from __future__ import annotations

import time

from pyoco import Flow, task

__all__ = ["RESOLVER", "resolve"]

RESOLVER = f"{__name__}:resolve"


@task  # type: ignore[untyped-decorator]  # pyoco has no types
def greet(name: str = "world", seconds: float = 0.0) -> str:
    """Takes `name` and `seconds` from the params, and as long as it is told."""
    time.sleep(seconds)
    return f"Hello, {name}!"


@task  # type: ignore[untyped-decorator]  # pyoco has no types
def shout(greet: str) -> str:
    return greet.upper()


_FLOWS = {"hello": Flow(name="hello") >> greet >> shout}


def resolve(flow_name: str) -> Flow:
    """Raises KeyError for a name it does not know."""
    return _FLOWS[flow_name]
