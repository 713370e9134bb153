"""Clients: each submits, repeats, cancels, reruns and redrives at random, and tells the judge what it was promised."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from typing import Any

from pyoco_server.actions.cancel import cancel
from pyoco_server.actions.redrive import redrive
from pyoco_server.actions.rerun import UNCHANGED, rerun
from pyoco_server.actions.submit import Accepted
from pyoco_server.actions.submit_many import submit_many
from pyoco_server.actions.submit_once import submit_once
from pyoco_server.core.run import Caller, Submission
from pyoco_server.errors import PyocoError
from simulation.deployment import Deployment, NoAnswer
from simulation.flows.judge import FlowJudge

__all__ = ["FlowClient"]

_NOBODY = Caller()


def _submission(params: dict[str, Any]) -> Submission:
    return Submission(flow_name="pretended", tag="default", tags=("default",), params=params, retry=params.get("retry"))


#: None: no policy.
_POLICIES: tuple[dict[str, Any] | None, ...] = (
    None,
    None,
    {"tries": 2, "delay": 0.5},
    {"tries": 4, "delay": 1.0, "backoff": "fixed", "retry_on": ["*", "lost"]},
    {"tries": 3, "delay": 5.0, "never_on": ["timeout"]},
)


@dataclass
class FlowClient:
    deployment: Deployment
    judge: FlowJudge
    dice: random.Random
    name: str
    count: int = 0
    mine: list[str] = field(default_factory=list)

    async def work(self, until: float) -> None:
        acts = [self.submit] * 4 + [self.submit_with_key] * 4 + [self.batch, self.cancel, self.cancel, self.rerun]
        acts += [self.redrive]
        loop = self.deployment.loop
        while loop.elapsed() < until:
            await asyncio.sleep(self.dice.expovariate(0.8))
            await self.dice.choice(acts)()

    def _params(self) -> dict[str, Any]:
        self.count += 1
        return {
            "n": f"{self.name}-{self.count}",
            "seconds": self.dice.choice((0.0, 0.01, 0.3, 2.0, 8.0, 40.0)),
            "end": self.dice.choice(("complete", "complete", "complete", "fail", "crash", "flaky")),
            "stubborn": self.dice.random() < 0.25,
            "retry": self.dice.choice(_POLICIES),
        }

    def _heard(self, accepted: Accepted, params: dict[str, Any], key: str | None = None) -> None:
        run_id = accepted.stored.run.run_id
        self.mine.append(run_id)
        self.judge.accept(run_id, params, key)

    async def submit(self) -> None:
        params = self._params()
        answer = await self.deployment.ask(
            lambda backend: submit_once(backend, _NOBODY, _submission(params)), self.dice
        )
        if isinstance(answer, Accepted):
            self._heard(answer, params)

    async def submit_with_key(self) -> None:
        """Repeated until it is answered, as a careful client does, sometimes twice at once; and again later."""
        params = self._params()
        key = params["key"] = str(params["n"])
        for _ in range(6):
            answers = await asyncio.gather(*(self._once(params, key) for _ in range(self.dice.choice((1, 1, 2)))))
            accepted = [answer for answer in answers if isinstance(answer, Accepted)]
            for answer in accepted:
                self._heard(answer, params, key)
            if accepted and self.dice.random() < 0.5:
                break
            await asyncio.sleep(self.dice.expovariate(0.5))
        if self.dice.random() < 0.2:
            other = await self._once({**params, "seconds": 77.0}, key)
            if isinstance(other, Accepted) and key in self.judge.keys_promised:
                self.judge.blame("an idempotency key was accepted for another submission", other.stored.run.run_id)

    async def _once(self, params: dict[str, Any], key: str) -> Accepted | PyocoError | NoAnswer:
        return await self.deployment.ask(
            lambda backend: submit_once(backend, _NOBODY, _submission(params), key), self.dice
        )

    async def batch(self) -> None:
        all_params = [self._params() for _ in range(self.dice.randrange(2, 6))]
        asks = [(_submission(params), None) for params in all_params]
        answer = await self.deployment.ask(lambda backend: submit_many(backend, _NOBODY, asks), self.dice)
        if isinstance(answer, list):
            for each, params in zip(answer, all_params, strict=True):
                if isinstance(each, Accepted):
                    self._heard(each, params)

    async def cancel(self) -> None:
        if self.mine:
            run_id = self.dice.choice(self.mine[-6:])
            await self.deployment.ask(lambda backend: cancel(backend, _NOBODY, run_id, "simulated"), self.dice)

    async def rerun(self) -> None:
        if self.mine:
            run_id = self.dice.choice(self.mine)
            params = self.judge.accepted.get(run_id, {})
            answer = await self.deployment.ask(lambda backend: rerun(backend, _NOBODY, run_id, UNCHANGED), self.dice)
            if isinstance(answer, Accepted):
                self._heard(answer, params)

    async def redrive(self) -> None:
        letters = self.deployment.nats.streams["PYOCO_DLQ"].messages.since(1, "pyoco.dlq.default")
        of_flows = [letter.seq for letter in letters]
        if of_flows:
            letter_id = str(self.dice.choice(of_flows))
            answer = await self.deployment.ask(lambda backend: redrive(backend, _NOBODY, letter_id), self.dice)
            if isinstance(answer, Accepted):
                self._heard(answer, dict(answer.stored.run.params))
