"""API keys in JetStream: the contract, and no stale answer."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

import msgspec
import pytest

from contracts.keys import KeysContract, MakeKeys, a_key, started
from pyoco_server.config import NatsBackendConfig
from pyoco_server.errors import Unavailable
from pyoco_server.ports.keys.jetstream import JetStreamKeys
from pyoco_server.ports.nats.bucket import Bucket
from pyoco_server.ports.nats.ensuring import ensure
from pyoco_server.ports.nats.link import Link, Patience, open_link
from pyoco_server.ports.nats.resources import resources_of
from support.nats_clients import network_client
from support.servers import NatsServer, config_for
from support.waiting import eventually

T = TypeVar("T")


class TestJetStreamKeys(KeysContract):
    @pytest.fixture
    def make_keys(self, link: Link, prepared: NatsBackendConfig) -> MakeKeys:
        return lambda: JetStreamKeys(link, prepared.auth_kv_bucket)


async def test_a_key_revoked_while_we_were_away_is_never_taken_for_valid(own_nats_server: NatsServer) -> None:
    """FLOW-265: after a reconnect the memory may be out of date, so the store itself is asked."""
    config = config_for(own_nats_server.url)
    link = await open_link(own_nats_server.url, "gateway", Patience(down_seconds=0.3))
    other = await open_link(own_nats_server.url, "admin", Patience(down_seconds=60))
    await ensure(link, resources_of(config))
    async with started(JetStreamKeys(link, config.auth_kv_bucket)) as keys:
        await keys.add(a_key())
        was_away: list[bool] = []
        for seconds in (1.0, 1.0, 4.0, 16.0):
            network_client(link).options["reconnect_time_wait"] = seconds  # so that the other is back first
            own_nats_server.kill()
            await eventually(lambda: not link.is_up)
            with pytest.raises(Unavailable):
                await keys.find("k1")
            revoking = asyncio.create_task(JetStreamKeys(other, config.auth_kv_bucket).revoke("k1", 5.0))
            await asyncio.to_thread(own_nats_server.start)
            await revoking
            was_away.append(not link.is_up)
            await eventually(lambda: link.is_up)
            found = await keys.find("k1")
            assert found is not None
            assert found.revoked_at == 5.0
            if was_away.count(True) == 2:
                break
        assert was_away.count(True) == 2
    await link.close()
    await other.close()


class BehindAtFirst(Link):
    """In a cluster, and the node whose copy is read first has nothing yet, as after a restore."""

    is_clustered = True
    consumers = 0

    async def api(self, subject: str, request: Any, answer: type[T], seconds: float | None = None) -> T:
        is_first = subject.startswith("CONSUMER.CREATE.") and not self.consumers
        if is_first:
            request["config"]["pause_until"] = "2200-01-01T00:00:00Z"  # heartbeats come, and nothing else
        self.consumers += subject.startswith("CONSUMER.CREATE.")
        answered = await super().api(subject, request, answer, seconds)
        return msgspec.structs.replace(answered, num_pending=0) if is_first else answered  # type: ignore[type-var]


async def test_a_node_that_has_no_copy_yet_is_not_taken_for_an_empty_bucket(
    link: Link, nats_url: str, prepared: NatsBackendConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FLOW-263: a gateway that starts right after a restore knows every key, or is not ready."""
    monkeypatch.setattr("pyoco_server.ports.nats.watch._SECOND", 100_000_000)  # between heartbeats
    await JetStreamKeys(link, prepared.auth_kv_bucket).add(a_key())
    behind = BehindAtFirst(Patience())
    await behind.open(nats_url, "gateway", 60.0)
    async with started(JetStreamKeys(behind, prepared.auth_kv_bucket)) as keys:
        assert await keys.find("k1") is not None
        assert [record.key_id for record in await keys.all()] == ["k1"]
    assert behind.consumers == 2
    await behind.close()


async def test_a_key_whose_record_was_spoilt_opens_nothing_any_more(link: Link, prepared: NatsBackendConfig) -> None:
    """FLOW-263: closed by default, also on a gateway that has known the key before."""
    async with started(JetStreamKeys(link, prepared.auth_kv_bucket)) as keys:
        await keys.add(a_key())
        assert await keys.find("k1") is not None
        bucket = Bucket(link, prepared.auth_kv_bucket)
        entry = await bucket.get("k1")
        assert entry is not None
        await bucket.write("k1", b"no record", entry.revision)

        async def is_closed() -> bool:
            return await keys.find("k1") is None

        await eventually(is_closed)
