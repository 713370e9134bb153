"""`/healthz` and `/readyz`: open, quick, and silent about the inside."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from pyoco_server.errors import DependencyUnavailable
from pyoco_server.ports.nats.link import Link
from support.priced.gateways import PricedDoor

pytestmark = pytest.mark.asyncio(loop_scope="module")

ALL_WELL = {"ledger": "ok", "budget": "ok", "queue": "ok", "results": "ok", "ledger_identity": "ok"}
#: The stores; whether the ledger is the right one is known without asking.
NAMES = [name for name in ALL_WELL if name != "ledger_identity"]


class _Port:
    """A store that is asked how it is."""

    def __init__(self, error: Exception) -> None:
        self._error = error
        self.asked = 0

    async def ping(self) -> None:
        self.asked += 1
        raise self._error

    probe = ping


class _Silent:
    """A store that never answers. It knows which were asked before it was given up."""

    def __init__(self, name: str, asked: list[str]) -> None:
        self._name, self._asked = name, asked
        self.others: list[str] = []

    async def ping(self) -> None:
        self._asked.append(self._name)
        try:
            await asyncio.Event().wait()
        finally:
            self.others = sorted(self._asked)

    probe = ping


async def test_a_gateway_with_all_its_stores_is_ready(priced_door: PricedDoor) -> None:
    """PRICED-178: no key is needed"""
    answer = await priced_door.client.get("/readyz")
    assert (answer.status_code, answer.json()) == (200, {"status": "ok", "checks": ALL_WELL})
    assert answer.headers["cache-control"] == "no-store"


@pytest.mark.parametrize("name", NAMES)
async def test_one_store_that_does_not_answer_is_enough_to_be_not_ready(priced_door: PricedDoor, name: str) -> None:
    """PRICED-178: the failed one is named, without host names or error texts"""
    broken: dict[str, Any] = {name: _Port(DependencyUnavailable("at db.internal:5432"))}
    with priced_door.with_priced(replace(priced_door.priced, **broken)):
        answer = await priced_door.client.get("/readyz")
    assert (answer.status_code, answer.json()) == (503, {"status": "fail", "checks": ALL_WELL | {name: "fail"}})


@pytest.mark.usefixtures("impatient_gateways")
async def test_stores_that_never_answer_are_waited_for_together(priced_door: PricedDoor) -> None:
    """PRICED-178: 2 s for all, not for each"""
    asked: list[str] = []
    silent: dict[str, Any] = {name: _Silent(name, asked) for name in NAMES}
    with priced_door.with_priced(replace(priced_door.priced, **silent)):
        answer = await priced_door.client.get("/readyz")
    assert [each.others for each in silent.values()] == [sorted(NAMES)] * len(NAMES)
    wanted = dict.fromkeys(NAMES, "fail") | {"ledger_identity": "ok"}
    assert (answer.status_code, answer.json()["checks"]) == (503, wanted)


async def test_the_ledger_of_another_deployment_makes_it_not_ready(priced_door: PricedDoor) -> None:
    """SAFE-12, PRICED-178"""
    with priced_door.with_priced(replace(priced_door.priced, owns_ledger=lambda: False)):
        answer = await priced_door.client.get("/readyz")
    wanted = {"status": "fail", "checks": ALL_WELL | {"ledger_identity": "fail"}}
    assert (answer.status_code, answer.json()) == (503, wanted)


async def test_a_missing_stream_makes_it_not_ready(priced_door: PricedDoor, link_of_module: Link) -> None:
    """SAFE-13"""
    stream = priced_door.priced.config.pack_stream
    made = await link_of_module.api(f"STREAM.INFO.{stream}", {}, dict[str, Any])
    await link_of_module.api(f"STREAM.DELETE.{stream}", {}, dict[str, Any])
    try:
        answer = await priced_door.client.get("/readyz")
        assert (answer.status_code, answer.json()["checks"]) == (503, ALL_WELL | {"queue": "fail"})
    finally:
        await link_of_module.api(f"STREAM.CREATE.{stream}", made["config"], dict[str, Any])
    assert (await priced_door.client.get("/readyz")).status_code == 200


async def test_many_who_ask_at_once_are_told_what_one_look_saw(priced_door: PricedDoor) -> None:
    """No key is needed, and each look writes to the ledger. A caller that gives up does not affect the others."""
    ledger = _Port(DependencyUnavailable())
    broken: dict[str, Any] = {"ledger": ledger}
    look = priced_door.gateway.app.state.gateway.readiness
    with priced_door.with_priced(replace(priced_door.priced, **broken)):
        first, *others = [asyncio.create_task(look()) for _ in range(20)]
        await asyncio.sleep(0)
        first.cancel()
        assert [seen.ledger for seen in await asyncio.gather(*others)] == [False] * 19
        assert ledger.asked == 1
        await priced_door.client.get("/readyz")
    assert ledger.asked == 2, "the next one is told how it is now"


async def test_a_gateway_without_a_ledger_is_not_ready(priced_door: PricedDoor) -> None:
    with priced_door.with_priced(None):
        answer = await priced_door.client.get("/readyz")
    assert (answer.status_code, answer.json()["checks"]) == (503, dict.fromkeys(ALL_WELL, "fail"))


async def test_being_alive_is_told_without_asking_anybody(priced_door: PricedDoor) -> None:
    """PRICED-177"""
    ports = {name: _Port(DependencyUnavailable()) for name in NAMES}
    stores: dict[str, Any] = dict(ports)
    with priced_door.with_priced(replace(priced_door.priced, **stores)):
        answer = await priced_door.client.get("/healthz")
    assert (answer.status_code, answer.json()) == (200, {"status": "ok"})
    assert not any(port.asked for port in ports.values())
