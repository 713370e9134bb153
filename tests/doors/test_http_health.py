"""`/health` and `/ready`: whether the gateway lives, and whether it can be used."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pyoco_server.ports.nats.link import open_link
from pyoco_server.ports.store_state import StoreState
from support.configured_nats import configured_nats
from support.gateways import Gateway, error, open_gateway
from support.servers import config_for
from support.waiting import eventually


class TestHealth:
    async def test_health_says_ok(self, gateway: Gateway) -> None:
        """FLOW-63"""
        answer = await gateway.client.get("/health")
        assert (answer.status_code, answer.content) == (200, b'{"status":"ok"}')
        assert answer.headers["content-type"] == "application/json"

    async def test_ready_says_what_can_be_used(self, gateway: Gateway) -> None:
        async def is_ready() -> bool:
            return (await gateway.client.get("/ready")).status_code == 200

        await eventually(is_ready)
        assert (await gateway.client.get("/ready")).json() == {
            "status": "ready",
            "nats": True,
            "index": True,
            "store": True,
        }

    async def test_a_gateway_whose_writes_find_no_room_is_not_ready_until_one_is_stored(self, tmp_path: Path) -> None:
        """ERR-PYOCO-0032"""
        with configured_nats(tmp_path, jetstream="max_file_store: 300KB") as nats:
            config = config_for(nats.url, data_dir=str(tmp_path / "data"), dlq_max_bytes=10_000)
            async with open_gateway(config) as gateway:
                large = {"flow_name": "f", "params": {"text": "x" * 20_000}}
                for _ in range(30):
                    refused = await gateway.client.post("/runs", json=large)
                    if refused.status_code != 200:
                        break
                assert (refused.status_code, refused.json()) == (503, error(32, "no room on the disk"))
                await eventually(lambda: gateway.app.state.gateway.feeder.caught_up(0))
                answer = await gateway.client.get("/ready")
                facts = {"status": "not ready", "nats": True, "index": True, "store": False, "stuck": False}
                assert (answer.status_code, answer.json()) == (503, error(32, "no room on the disk") | facts)
                link = await open_link(nats.url, "tests")
                for stream in (f"KV_{config.runs_kv_bucket}", config.work_stream):
                    await link.api(f"STREAM.PURGE.{stream}", {}, dict[str, Any])
                await link.close()
                assert (await gateway.client.post("/runs", json=large)).status_code == 200
                assert (await gateway.client.get("/ready")).json()["store"] is True

    @pytest.mark.parametrize(("store", "is_stuck"), [(StoreState.FULL, False), (StoreState.STUCK, True)])
    async def test_ready_tells_whether_nats_has_to_be_restarted(
        self, gateway: Gateway, store: StoreState, is_stuck: bool
    ) -> None:
        """`pyoco-server up` goes by it."""
        state = gateway.app.state.gateway
        state.backend = replace(state.backend, store_state=lambda: store)
        answer = await gateway.client.get("/ready")
        told = answer.json()
        assert (answer.status_code, told["store"], told["stuck"]) == (503, False, is_stuck)
