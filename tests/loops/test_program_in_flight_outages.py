"""Held attempts during an outage, after a suspended process, and of a killed one."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Any

import pytest

from pyoco_server.actions.programs.finish import Settlement
from pyoco_server.actions.programs.reach import programs_of
from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.states import RunState
from pyoco_server.errors import Unavailable
from pyoco_server.ports.backend import Backend
from support.grid.in_flight import ack_timers, backend, config, group, has_ended, leases, rewritten, slots_held, started
from support.grid.program_stage import DONE, Stage, Workers, a_stage, a_store, cap, recorded_run, submitted
from support.memory_nats import MemoryServer
from support.servers import config_for, unique
from support.waiting import eventually

__all__ = ["backend", "config", "group"]

pytestmark = pytest.mark.virtual_time


async def _have_ended(backend: Backend, run_ids: list[str]) -> bool:
    return all([await has_ended(backend, run_id) for run_id in run_ids])


class TestAnOutage:
    async def test_is_waited_out_without_a_claim(self, backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
        """GRID-44: it stops claiming, and begins again by itself, after its heartbeats"""
        order: list[str] = []

        async def away() -> None:
            raise Unavailable("there is no leader")

        async with a_stage(backend) as stage:
            with monkeypatch.context() as outage:
                outage.setattr(programs_of(backend).queue, "totals", away)
                await eventually(lambda: not stage.in_flight.is_quorate)
                run_id = await submitted(backend)
                stage.give(1)
                await asyncio.sleep(0.3)
                assert ((await recorded_run(backend, run_id)).attempt, stage.workers.credits) == (0, 1)
                beat_all, resume = stage.in_flight.beat_all, stage.quorum.resume

                async def beats() -> None:
                    await beat_all()
                    order.append("heartbeats")

                def resumes() -> None:
                    order.append("claims")
                    resume()

                monkeypatch.setattr(stage.in_flight, "beat_all", beats)
                monkeypatch.setattr(stage.quorum, "resume", resumes)
            await eventually(lambda: run_id in stage.workers.running)
            assert order == ["heartbeats", "claims"]
            await stage.finish(stage.workers.running[run_id])

    async def test_stops_claims_and_is_lived_through_without_a_second_start(
        self, memory_nats_server: MemoryServer
    ) -> None:
        """GRID-44, P16: longer than lease and ack timer; the first answers are heartbeats, and leases count as fresh"""
        config = replace(
            config_for(memory_nats_server.url),
            ack_progress_interval_sec=0.2,
            consumer_ack_wait_sec=2.0,
        )
        settings = {"exec_run_heartbeat_sec": 0.2, "exec_lease_fresh_sec": 1.5}
        group = unique("g")
        async with (
            a_store(config, group, **settings) as one,
            a_store(config, group, **settings) as two,
            a_stage(one) as stage,
            a_stage(two, holder="other") as other,
        ):
            attempt = await started(stage)
            other.give(1)
            memory_nats_server.kill()
            await eventually(lambda: not (stage.in_flight.is_quorate or other.in_flight.is_quorate))
            await asyncio.sleep(2.0)
            memory_nats_server.start()
            await eventually(lambda: stage.in_flight.is_quorate and other.in_flight.is_quorate)
            assert programs_of(two).grace.covers(two.clock())
            assert stage.quorate == [False, True]
            began = time.monotonic()
            while time.monotonic() - began < 2.5:
                assert other.workers.started == []
                await asyncio.sleep(0.05)
            assert await stage.finish(attempt) is Settlement.RECORDED
            run = await recorded_run(one, attempt.run.run_id)
            assert (run.status, run.attempt) == (RunState.COMPLETED, 1)
            run_id = await submitted(one)
            await eventually(lambda: run_id in other.workers.running or run_id in stage.workers.running)


class TestAProcessThatSlept:
    async def test_asks_of_each_attempt_before_it_says_a_word(self, backend: Backend) -> None:
        """GRID-10, GRID-56, P28: attempts taken over meanwhile are dropped, and the others continue"""
        async with a_stage(backend) as stage:
            lost, kept = await started(stage), await started(stage)
            words: list[str] = []
            assert lost.delivery is not None

            async def hold() -> None:
                words.append("hold")

            lost.delivery = _Muted(lost.delivery, hold)
            await eventually(lambda: "hold" in words)
            async with lost.lock, kept.lock:  # no heartbeat gets through: the process is stopped
                await rewritten(backend, lost.run.run_id, attempt_id="another")
                words.clear()
                stage.clock.slept += 60.0
                await asyncio.sleep(0.5)
                assert words == []
            await eventually(lambda: stage.gone == [lost])
            assert words == []
            assert stage.in_flight.get(kept.run.run_id) is kept  # its signs of life may lie in a socket, unread
            assert await stage.finish(kept) is Settlement.RECORDED


class _Muted:
    """A delivery that tells who holds it."""

    def __init__(self, delivery: Any, hold: Any) -> None:
        self._delivery, self.hold = delivery, hold

    def __getattr__(self, name: str) -> Any:
        return getattr(self._delivery, name)


class TestADeadProcess:
    async def test_leaves_jobs_that_another_runs_and_slots_that_another_takes(self, config: NatsBackendConfig) -> None:
        """GRID-40, GRID-74, GRID-53 step 6: within a lease and an ack timer"""
        quick, group = ack_timers(config, 1.0), unique("g")
        async with (
            a_store(quick, group, **leases(1.0)) as doomed,
            a_store(quick, group, **leases(1.0)) as backend,
        ):
            await cap(backend, "clientA", 2)
            run_ids = [await submitted(backend) for _ in range(4)]
            dead = Stage(doomed, Workers(2), "dead")
            await dead.start()
            await eventually(lambda: len(dead.workers.running) == 2)
            # As kill -9 does: no word to anybody from here on.
            dead.workers.credits = 0
            await dead.in_flight.stop()
            async with a_stage(backend, count=4, holder="living") as living:
                living.runs_everything()
                await eventually(lambda: _have_ended(backend, run_ids))
                assert all([(await recorded_run(backend, each)).status is RunState.COMPLETED for each in run_ids])
                assert living.workers.tally.most["clientA"] <= 2
                for attempt in dead.workers.started:
                    assert await dead.in_flight.finish(attempt, DONE, ()) is Settlement.STALE
                await eventually(lambda: slots_held(backend) == 0)
            await dead.dispatcher.stop()
