"""Flows as a kind of run of a simulation."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from simulation.deployment import Deployment
from simulation.flows.client import FlowClient
from simulation.flows.judge import FlowJudge
from simulation.kind import Kind, Problems

__all__ = ["Flows"]

_CLIENTS = 3


class Flows(Kind):
    def __init__(self, deployment: Deployment, problems: Problems) -> None:
        super().__init__(deployment, problems)
        self.judge = FlowJudge(deployment.loop, deployment.nats, problems)
        deployment.on_execute = self.judge.began
        deployment.on_host_death = self.judge.host_died

    def clients(self, until: float) -> list[Coroutine[Any, Any, None]]:
        loop = self.deployment.loop
        names = [f"flows-{number}" for number in range(_CLIENTS)]
        return [FlowClient(self.deployment, self.judge, loop.stream(name), name).work(until) for name in names]

    @property
    def is_settled(self) -> bool:
        return self.judge.is_settled

    def conclude(self) -> None:
        self.judge.conclude()
