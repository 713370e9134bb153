"""The two jobs of every peer, as flows of ours."""

from __future__ import annotations

from pyoco import Flow, task


@task
def first() -> None: ...


@task
def second(first: None) -> None: ...


@task
def third(second: None) -> None: ...


FLOWS: dict[str, Flow] = {
    "noop": Flow(name="noop") >> first,
    "chain": Flow(name="chain") >> first >> second >> third,
}


def resolve(flow_name: str) -> Flow:
    return FLOWS[flow_name]
