"""The id of a worker that was started without one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from pyoco_server.actions.choose_worker_id import choose_worker_id
from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.names import host_word, worker_id_problem
from pyoco_server.core.states import WorkerState
from pyoco_server.core.worker_record import WorkerRecord, stopped
from pyoco_server.ports.backend import Backend
from support.backends import Clock, opened_backend


@pytest.fixture
async def backend(config: NatsBackendConfig, clock: Clock) -> AsyncIterator[Backend]:
    async with opened_backend(config) as backend:
        yield replace(backend, clock=clock)


def a_worker(clock: Clock, worker_id: str) -> WorkerRecord:
    return WorkerRecord(
        worker_id=worker_id,
        instance_id="i",
        state=WorkerState.IDLE,
        tags=("default",),
        last_seen_at=clock.now,
        last_heartbeat_at=clock.now,
    )


async def test_an_id_that_is_alive_gets_a_number(backend: Backend, clock: Clock) -> None:
    """CLI-11"""
    assert await choose_worker_id(backend, "host-a") == "host-a"
    for expected in ("host-a", "host-a-2", "host-a-3"):
        assert await choose_worker_id(backend, "host-a") == expected
        await backend.registry.announce(a_worker(clock, expected))
    await backend.registry.retire(stopped(a_worker(clock, "host-a-2"), "sigterm", clock.now))
    assert await choose_worker_id(backend, "host-a") == "host-a-2"
    clock.now += backend.config.worker_disconnect_timeout_sec + 1
    assert await choose_worker_id(backend, "host-a") == "host-a"


@pytest.mark.parametrize("hostname", ["host.example.org", "ホスト", "x" * 300, ""])
def test_every_host_name_gives_a_worker_id(hostname: str) -> None:
    """CLI-11"""
    assert worker_id_problem(host_word(hostname)) is None
