"""Doors, ACL, placements, events and hints over NATS: their contracts, and what is their own."""

from __future__ import annotations

import itertools
import json
import time
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest

from contracts.acl import AclContract, MakeAcl
from contracts.door_records import DoorRecordsContract, MakeDoorRecords, a_door
from contracts.program_events import EventsContract, MakeEvents, an_event, names
from contracts.routes import MakeRoutes, RoutesContract
from contracts.wakeups import HintsContract, MakeHints
from pyoco_server.errors import NotStored
from pyoco_server.ports.acl.jetstream import JetStreamAcl
from pyoco_server.ports.acl.port import AclRecord
from pyoco_server.ports.door_records.jetstream import JetStreamDoorRecords
from pyoco_server.ports.nats.bucket import Bucket
from pyoco_server.ports.nats.grid_resources import ACL_BUCKET, DOORS_BUCKET, ROUTES_BUCKET
from pyoco_server.ports.nats.link import Link, Patience, open_link
from pyoco_server.ports.program_events.jetstream import JetStreamEvents
from pyoco_server.ports.program_events.port import EventName
from pyoco_server.ports.routes.jetstream import JetStreamRoutes
from pyoco_server.ports.wakeups.nats import NatsWakeups
from pyoco_server.ports.wakeups.port import Wakeup
from support.servers import NatsServer, unique
from support.waiting import eventually

EVENTS_STREAM = "PYOCO_EXEC_EVENTS"


class TestJetStreamDoorRecords(DoorRecordsContract):
    @pytest.fixture
    async def make_doors(self, links: tuple[Link, Link]) -> AsyncIterator[MakeDoorRecords]:
        made: list[JetStreamDoorRecords] = []
        turns = itertools.cycle(links)

        async def make(ahead: float = 0.0) -> JetStreamDoorRecords:
            made.append(JetStreamDoorRecords(next(turns), DOORS_BUCKET, lambda: time.time() + ahead))
            await made[-1].start()
            return made[-1]

        yield make
        for doors in made:
            await doors.stop()


async def test_a_door_whose_record_is_gone_writes_it_again(links: tuple[Link, Link], group: str) -> None:
    """After an outage of more than 15 s"""
    doors, door = JetStreamDoorRecords(links[0], DOORS_BUCKET, time.time), a_door(group)
    await doors.announce(door)
    request = {"filter": f"$KV.{DOORS_BUCKET}.{door.door_id}"}
    await links[0].api(f"STREAM.PURGE.KV_{DOORS_BUCKET}", request, dict[str, Any])
    await doors.announce(door)
    entry = await Bucket(links[1], DOORS_BUCKET).get(door.door_id)
    assert entry is not None
    assert json.loads(entry.value or b"") == {
        "addr": "127.0.0.1:5000",
        "group": group,
        "state": "serving",
        "started_at": 1.5,
        "connections": 3,
    }


async def test_a_door_nobody_can_read_is_none(links: tuple[Link, Link], group: str) -> None:
    door_id = unique("d")
    await links[0].store(f"$KV.{DOORS_BUCKET}.{door_id}", b"[]")
    doors = JetStreamDoorRecords(links[0], DOORS_BUCKET, time.time)
    await doors.start()
    assert [each for each in doors.all() if each.door_id == door_id] == []
    await doors.stop()


class TestJetStreamAcl(AclContract):
    @pytest.fixture
    async def make_acl(self, links: tuple[Link, Link]) -> AsyncIterator[MakeAcl]:
        made: list[JetStreamAcl] = []
        turns = itertools.cycle(links)

        async def make() -> JetStreamAcl:
            made.append(JetStreamAcl(next(turns), ACL_BUCKET))
            await made[-1].start()
            return made[-1]

        yield make
        for acl in made:
            await acl.stop()


async def test_acl_records_look_as_the_contract_says(links: tuple[Link, Link]) -> None:
    """GRID-168, and that what cannot be read allows nothing"""
    acl, of = JetStreamAcl(links[0], ACL_BUCKET), unique("x")
    await acl.put("client", of, AclRecord(api_key_ids=("k",), execs=("calc*",), max_cap=3))
    await acl.put("worker", of, AclRecord(api_key_ids=("k",), execs=("*",)))
    told = [await Bucket(links[1], ACL_BUCKET).get(f"{kind}.{of}") for kind in ("client", "worker")]
    assert [json.loads(each.value or b"") for each in told if each is not None] == [
        {"api_key_ids": ["k"], "execs": ["calc*"], "max_cap": 3, "groups": ["*"]},
        {"api_key_ids": ["k"], "execs": ["*"]},
    ]
    await links[0].store(f"$KV.{ACL_BUCKET}.client.{of}", b'{"execs": "*"}')
    await acl.start()
    assert acl.find("client", of) is None
    assert acl.find("worker", of) == AclRecord(api_key_ids=("k",), execs=("*",))
    await acl.stop()


class TestJetStreamRoutes(RoutesContract):
    @pytest.fixture
    def make_routes(self, links: tuple[Link, Link]) -> MakeRoutes:
        turns = itertools.cycle(links)
        return lambda: JetStreamRoutes(next(turns), ROUTES_BUCKET)


async def test_a_placement_nobody_can_read_is_written_over(links: tuple[Link, Link]) -> None:
    routes, job_id = JetStreamRoutes(links[0], ROUTES_BUCKET), str(uuid.uuid4())
    await links[0].store(f"$KV.{ROUTES_BUCKET}.{job_id}", b"spoilt")
    assert await routes.find(job_id) is None
    assert (await routes.place(job_id, "g1", 5.0)).group == "g1"


class TestJetStreamEvents(EventsContract):
    @pytest.fixture
    def make_events(self, links: tuple[Link, Link]) -> MakeEvents:
        turns = itertools.cycle(links)
        return lambda: JetStreamEvents(next(turns), EVENTS_STREAM)


async def test_where_no_history_is_wanted_none_is_kept(links: tuple[Link, Link], group: str) -> None:
    """GRID-173: EXEC_EVENTS=0"""
    events = JetStreamEvents(links[0], EVENTS_STREAM, is_kept=False)
    await events.tell(an_event(group))
    await events.record(an_event(group, EventName.ACK))
    await JetStreamEvents(links[0], EVENTS_STREAM).record(an_event(group, EventName.DLQ))
    assert await names(events, group) == [EventName.DLQ]


async def test_a_strangers_event_is_passed_over(links: tuple[Link, Link], group: str) -> None:
    events = JetStreamEvents(links[0], EVENTS_STREAM)
    await links[0].store(f"pyoco.execev.{group}.ack", b"who knows")
    await events.record(an_event(group, EventName.DLQ))
    assert await names(events, group) == [EventName.DLQ]


class TestNatsHints(HintsContract):
    @pytest.fixture
    def make_hints(self, links: tuple[Link, Link]) -> MakeHints:
        turns = itertools.cycle(links)
        return lambda: NatsWakeups(next(turns))


async def test_without_a_connection_hints_and_events_vanish_in_silence(own_nats_server: NatsServer) -> None:
    """And with it they are heard again, by whoever listened before. What is recorded fails."""
    link = await open_link(own_nats_server.url, "hints", Patience(down_seconds=0.05, unanswered_seconds=0.2))
    wakeups, heard = NatsWakeups(link), list[str]()
    listening = await wakeups.listen("g", lambda _, word: heard.append(word))
    own_nats_server.kill()
    await eventually(lambda: not link.is_up and link.connection > 0)  # all has been told of the loss
    events = JetStreamEvents(link, EVENTS_STREAM)
    await wakeups.tell("g", Wakeup.DONE, "lost")
    for _ in range(3):
        await events.tell(an_event("g", detail="x" * 1_000_000))
    with pytest.raises(NotStored):
        await events.record(an_event("g"))
    own_nats_server.start()

    async def tell() -> bool:
        await wakeups.tell("g", Wakeup.DONE, "heard")
        return bool(heard)

    await eventually(tell)
    assert set(heard) == {"heard"}
    await listening.close()
    await link.close()


async def test_a_strange_hint_is_not_heard(links: tuple[Link, Link], group: str) -> None:
    wakeups, heard = NatsWakeups(links[0]), list[tuple[Wakeup, str]]()
    listening = await wakeups.listen(group, lambda *told: heard.append(told))

    async def tell() -> bool:
        await links[1].nc.send(f"pyoco.exechint.{group}.else", b"x")
        await links[1].nc.send(f"pyoco.exechint.{group}.new", b"\xff")
        return bool(heard)

    await eventually(tell)
    assert {wakeup for wakeup, _ in heard} == {Wakeup.NEW}
    await listening.close()
