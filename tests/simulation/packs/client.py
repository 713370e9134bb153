"""Clients of priced runs, and the operator who credits their tenants."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field, replace
from typing import Any

from pyoco_server.actions.priced.credit import CreditResult, credit
from pyoco_server.actions.priced.enter import enter
from pyoco_server.actions.priced.read_run import PricedRunReading, read_run
from pyoco_server.actions.priced.submit import Accepted, submit
from pyoco_server.core.priced.constants import PROFILE_VERSION
from pyoco_server.core.priced.money import minimum_fee, usd_exact
from pyoco_server.core.priced.payload_hash import payload_hash
from pyoco_server.core.priced.run import NewRun
from pyoco_server.core.states.priced import Status
from pyoco_server.errors import Conflict, KeyReused, OverBudget, PyocoError, RunNotFound
from pyoco_server.ports.backend import GatewayBackend
from simulation.deployment import Deployment, NoAnswer
from simulation.packs.executor import PACK, answer_to
from simulation.packs.judge import PackJudge

__all__ = ["TENANTS", "Operator", "PackClient"]

TENANTS = ("anna", "bert")
#: After its work is over, a client waits this long for answers that it is owed.
_OWED_SECONDS = 900.0


def _hash_of(ask: NewRun) -> str:
    return payload_hash(
        pack_type=ask.pack_type,
        inputs=ask.inputs,
        timebox_sec=ask.timebox_sec,
        max_cost_usd=usd_exact(ask.reserved_usd_micros),
        artifacts=ask.artifacts,
        min_reliability_e4=ask.min_reliability_e4,
        profile_version=ask.profile_version,
    )


@dataclass
class PackClient:
    deployment: Deployment
    judge: PackJudge
    dice: random.Random
    name: str
    count: int = 0
    #: Own runs: the tenant and the work.
    mine: list[tuple[str, NewRun]] = field(default_factory=list)

    async def work(self, until: float) -> None:
        loop = self.deployment.loop
        async with asyncio.TaskGroup() as under_way:
            while loop.elapsed() < until:
                await asyncio.sleep(self.dice.expovariate(0.5))
                if self.dice.random() < 0.6 or not self.mine:
                    under_way.create_task(self.submit(until + _OWED_SECONDS))
                else:
                    await self.read()

    def _ask(self) -> NewRun:
        self.count += 1
        dice, name = self.dice, f"{self.name}-{self.count}"
        reserved = dice.choice((50_000, 60_000, 250_000, 900_000))
        inputs = {
            "n": name,
            "seconds": dice.choice((0.0, 0.02, 0.3, 1.0, 6.0, 45.0)),
            "end": dice.choice(("complete", "complete", "complete", "fail", "crash")),
            "cost": dice.choice((0, 700, 50_000, 2_000_000)),
            "stubborn": dice.random() < 0.2,
        }
        ask = NewRun(
            run_id="",
            tenant_id=dice.choice(TENANTS),
            pack_type=PACK,
            profile_version=PROFILE_VERSION,
            idempotency_key=f"key-{name}",
            payload_hash="",
            reserved_usd_micros=reserved,
            minimum_fee_usd_micros=minimum_fee(reserved),
            timebox_sec=dice.choice((4, 20, 60)),
            min_reliability_e4=0,
            inline=1,
            artifacts={},
            inputs=inputs,
            trace_id=f"t_{name}",
        )
        return replace(ask, payload_hash=_hash_of(ask))

    async def submit(self, until: float) -> None:
        """Repeated until it is answered, as a careful client does, sometimes twice at once; and again later."""
        ask = self._ask()
        while True:
            answer, *others = await asyncio.gather(*(self._once(ask) for _ in range(self.dice.choice((1, 1, 1, 2)))))
            for other in others:
                if isinstance(other, Accepted):
                    self._heard(ask, other)
            if isinstance(answer, Accepted):
                self._heard(ask, answer)
                if self.dice.random() < 0.7:
                    break
            elif isinstance(answer, OverBudget):
                if answer.balance_usd_micros >= ask.reserved_usd_micros:
                    self.judge.blame(f"a submission was refused for lack of money: {answer.balance_usd_micros}")
                return
            elif isinstance(answer, KeyReused):
                self.judge.blame(f"a repeated submission was refused as another one: {ask.idempotency_key}")
                return
            if self.deployment.loop.elapsed() > until:
                self.judge.blame(f"a submission gets no answer: {ask.idempotency_key}")
                return
            await asyncio.sleep(self.dice.expovariate(0.5))
        if self.dice.random() < 0.2:
            await self._submit_another(ask)

    def _heard(self, ask: NewRun, answer: Accepted) -> None:
        self.judge.accept(ask, answer.run)
        self.mine.append((answer.run.run_id, ask))

    async def _submit_another(self, ask: NewRun) -> None:
        """The same key with another payload."""
        other = replace(ask, inputs={**ask.inputs, "n": "another"})
        answer = await self._once(replace(other, payload_hash=_hash_of(other)))
        if isinstance(answer, Accepted):
            self.judge.blame(f"idempotency key {ask.idempotency_key} was accepted twice", answer.run.run_id)

    async def _once(self, ask: NewRun) -> Accepted | PyocoError | NoAnswer:
        async def work(backend: GatewayBackend) -> Accepted:
            priced = backend.priced
            assert priced is not None
            await enter(priced, ask.tenant_id, "post")
            named = replace(ask, run_id=priced.new_id())
            self.judge.ask(named)
            return await submit(priced, named)

        return await self.deployment.ask(work, self.dice)

    async def read(self) -> None:
        run_id, ask = self.dice.choice(self.mine[-6:])

        async def work(backend: GatewayBackend) -> PricedRunReading:
            priced = backend.priced
            assert priced is not None
            return await read_run(priced, run_id, ask.tenant_id)

        answer = await self.deployment.ask(work, self.dice)
        if isinstance(answer, RunNotFound):
            self.judge.blame("an accepted run is not found", run_id)
        if isinstance(answer, PricedRunReading):
            self.judge.read(answer.run)
            self._check_result(answer, ask)

    def _check_result(self, reading: PricedRunReading, ask: NewRun) -> None:
        result = reading.result
        if (result is not None) != (reading.run.status is Status.COMPLETED):
            self.judge.blame(f"a run that is {reading.run.status} is shown with {result}", reading.run.run_id)
        elif result is not None:
            inline = result.inline
            assert inline is not None
            if inline.omitted is None and inline.data != answer_to(ask.inputs):
                self.judge.blame(f"a run is shown with the result of another: {inline.data}", reading.run.run_id)


@dataclass
class Operator:
    """Credits tenants: each credit again and again until it is confirmed."""

    deployment: Deployment
    judge: PackJudge
    dice: random.Random
    is_done: bool = False

    async def work(self, until: float) -> None:
        number = 0
        for tenant_id in TENANTS:
            await self._credit(tenant_id, 2_000_000, f"first-{tenant_id}", until)
        while self.deployment.loop.elapsed() < until:
            await asyncio.sleep(self.dice.expovariate(0.1))
            number += 1
            amount = self.dice.choice((1, 30_000, 1_000_000))
            await self._credit(self.dice.choice(TENANTS), amount, f"credit-{number}", until)

    async def _credit(self, tenant_id: str, amount: int, ref: str, until: float) -> None:
        async def work(backend: GatewayBackend) -> CreditResult:
            assert backend.priced is not None
            return await credit(backend.priced, tenant_id, amount, ref)

        while self.deployment.loop.elapsed() < until + _OWED_SECONDS:
            answer: Any = await self.deployment.ask(work, self.dice)
            if isinstance(answer, Conflict):
                self.judge.blame(f"a repeated credit was refused: {ref}")
            if isinstance(answer, CreditResult) and (answer.is_new or answer.off_usd_micros == 0):
                self.judge.credited(ref, tenant_id, amount)
                return
            await asyncio.sleep(self.dice.expovariate(0.5))
        self.judge.blame(f"a credit is not confirmed: {ref}")
