"""Clocks that differ by an hour for good: a worker's, a keeper's. Nothing is done twice, stuck or ended wrongly."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import httpx

from pyoco_server.core.states import RunState
from support.backends import a_submission, recorded, run_now
from support.chaos import STALE_SECONDS, Deployment, deployed, is_ready
from support.promises import History, Load, judge
from support.servers import NatsServer
from support.waiting import eventually

HOUR = 3600.0


async def submit(system: Deployment, load: Load, count: int, **how: Any) -> list[str]:
    """Runs that have all begun when this returns."""
    made = []
    async with httpx.AsyncClient(base_url=system.address, timeout=60) as client:
        for number in range(count):
            token = f"run-{number}"
            params = {"path": str(load.note), "token": token, **how}
            answer = await client.post("/runs", json={"flow_name": "trace", "params": params})
            made.append(answer.json()["run_id"])
            load.accepted[made[-1]] = token

    async def all_begun() -> bool:
        runs = [await run_now(system.eyes.backend, run_id) for run_id in made]
        return all(run.tasks for run in runs)

    await eventually(all_begun, 30.0)
    return made


def wrong_clocks(system: Deployment) -> None:
    anna, bert = system.workers
    system.move_clock(anna, -HOUR)
    system.move_clock(bert, HOUR)


async def test_a_delivery_that_comes_again_does_not_take_a_run_from_somebody_who_lives(
    own_nats_server: NatsServer, tmp_path: Path
) -> None:
    """FLOW-308: jobs are delivered again after an outage longer than their ack timer, and all workers have room"""
    async with deployed(own_nats_server, tmp_path) as system, History(system.eyes) as history:
        wrong_clocks(system)
        load = Load(system.address, tmp_path / "note")
        await submit(system, load, 2, seconds=7.0)
        began = time.monotonic()
        await system.restart_nats(3.0)
        await eventually(lambda: is_ready(system.address))
        away_seconds = time.monotonic() - began
        verdict = await judge(system.eyes, load, history)
        # Only a slow machine can make the outage so long that nobody seems to live.
        assert max(verdict.begun.values()) == 1 or away_seconds > STALE_SECONDS - 1.0


async def test_a_run_is_taken_from_somebody_who_is_gone(own_nats_server: NatsServer, tmp_path: Path) -> None:
    """FLOW-18: within seconds, not when the clocks agree again"""
    async with deployed(own_nats_server, tmp_path) as system, History(system.eyes) as history:
        wrong_clocks(system)
        load = Load(system.address, tmp_path / "note")
        gate = tmp_path / "gate"
        made = await submit(system, load, 4, gate=str(gate))
        _, bert = system.workers
        bert.end()
        gate.touch()

        def all_ended() -> bool:
            return all(history.seen[run_id][-1].is_terminal for run_id in made)

        await eventually(all_ended, STALE_SECONDS + 12.0)
        await judge(system.eyes, load, history)


async def test_a_keeper_with_a_wrong_clock_ends_what_is_abandoned_and_nothing_else(
    own_nats_server: NatsServer, tmp_path: Path
) -> None:
    """FLOW-73, FLOW-76"""
    async with deployed(own_nats_server, tmp_path, abandon_after_sec=5.0) as system:
        backend = system.eyes.backend
        system.move_clock(system.keeper, HOUR)
        for _ in range(10):
            began = time.monotonic()
            under_way, job = await recorded(backend, a_submission("trace", params={"path": "/dev/null", "token": "x"}))
            await system.keeper_turns(5)
            if time.monotonic() - began < 4.0:  # or it is abandoned, by any clock: the machine is busy
                break
        await backend.queue.put(job)

        async def completed() -> bool:
            run = await run_now(backend, under_way.run.run_id)
            assert run.status is not RunState.FAILED, run
            return run.status is RunState.COMPLETED

        await eventually(completed)
        system.move_clock(system.keeper, -HOUR)
        abandoned, _ = await recorded(backend, a_submission("trace"))

        async def ended() -> bool:
            return (await run_now(backend, abandoned.run.run_id)).status is RunState.FAILED

        await eventually(ended, 20.0)
