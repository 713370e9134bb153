"""Schedules in JetStream: the contract, lost answers, and bytes that are no schedule."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from contracts.schedules import MakeSchedules, SchedulesContract, a_schedule
from pyoco_server.config import NatsBackendConfig
from pyoco_server.errors import Corrupt
from pyoco_server.ports.nats.bucket import Bucket
from pyoco_server.ports.nats.ensuring import ensure
from pyoco_server.ports.nats.link import Link
from pyoco_server.ports.nats.resources import resources_of
from pyoco_server.ports.schedules.jetstream import JetStreamSchedules
from support.faults import open_faulty_link
from support.servers import config_for


@pytest.fixture
async def own(link: Link, nats_url: str) -> AsyncIterator[NatsBackendConfig]:
    config = config_for(nats_url)
    (resource,) = [each for each in resources_of(config) if each.name == f"KV_{config.schedules_kv_bucket}"]
    await ensure(link, [resource])
    yield config
    await link.api(f"STREAM.DELETE.{resource.name}", {}, dict[str, Any])


class TestJetStreamSchedules(SchedulesContract):
    @pytest.fixture
    def make_schedules(self, link: Link, own: NatsBackendConfig) -> MakeSchedules:
        return lambda: JetStreamSchedules(link, own.schedules_kv_bucket, 100)


@pytest.mark.parametrize("fault", ["before", "after", "unheard"])
async def test_a_write_knows_itself(nats_url: str, own: NatsBackendConfig, fault: str) -> None:
    link = await open_faulty_link(nats_url)
    schedules = JetStreamSchedules(link, own.schedules_kv_bucket, 100)
    link.faults.append(fault)
    kept = await schedules.create(a_schedule())
    assert kept is not None
    assert await schedules.find("=nightly") == kept
    await link.close()


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff", b'{"id": "x"}', b'{"id": "x", "definition": {"name": 5}}'])
async def test_bytes_that_are_no_schedule_are_told(link: Link, own: NatsBackendConfig, data: bytes) -> None:
    await Bucket(link, own.schedules_kv_bucket).write("s.=nightly", data, 0)
    with pytest.raises(Corrupt):
        await JetStreamSchedules(link, own.schedules_kv_bucket, 100).find("=nightly")
