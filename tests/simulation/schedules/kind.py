"""Schedules of flows as a kind of run of a simulation. Their runs are judged as flows are, too."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine, Sequence
from typing import Any

from pyoco_server.actions.schedules.backfill import Backfilled, backfill_schedule
from pyoco_server.actions.schedules.trigger import Triggered, trigger_schedule
from pyoco_server.actions.schedules.write import Written, create_schedule, pause_schedule
from pyoco_server.core.run import Caller
from pyoco_server.core.schedules.record import CatchUp, Definition, Overlap, Schedule
from simulation.deployment import Deployment
from simulation.faults import Fault
from simulation.flows.judge import FlowJudge
from simulation.kind import Kind, Problems
from simulation.run import Verdict, simulate
from simulation.schedules.judge import ScheduleJudge

__all__ = ["Schedules", "simulate_schedules"]

_NOBODY = Caller()
#: Ticks every few seconds, and runs that take about as long. One slot must be able to work off all of them in the end.
_EVERY = (2, 3, 5)
_SECONDS = (0.0, 0.5, 3.0, 6.0)
_KILLS = 3
#: Of the runs that a schedule delays.
_JITTERS = (0.0, 0.0, 15.0)
_WORK_SECONDS = 25.0


class Schedules(Kind):
    def __init__(self, deployment: Deployment, problems: Problems) -> None:
        super().__init__(deployment, problems)
        loop = deployment.loop
        self.flows = FlowJudge(loop, deployment.nats, problems)
        self.judge = ScheduleJudge(loop, deployment.nats, problems, deployment.config.schedule_history)
        deployment.on_execute, deployment.on_host_death = self.flows.began, self.flows.host_died
        self._done = 0
        self._names = [
            f"{overlap.value}-{policy.value}" for overlap in Overlap for policy in (CatchUp.LAST, CatchUp.ALL)
        ]

    def faults(self, targets: Sequence[str], until: float) -> tuple[Fault, ...]:
        """Keepers are killed between two steps of a tick, and the clock of one jumps by an hour."""
        dice = self.deployment.loop.stream("schedule faults")
        keepers = [each for each in targets if each.startswith("keeper")]
        writes = ("$KV.pyoco_schedules.s.", "$KV.pyoco_runs.", "pyoco.work.")

        def fault() -> Fault:
            at, number = dice.uniform(0, until), dice.randrange(1, 6)
            return Fault(at, "kill after write", dice.choice(keepers), 0.0, number, dice.choice(writes))

        hour = Fault(dice.uniform(0, until), "skew clock", dice.choice(keepers), amount=dice.choice((-3600.0, 3600.0)))
        return (*(fault() for _ in range(_KILLS)), hour)

    def clients(self, until: float) -> list[Coroutine[Any, Any, None]]:
        loop = self.deployment.loop
        return [self._author(name, loop.stream(name), until) for name in self._names]

    async def _author(self, name: str, dice: random.Random, until: float) -> None:
        """Create a schedule, trigger it now and then, and pause it at the end."""
        loop = self.deployment.loop
        overlap, _, policy = name.rpartition("-")
        what = {
            "kind": "flow",
            "flow_name": "pretended",
            "params": {"at": "{{ scheduled_time.unix }}", "seconds": dice.choice(_SECONDS)},
        }
        definition = Definition(
            name=name,
            what=what,
            when={"every": dice.choice(_EVERY)},
            overlap=Overlap(overlap),
            catch_up=CatchUp(policy),
            jitter=dice.choice(_JITTERS),
        )
        schedule: Schedule | None = None
        while schedule is None:
            answer = await self.deployment.ask(
                lambda backend: create_schedule(backend, _NOBODY, definition, f"create-{name}"), dice
            )
            if isinstance(answer, Written):
                schedule = answer.schedule
            await asyncio.sleep(0.5)
        number = 0
        while loop.elapsed() < until:
            await asyncio.sleep(dice.expovariate(0.15))
            number += 1
            if dice.random() < 0.6:
                await self._trigger(schedule, f"{name}-{number}", dice)
            else:
                await self._backfill(schedule, dice)
        while not isinstance(
            await self.deployment.ask(lambda backend: pause_schedule(backend, _NOBODY, name, None), dice), Schedule
        ):
            await asyncio.sleep(1.0)
        self._done += 1

    async def _trigger(self, schedule: Schedule, key: str, dice: random.Random) -> None:
        """Repeated until it is answered, and then once again."""
        told = 0
        for _ in range(8):
            answer = await self.deployment.ask(
                lambda backend: trigger_schedule(backend, _NOBODY, schedule.name, {"k": key}, key), dice
            )
            if isinstance(answer, Triggered):
                self.judge.told(schedule.id, key, answer.run_id)
                told += 1
            if told == 2:
                return
            await asyncio.sleep(0.5)

    async def _backfill(self, schedule: Schedule, dice: random.Random) -> None:
        """Of ticks before the schedule was created."""
        end = int(schedule.created_at) - dice.randrange(60)
        answer = await self.deployment.ask(
            lambda backend: backfill_schedule(
                backend, _NOBODY, schedule.name, end - dice.randrange(1, 20), end, Overlap.ALLOW
            ),
            dice,
        )
        if isinstance(answer, Backfilled) and answer.created + answer.existing != answer.matched:
            self.problems.blame(f"a backfill of {schedule.name} is not complete: {answer}")

    @property
    def is_settled(self) -> bool:
        return self._done == len(self._names) and self.judge.is_settled and self.flows.is_settled

    def conclude(self) -> None:
        self.flows.conclude()
        self.judge.conclude()


def simulate_schedules(
    seed: int, faults: Sequence[Fault] | None = None, kinds: Sequence[type[Kind]] | None = None
) -> Verdict:
    """`kinds`: besides schedules."""
    return simulate(seed, faults, (Schedules, *(kinds or ())), _WORK_SECONDS)
