"""Slots and caps in JetStream: the contract, and records nobody can read."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator

import pytest

from contracts.slots import MakeSlots, SlotsContract, a_slot
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
    assert json.loads(entry.value or b"") == {"token": "t", "run_id": None, "t": 1.0, "holder": "h"}
    await slots.set_cap(group, "clientA", Cap(4, 5.0, "hello"))
    entry = await Bucket(links[1], CLIENTS_BUCKET).get(f"{group}.clientA")
    assert entry is not None
    assert json.loads(entry.value or b"") == {"cap": 4, "updated_at": 5.0, "source": "hello"}


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
