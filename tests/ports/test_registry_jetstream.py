"""The worker registry in JetStream: the contract, and records nobody can read."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import time
from typing import Any

import pytest

from contracts.registry import MakeRegistry, RegistryContract, a_worker, started
from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.worker_record import encode_worker
from pyoco_server.errors import Unavailable
from pyoco_server.ports.nats.bucket import Bucket, Entry
from pyoco_server.ports.nats.ensuring import ensure
from pyoco_server.ports.nats.link import Link, Patience, open_link
from pyoco_server.ports.nats.resources import resources_of
from pyoco_server.ports.registry.jetstream import JetStreamRegistry
from support.servers import NatsServer, config_for, unique
from support.waiting import eventually


class TestJetStreamRegistry(RegistryContract):
    @pytest.fixture
    def make_registry(self, link: Link, prepared: NatsBackendConfig) -> MakeRegistry:
        return lambda: JetStreamRegistry(link, prepared.workers_kv_bucket, 20.0)


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


async def test_hiding_keeps_what_a_newer_worker_tells(link: Link, prepared: NatsBackendConfig) -> None:
    """FLOW-148, FLOW-551"""
    told = json.loads(encode_worker(a_worker())) | {"colour": "red"}
    await link.store(f"$KV.{prepared.workers_kv_bucket}.w1", json.dumps(told).encode())
    await JetStreamRegistry(link, prepared.workers_kv_bucket, 20.0).hide("w1", True, 7.0)
    entry = await Bucket(link, prepared.workers_kv_bucket).get("w1")
    assert entry is not None
    assert json.loads(entry.value or b"") == told | {"hidden": True, "updated_at": 7.0}


async def test_hiding_never_writes_over_what_the_worker_said_meanwhile(
    link: Link, prepared: NatsBackendConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FLOW-148: a heartbeat between the operator's look and the operator's word"""
    worker, operator = (JetStreamRegistry(link, prepared.workers_kv_bucket, 20.0) for _ in range(2))
    await worker.announce(a_worker(slots=0))
    look = operator._bucket.get
    beats = 0

    async def look_while_it_beats(key: str) -> Entry | None:
        nonlocal beats
        entry = await look(key)
        if beats < 3:
            beats += 1
            await worker.announce(a_worker(slots=beats))
        return entry

    monkeypatch.setattr(operator._bucket, "get", look_while_it_beats)
    said = await operator.hide("w1", True, 7.0)
    assert said is not None
    assert (said.slots, said.hidden) == (3, True)
    assert await worker.find("w1") == said


async def test_a_word_said_elsewhere_is_read_at_once_by_who_says_it_again(
    link: Link, prepared: NatsBackendConfig
) -> None:
    """FLOW-147: the watch may not have told of it yet"""
    registry = JetStreamRegistry(link, prepared.workers_kv_bucket, 20.0)
    async with started(registry):
        await registry.announce(a_worker())
        assert registry._mirror._task is not None
        registry._mirror._task.cancel()
        await asyncio.wait({registry._mirror._task})
        said = await JetStreamRegistry(link, prepared.workers_kv_bucket, 20.0).hide("w1", True, 7.0)
        assert [record.hidden for record in await registry.all()] == [False]
        assert await registry.hide("w1", True, 8.0) == said
        assert await registry.all() == [said]


async def test_a_record_nobody_can_read_can_neither_be_hidden_nor_removed(
    link: Link, prepared: NatsBackendConfig
) -> None:
    """FLOW-145"""
    await link.store(f"$KV.{prepared.workers_kv_bucket}.w1", b"not json")
    registry = JetStreamRegistry(link, prepared.workers_kv_bucket, 20.0)
    assert await registry.hide("w1", True, 7.0) is None
    assert not await registry.remove(a_worker())
    entry = await Bucket(link, prepared.workers_kv_bucket).get("w1")
    assert entry is not None
    assert entry.value == b"not json"


async def test_a_removed_record_leaves_a_marker_that_ends_where_the_bucket_allows_it(link: Link) -> None:
    """Names that are never used again must not pile up"""
    bucket = unique("workers")
    config = {"name": f"KV_{bucket}", "subjects": [f"$KV.{bucket}.>"], "max_msgs_per_subject": 1, "allow_msg_ttl": True}
    await link.api(f"STREAM.CREATE.KV_{bucket}", config, dict[str, Any])
    registry = JetStreamRegistry(link, bucket, 20.0)
    seen = await registry.announce(a_worker())
    assert await registry.remove(seen)
    answer = await link.api(f"STREAM.MSG.GET.KV_{bucket}", {"last_by_subj": f"$KV.{bucket}.w1"}, dict[str, Any])
    headers = base64.b64decode(answer["message"]["hdrs"]).decode()
    assert "KV-Operation: DEL" in headers
    assert "Nats-TTL: 86400s" in headers
    # As if the day were over: not even the marker is left, and the worker comes back.
    await link.api(f"STREAM.PURGE.KV_{bucket}", {}, dict[str, Any])
    back = await registry.announce(a_worker())
    assert await registry.find("w1") == back
    await link.api(f"STREAM.DELETE.KV_{bucket}", {}, dict[str, Any])


async def test_workers_are_not_listed_from_memory_while_nats_is_away(own_nats_server: NatsServer) -> None:
    """FLOW-47, FLOW-62: a list that may be out of date is none"""
    config = config_for(own_nats_server.url)
    link = await open_link(own_nats_server.url, "gateway", Patience(down_seconds=0.3))
    await ensure(link, resources_of(config))
    async with started(JetStreamRegistry(link, config.workers_kv_bucket, 20.0)) as registry:
        record = await registry.announce(a_worker())
        assert await registry.all() == [record]
        await asyncio.to_thread(own_nats_server.kill)
        await eventually(lambda: not link.is_up)
        began = time.monotonic()
        with pytest.raises(Unavailable):
            await registry.all()
        assert time.monotonic() - began < 60
        await asyncio.to_thread(own_nats_server.start)
        await eventually(lambda: link.is_up)
        assert await registry.all() == [record]  # it waits for the watch, and not for luck
    await link.close()
