"""Workers of flows alone, for tests."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

from pyoco_server.core.run import Owner
from pyoco_server.core.worker_description import WorkerDescription
from pyoco_server.executors.port import Executor
from pyoco_server.loops.delivery_processor import QueueTerms
from pyoco_server.loops.flow_lane import FlowLane
from pyoco_server.loops.worker import Worker
from pyoco_server.ports.backend import Backend
from pyoco_server.wiring import backend as wiring
from support.backends import ANNA

__all__ = ["a_flow_lane", "a_worker", "terms", "worker_with"]


def a_flow_lane(
    backend: Backend,
    executor: Executor,
    me: Owner = ANNA,
    tags: Sequence[str] = ("default",),
    slots: int = 1,
    wheels: Any = None,
) -> FlowLane:
    return FlowLane(backend, executor, me, tags, slots, wheels)


def terms(max_deliver: int = 20, ack_wait_seconds: float = 30.0) -> QueueTerms:
    return cast("QueueTerms", SimpleNamespace(max_deliver=max_deliver, ack_wait_seconds=ack_wait_seconds))


def a_worker(
    backend: Backend, executor: Executor, me: Owner = ANNA, tags: Sequence[str] = ("default",), slots: int = 1
) -> Worker:
    return worker_with(backend, a_flow_lane(backend, executor, me, tags, slots), me, tags)


def worker_with(backend: Backend, lane: FlowLane, me: Owner = ANNA, tags: Sequence[str] = ("default",)) -> Worker:
    """A worker whose lane the test needs to see."""
    return Worker(backend, WorkerDescription(me=me, tags=tuple(tags), versions=wiring.versions()), [lane])
