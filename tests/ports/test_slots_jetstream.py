"""Slots and caps in JetStream: the contract, and records nobody can read."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator

import pytest

from contracts.slots import MakeSlots, SlotsContract, a_slot
from pyoco_server.core.programs.names import client_key
from pyoco_server.ports.nats.bucket import Bucket
from pyoco_server.ports.nats.grid_resources import CLIENTS_BUCKET, SLOTS_BUCKET
from pyoco_server.ports.nats.link import Link
from pyoco_server.ports.slots.jetstream import JetStreamSlots
from pyoco_server.ports.slots.port import Cap


class TestJetStreamSlots(SlotsContract):
    @pytest.fixture
    async def make_slots(self, links: tuple[Link, Link]) -> AsyncIterator[MakeSlots]:
        made: list[JetStreamSlots] = []
        turns = itertools.cycle(links)

        async def make() -> JetStreamSlots:
            made.append(JetStreamSlots(next(turns), SLOTS_BUCKET, CLIENTS_BUCKET))
            await made[-1].start()
            return made[-1]

        yield make
        for slots in made:
            await slots.stop()


async def test_records_look_as_the_contract_says(links: tuple[Link, Link], group: str) -> None:
    """GRID-73, section 2.1"""
    slots = JetStreamSlots(links[0], SLOTS_BUCKET, CLIENTS_BUCKET)
    taken = await slots.take(a_slot(group, 3))
    assert taken is not None
    entry = await Bucket(links[1], SLOTS_BUCKET).get(f"{group}.clientA.3")
    assert entry is not None
    assert json.loads(entry.value or b"") == {"token": "t", "run_id": None, "t": 1.0, "holder": "h", "scope": "tenant"}
    await slots.set_cap(group, "clientA", Cap(4, 5.0, "hello"))
    entry = await Bucket(links[1], CLIENTS_BUCKET).get(f"{group}.clientA")
    assert entry is not None
    assert json.loads(entry.value or b"") == {
        "cap": 4,
        "updated_at": 5.0,
        "source": "hello",
        "scope": "tenant",
        "before": None,
    }


async def test_what_cannot_be_read_is_held_by_nobody(links: tuple[Link, Link], group: str) -> None:
    for key, data in ((f"{group}.clientA.0", b"no json"), (f"{group}.clientA.one", b"{}"), (group, b"{}")):
        await links[0].store(f"$KV.{SLOTS_BUCKET}.{key}", data)
    await links[0].store(f"$KV.{CLIENTS_BUCKET}.{group}.clientA", b'{"cap": "many"}')
    slots = JetStreamSlots(links[1], SLOTS_BUCKET, CLIENTS_BUCKET)
    await slots.start()
    assert slots.held(group, "clientA") == []
    assert slots.cap(group, "clientA") is None
    taken = await slots.take(a_slot(group))
    assert slots.held(group, "clientA") == [taken]
    await slots.stop()


async def test_a_word_that_comes_late_changes_nothing(links: tuple[Link, Link], group: str) -> None:
    """The watch may tell of a slot after its owner has given it back and noted that."""
    slots = JetStreamSlots(links[0], SLOTS_BUCKET, CLIENTS_BUCKET)
    taken = await slots.take(a_slot(group))
    assert taken is not None
    entry = await Bucket(links[0], SLOTS_BUCKET).get(f"{group}.clientA.0")
    assert entry is not None
    assert await slots.free(taken)
    slots._table.note(entry)
    assert slots.held(group, "clientA") == []


class TestRecordsOfAVersionWithoutTenants:
    """Slots and caps were kept by client id alone."""

    @pytest.fixture
    async def slots(self, links: tuple[Link, Link], group: str) -> AsyncIterator[JetStreamSlots]:
        old = {"token": "t", "run_id": "r1", "t": 1.0, "holder": "h"}
        for number in (0, 2):
            await links[0].store(f"$KV.{SLOTS_BUCKET}.{group}.clientA.{number}", json.dumps(old).encode())
        cap = {"cap": 7, "updated_at": 1.0, "source": "http"}
        await links[0].store(f"$KV.{CLIENTS_BUCKET}.{group}.clientA", json.dumps(cap).encode())
        slots = JetStreamSlots(links[1], SLOTS_BUCKET, CLIENTS_BUCKET)
        await slots.start()
        yield slots
        await slots.stop()

    async def test_a_held_slot_counts_for_each_tenant_until_it_is_given_back(
        self, slots: JetStreamSlots, group: str
    ) -> None:
        """SAFE-4, GRID-72: nobody knows whose it is, and no cap may be exceeded"""
        mine = client_key("clientA", "team-a")
        for client in ("clientA", mine, client_key("clientA", "team-b")):
            assert [slot.number for slot in slots.held(group, client)] == [0, 2]
            assert slots.count(group, client) == 2
        assert not slots.held(group, client_key("clientB", "team-a"))
        assert set(slots.all_held(group)) == {"clientA"}
        taken = await slots.take(a_slot(group, 1, client=mine))
        assert taken is not None
        assert (slots.count(group, mine), slots.count(group, "clientA")) == (3, 2)
        for slot in slots.held(group, mine):
            assert await slots.free(slot)
        assert not slots.held(group, mine)
        assert not slots.held(group, "clientA")

    async def test_a_slot_that_is_taken_without_a_tenant_since_counts_for_no_tenant(
        self, slots: JetStreamSlots, group: str
    ) -> None:
        """SAFE-4"""
        assert await slots.take(a_slot(group, 1)) is not None
        assert slots.count(group, "clientA") == 3
        assert slots.count(group, client_key("clientA", "team-a")) == 2

    async def test_a_cap_holds_for_each_tenant_until_that_one_says_another(
        self, slots: JetStreamSlots, group: str
    ) -> None:
        """SAFE-4"""
        tenants = [client_key("clientA", tenant) for tenant in ("team-a", "team-b")]

        def caps() -> list[int | None]:
            found = (slots.cap(group, client) for client in ("clientA", *tenants))
            return [None if cap is None else cap.cap for cap in found]

        assert caps() == [7, 7, 7]
        await slots.set_cap(group, tenants[0], Cap(3, 2.0, "http"))
        assert caps() == [7, 3, 7]
        await slots.set_cap(group, "clientA", Cap(2, 3.0, "http"))
        assert caps() == [2, 3, 7]
        await slots.set_cap(group, "clientA", Cap(4, 4.0, "hello"))
        assert caps() == [4, 3, 7]
        assert slots.cap(group, client_key("clientB", "team-a")) is None
