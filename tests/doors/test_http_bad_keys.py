"""The rate limit on bad keys (section 14 of the contract)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import httpx

from pyoco_server.doors.http.slowdown import Slowdown
from support.gateways import Gateway, error
from support.http_keys import BAD, REFUSED, a_key, ask, gateway
from support.waiting import eventually

__all__ = ["gateway"]

TOO_MANY = error(29, "too many bad api keys")


# Patience with bad keys


@dataclass
class Brake:
    """Instead of a sleep: notes for how long, and holds on until it is let go."""

    asked: list[float] = field(default_factory=list)
    go: asyncio.Event = field(default_factory=asyncio.Event)

    async def sleep(self, seconds: float) -> None:
        self.asked.append(seconds)
        await self.go.wait()


def with_brake(gateway: Gateway, sleep: Callable[[float], Awaitable[object]]) -> None:
    gateway.app.state.gateway.slowdown = Slowdown(lambda: 1000.0, sleep)


def client_at(gateway: Gateway, host: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(gateway.app, client=(host, 1)), base_url="http://gateway")


class TestBadKeys:
    async def test_are_answered_at_once_at_first_and_then_later_but_always_the_same(self, gateway: Gateway) -> None:
        """FLOW-263"""
        brake = Brake()
        brake.go.set()
        with_brake(gateway, brake.sleep)
        answers = [await gateway.client.get("/runs", headers=BAD) for _ in range(15)]
        assert {(answer.status_code, answer.content) for answer in answers} == {(403, answers[0].content)}
        assert answers[0].json() == REFUSED
        assert brake.asked == [0.1, 0.2, 0.4, 0.8, 1.6]

    async def test_never_delay_a_good_one_from_the_same_address(self, gateway: Gateway) -> None:
        """Behind a proxy all have one address"""
        good, _ = await a_key(gateway)
        brake = Brake()
        with_brake(gateway, brake.sleep)
        for _ in range(10):
            assert (await gateway.client.get("/runs", headers=BAD)).status_code == 403
        waiting = [asyncio.create_task(gateway.client.get("/runs", headers=BAD)) for _ in range(8)]
        await eventually(lambda: len(brake.asked) == 8)
        for _ in range(3):
            assert (await gateway.client.get("/runs", headers=good)).status_code == 200
            assert (await gateway.client.get("/runs")).status_code == 401
            refused = await gateway.client.post("/runs", headers=BAD, json={"flow_name": "f"})
            assert (refused.status_code, refused.json()) == (429, TOO_MANY)
            assert refused.headers["retry-after"] == "2"
        assert not any(task.done() for task in waiting)
        brake.go.set()
        assert {answer.status_code for answer in await asyncio.gather(*waiting)} == {403}

    async def test_of_one_address_leave_others_alone(self, gateway: Gateway) -> None:
        brake = Brake()
        with_brake(gateway, brake.sleep)
        async with client_at(gateway, "10.0.0.1") as bad, client_at(gateway, "10.0.0.2") as clumsy:
            for _ in range(10):
                await bad.get("/runs", headers=BAD)
            waiting = asyncio.create_task(bad.get("/runs", headers=BAD))
            await eventually(lambda: len(brake.asked) == 1)
            assert (await clumsy.get("/runs", headers=BAD)).status_code == 403
            brake.go.set()
            await waiting

    async def test_are_counted_without_an_address_too(self, gateway: Gateway) -> None:
        """A server on a Unix socket knows none"""
        brake = Brake()
        brake.go.set()
        with_brake(gateway, brake.sleep)
        headers = [(b"x-api-key", BAD["X-API-Key"].encode())]
        for _ in range(11):
            status, _ = await ask(gateway, "GET", "/runs", client=None, headers=headers)
            assert status == 403
        assert brake.asked == [0.1]

    async def test_cannot_hide_behind_a_header(self, gateway: Gateway) -> None:
        brake = Brake()
        brake.go.set()
        with_brake(gateway, brake.sleep)
        for n in range(12):
            await gateway.client.get("/runs", headers=BAD | {"X-Forwarded-For": f"10.0.0.{n}", "Forwarded": f"for={n}"})
        assert brake.asked == [0.1, 0.2]

    async def test_that_are_missing_are_not_counted(self, gateway: Gateway) -> None:
        brake = Brake()
        with_brake(gateway, brake.sleep)
        for _ in range(50):
            assert (await gateway.client.get("/runs")).status_code == 401
        assert brake.asked == []

    async def test_really_take_their_time(self, gateway: Gateway) -> None:
        """With the clock on the wall"""
        for _ in range(10):
            await gateway.client.get("/runs", headers=BAD)
        began = time.monotonic()
        assert (await gateway.client.get("/runs", headers=BAD)).status_code == 403
        assert 0.1 <= time.monotonic() - began < 60
