"""The worker that is used as a library, on a real NATS, for tests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from pyoco_server import PyocoNatsWorker
from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.run import Run
from pyoco_server.core.worker_record import WorkerRecord
from pyoco_server.loops.delivery_processor import DeliveryProcessor
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.nats.link import Link
from support import naughty
from support.backends import (
    consumer_state,
    dead_letters,
    jobs_left,
    opened_backend,
    run_now,
)
from support.faulty_ports import Trouble, with_trouble

__all__ = ["Scene", "backend", "letter_of", "put_raw", "scene"]


@pytest.fixture
async def backend(config: NatsBackendConfig) -> AsyncIterator[Backend]:
    quick = replace(config, run_heartbeat_interval_sec=0.1, worker_heartbeat_interval_sec=0.2)
    async with opened_backend(quick) as backend:
        yield backend


@dataclass
class Scene:
    """A worker, and everything it leaves traces in."""

    worker: PyocoNatsWorker
    backend: Backend
    link: Link

    async def run_id_after(self, timeout: float = 60.0) -> str | None:
        async with asyncio.timeout(200):
            return await self.worker.run_once(timeout)

    async def run_id_of_polls(self, timeout: float) -> str | None:
        """Of the first, unless a busy machine needs longer for an answer."""
        for _ in range(5):
            if (run_id := await self.worker.run_once(timeout)) is not None:
                return run_id
        return None

    async def run(self, run_id: str) -> Run:
        return await run_now(self.backend, run_id)

    async def letters(self) -> list[dict[str, Any]]:
        return [letter["body"] for letter in await dead_letters(self.link, self.backend.config)]

    async def has_gone(self) -> bool:
        """ACK and TERM remove a job for good: nothing is left, and nothing waits to come again."""
        state = await consumer_state(self.link, self.backend.config)
        return state["num_ack_pending"] == 0 and await jobs_left(self.link, self.backend.config) == []

    async def comes_again(self) -> bool:
        """NAK leaves it in the queue, with its timer running."""
        return len(await jobs_left(self.link, self.backend.config)) == 1

    async def registered(self) -> WorkerRecord:
        found = await self.backend.registry.find("worker")
        assert found is not None
        return found

    def troubled(self, trouble: Trouble) -> None:
        """From now on the worker's own calls may fail. They are counted, too."""
        faulty = with_trouble(self.worker._backend, trouble)
        old = self.worker._processor
        assert old is not None
        self.worker._processor = DeliveryProcessor(
            faulty, old._executor, old._me, old._pulse, old._terms, old._when_changed
        )


@pytest.fixture
async def scene(backend: Backend, link: Link) -> AsyncIterator[Scene]:
    worker = await PyocoNatsWorker.connect(backend.config, naughty.resolve)
    yield Scene(worker, backend, link)
    await worker.close()


async def put_raw(scene: Scene, body: bytes, tag: str = "default") -> None:
    await scene.link.store(f"{scene.backend.config.work_subject_prefix}.{tag}", body)


def letter_of(letter: dict[str, Any], reason: str, run_id: str | None) -> None:
    """FLOW-331 to FLOW-334, FLOW-337"""
    assert abs(letter["timestamp"] - time.time()) < 300
    assert letter["reason"] == reason
    assert isinstance(letter["error"], str)
    assert letter.get("run_id") == run_id
    assert (letter["tag"], letter["worker_id"]) == ("default", "worker")
    assert letter["num_delivered"] >= 1
    assert letter["subject"].endswith(".default")
    assert set(letter) <= {
        "timestamp", "reason", "error", "run_id", "flow_name", "tag", "tags", "worker_id", "num_delivered", "subject",
    }  # fmt: skip
