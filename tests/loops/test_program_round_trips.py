"""The messages that a job of a program costs its process, besides those of timers."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping

import pytest

from pyoco_server.config import NatsBackendConfig
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.nats.memory.client import MemoryClient
from support.grid.program_stage import Stage, a_stage, a_store, cap, submitted
from support.servers import unique
from support.waiting import eventually

pytestmark = pytest.mark.virtual_time

_JOBS = 12
#: What a message is for, by its subject. Requests for counts and for the state of the stream belong to timers.
_KINDS = {
    "$KV.pyoco_exec_slots.": "slot",
    "$KV.runs": "record",
    "$JS.API.CONSUMER.MSG.NEXT.": "pull",
    "$JS.ACK.": "answer",
    "pyoco.execev.": "event",
    "pyoco.exechint.": "wakeup",
}


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts the messages of all connections, by kind."""
    counts: Counter[str] = Counter()
    real = MemoryClient.send

    async def send(
        self: MemoryClient, subject: str, data: bytes, reply: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        counts.update(kind for prefix, kind in _KINDS.items() if subject.startswith(prefix))
        await real(self, subject, data, reply, headers)

    monkeypatch.setattr(MemoryClient, "send", send)
    return counts


@pytest.fixture
async def backend(config: NatsBackendConfig) -> AsyncIterator[Backend]:
    async with a_store(config, unique("g")) as backend:
        await cap(backend, "clientA", _JOBS)
        yield backend


async def _ended(stage: Stage, count: int) -> None:
    """So many jobs have ended, and everything that follows their ends has been sent."""
    await eventually(lambda: len(stage.workers.started) == count)
    await asyncio.sleep(0.5)


async def _warm(stage: Stage) -> None:
    """The client's queue has a consumer."""
    await submitted(stage.backend)
    stage.give(1)
    await _ended(stage, 1)
    stage.workers.credits = 0
    stage.workers.started.clear()


async def test_jobs_one_after_another_use_one_slot_and_one_pull_each(backend: Backend, sent: Counter[str]) -> None:
    """GRID-53, GRID-54, GRID-60, GRID-73: the slot is taken once, named for each job, and freed once"""
    async with a_stage(backend) as stage:
        stage.runs_everything()
        await _warm(stage)
        for _ in range(_JOBS):
            await submitted(backend)
        sent.clear()
        stage.give(1)
        await _ended(stage, _JOBS)
    each = dict.fromkeys(("pull", "answer", "wakeup"), _JOBS)
    assert sent == {**each, "record": 2 * _JOBS, "event": 2 * _JOBS, "slot": _JOBS + 2}


async def test_jobs_at_the_same_time_are_pulled_together(backend: Backend, sent: Counter[str]) -> None:
    """GRID-60, GRID-73: concurrent takes do not try the same number"""
    async with a_stage(backend) as stage:
        stage.runs_everything()
        await _warm(stage)
        for _ in range(_JOBS):
            await submitted(backend)
        await asyncio.sleep(0.5)
        sent.clear()
        stage.give(_JOBS)
        await _ended(stage, _JOBS)
    each = dict.fromkeys(("answer", "wakeup"), _JOBS)
    pulls = 2  # of one job, whose delivery tells how many more there are; then of those
    assert sent == {**each, "pull": pulls, "record": 2 * _JOBS, "event": 2 * _JOBS, "slot": 3 * _JOBS}


async def test_a_job_alone_takes_and_frees_its_slot(backend: Backend, sent: Counter[str]) -> None:
    """GRID-73, GRID-75: nothing is held between two jobs that do not follow each other"""
    async with a_stage(backend) as stage:
        stage.runs_everything()
        await _warm(stage)
        stage.give(1)
        for count in range(1, _JOBS + 1):
            await submitted(backend)
            await _ended(stage, count)
            if count == 1:
                sent.clear()
    jobs = _JOBS - 1
    assert (sent["slot"], sent["pull"], sent["answer"]) == (3 * jobs, jobs, jobs)
    assert sent["record"] == 3 * jobs  # one of them by the client that submits it
