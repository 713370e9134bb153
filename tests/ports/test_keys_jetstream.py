"""API keys in JetStream: the contract, and no stale answer."""

from __future__ import annotations

import asyncio

import pytest

from contracts.keys import KeysContract, MakeKeys, a_key, started
from pyoco_server.config import NatsBackendConfig
from pyoco_server.errors import Unavailable
from pyoco_server.ports.keys.jetstream import JetStreamKeys
from pyoco_server.ports.nats.bucket import Bucket
from pyoco_server.ports.nats.link import Link, Patience, open_link
from pyoco_server.ports.nats.resources import ensure, resources_of
from servers import NatsServer, config_for
from waiting import eventually


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
            link.nc.options["reconnect_time_wait"] = seconds  # so that the other is back first
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
