"""`/health` and `/ready`: whether the gateway lives, and whether it can be used."""

from __future__ import annotations

from gateways import (
    Gateway,
)
from waiting import eventually


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
        assert (await gateway.client.get("/ready")).json() == {"status": "ready", "nats": True, "index": True}
