"""What the lane of flows tells the registry of the flows that its executor has."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from pyoco_server.core.offered_flow import OfferedFlow
from pyoco_server.core.run import Owner
from pyoco_server.core.worker_description import WorkerDescription
from pyoco_server.core.worker_record import WorkerRecord
from pyoco_server.loops.flow_lane import FlowLane
from pyoco_server.loops.worker import Worker

FLOWS = (OfferedFlow(name="measure", app="reports"),)


def described(offered: tuple[OfferedFlow, ...] | None) -> WorkerRecord:
    config = SimpleNamespace(worker_heartbeat_interval_sec=5.0)
    backend: Any = SimpleNamespace(clock=lambda: 100.0, config=config)
    executor: Any = SimpleNamespace(restarts=0, offered=offered)
    me = Owner("w", "i")
    return Worker(backend, WorkerDescription(me=me), [FlowLane(backend, executor, me, ["a"], 2)]).describe()


def test_a_worker_of_an_app_announces_all_of_its_flows_and_one_with_a_resolver_none() -> None:
    """APP-10"""
    app, resolver = described(FLOWS), described(None)
    assert (app.flows, app.flows_complete) == (FLOWS, True)
    assert (resolver.flows, resolver.flows_complete) == ((), False)
