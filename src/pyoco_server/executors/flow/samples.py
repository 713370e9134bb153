"""A sample flow for experiments, for workers without flows of their own.

pyoco-worker --flow-resolver pyoco_server.executors.flow.samples:resolve
"""

from __future__ import annotations

import time

from pyoco import Flow, task

__all__ = ["RESOLVER", "resolve"]

RESOLVER = f"{__name__}:resolve"


@task  # type: ignore[untyped-decorator]  # pyoco has no types
def greet(name: str = "world", seconds: float = 0.0) -> str:
    """Greet `name` after `seconds`, both taken from the params."""
    time.sleep(seconds)
    return f"Hello, {name}!"


@task  # type: ignore[untyped-decorator]  # pyoco has no types
def shout(greet: str) -> str:
    return greet.upper()


_FLOWS = {"hello": Flow(name="hello") >> greet >> shout}


def resolve(flow_name: str) -> Flow:
    """Return the sample flow. Raises KeyError for an unknown name."""
    return _FLOWS[flow_name]
