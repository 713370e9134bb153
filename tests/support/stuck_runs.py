"""Runs left in some state by a lost worker, for tests of the rescuer."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from pyoco_server.actions.beat import beat_run
from pyoco_server.actions.claim import FlowAttempt, claim_run
from pyoco_server.actions.submit import submit
from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.job import decode_job
from pyoco_server.core.run import Caller, Owner, Run
from pyoco_server.core.states import RunState
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.nats.link import Link
from pyoco_server.ports.queue.port import Delivery, Intake
from support.backends import (
    ANNA,
    a_submission,
    dead_letters,
    has_ended,
    jobs_left,
    opened_backend,
    run_now,
)
from support.waiting import eventually

__all__ = [
    "ACK_WAIT",
    "SILENCE",
    "Worker",
    "backend",
    "claimed",
    "ended",
    "letters_of",
    "living",
    "none_left",
    "stays",
    "submitted",
    "timers",
]

ACK_WAIT = 0.5
#: After so much silence a worker counts as dead.
SILENCE = 1.0


def timers(scale: float) -> dict[str, Any]:
    """Short enough to wait for. Claims fence after 5 s and three heartbeats, as everywhere."""
    return {
        "consumer_ack_wait_sec": ACK_WAIT * scale,
        "consumer_max_deliver": 2,
        "ack_progress_interval_sec": 0.1 * scale,
        "run_heartbeat_interval_sec": 0.1 * scale,
        "worker_disconnect_timeout_sec": SILENCE * scale,
        "abandon_after_sec": 0.5 * scale,
    }


@pytest.fixture
async def backend(config: NatsBackendConfig) -> AsyncIterator[Backend]:
    async with opened_backend(replace(config, **timers(1.0))) as backend:
        yield backend


class Worker:
    """Serves the tag while it is open, and treats its deliveries as the test says."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.hand: list[Delivery] = []
        self._intake: Intake | None = None

    async def __aenter__(self) -> Worker:
        self._intake = await self._backend.queue.open_intake(["default"], self.hand.append)
        await self._intake.want(1)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._intake is not None
        await self._intake.close()

    async def took(self, count: int = 1) -> Delivery:
        """Returns once it was given so many deliveries; it answers for none of them. It goes on asking."""
        assert self._intake is not None
        while len(self.hand) < count:
            await eventually(lambda: bool(self.hand))
            await self._intake.want(1)
            await self._intake.tick()
            await asyncio.sleep(0.02)
        await self._intake.want(1)
        return self.hand[count - 1]


async def claimed(backend: Backend, delivery: Delivery, owner: Owner = ANNA) -> FlowAttempt:
    held = await claim_run(backend, decode_job(delivery.data), owner, first_delivery=delivery.count == 1)
    assert isinstance(held, FlowAttempt), held
    return held


async def submitted(backend: Backend) -> str:
    return (await submit(backend, Caller(), a_submission())).run.run_id


async def ended(backend: Backend, run_id: str, seconds: float = 40.0) -> Run:
    await eventually(lambda: has_ended(backend, run_id), seconds)
    return await run_now(backend, run_id)


async def none_left(link: Link, config: NatsBackendConfig) -> bool:
    return await jobs_left(link, config) == []


async def stays(backend: Backend, run_id: str, status: RunState, seconds: float = 1.5) -> None:
    """It is not changed, although the keepers have run several times."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        assert (await run_now(backend, run_id)).status is status
        await asyncio.sleep(0.05)


async def letters_of(link: Link, backend: Backend) -> list[tuple[str, str, Any]]:
    letters = [letter["body"] for letter in await dead_letters(link, backend.config)]
    return [(letter["run_id"], letter["reason"], letter.get("num_delivered")) for letter in letters]


@contextlib.asynccontextmanager
async def living(backend: Backend, delivery: Delivery | None, held: FlowAttempt) -> AsyncIterator[None]:
    """Its worker gives signs of life, and holds its job if it has one."""

    async def live() -> None:
        while True:
            if delivery is not None:
                await delivery.hold()
            await beat_run(backend, held, None)
            await asyncio.sleep(0.05)

    life = asyncio.create_task(live())
    try:
        yield
    finally:
        life.cancel()
