"""The worker registry in JetStream: the contract, and records nobody can read."""

from __future__ import annotations

import logging

import pytest

from contracts.registry import MakeRegistry, RegistryContract, a_worker
from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.worker_record import WorkerRecord, encode_worker
from pyoco_server.ports.nats.link import Link
from pyoco_server.ports.registry.jetstream import JetStreamRegistry


class TestJetStreamRegistry(RegistryContract):
    @pytest.fixture
    def make_registry(self, link: Link, prepared: NatsBackendConfig) -> MakeRegistry:
        self._link, self._bucket = link, prepared.workers_kv_bucket
        return lambda: JetStreamRegistry(link, prepared.workers_kv_bucket, 20.0)

    async def hide(self, record: WorkerRecord) -> None:
        await self._link.store(f"$KV.{self._bucket}.{record.worker_id}", encode_worker(record))


async def test_a_twin_is_warned_of(link: Link, prepared: NatsBackendConfig, caplog: pytest.LogCaptureFixture) -> None:
    """FLOW-200"""
    for instance_id in ("i1", "i2"):
        registry = JetStreamRegistry(link, prepared.workers_kv_bucket, 20.0)
        with caplog.at_level(logging.WARNING):
            await registry.announce(a_worker(instance_id=instance_id))
    assert [record.message for record in caplog.records if "another live worker" in record.message]


async def test_a_record_nobody_can_read_is_replaced_and_passed_over(link: Link, prepared: NatsBackendConfig) -> None:
    await link.store(f"$KV.{prepared.workers_kv_bucket}.w1", b"not json")
    registry = JetStreamRegistry(link, prepared.workers_kv_bucket, 20.0)
    await registry.start()
    assert await registry.all() == []
    record = await registry.announce(a_worker())
    await registry.stop()
    assert await registry.find("w1") == record


async def test_a_worker_id_may_have_dots(link: Link, prepared: NatsBackendConfig) -> None:
    """FLOW-38"""
    registry = JetStreamRegistry(link, prepared.workers_kv_bucket, 20.0)
    await registry.start()
    record = await registry.announce(a_worker("host.example.com=1"))
    assert await registry.find("host.example.com=1") == record
    await registry.stop()
