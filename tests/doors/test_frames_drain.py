"""Doors that do not serve, or no longer: draining, standby, without a quorum (section 8.2). And how many may come."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
import pytest_asyncio

from pyoco_server.core.frames.codec import Type
from pyoco_server.core.frames.messages import HelloClient, HelloWorker
from pyoco_server.core.states import RunState
from pyoco_server.doors.frames import door as door_module
from pyoco_server.doors.frames.assigning import Assigning
from pyoco_server.doors.frames.redirects import Redirects
from pyoco_server.ports.door_records.port import DoorRecord, DoorState
from support.backends import fields_of
from support.grid.peers import ClientPeer, OpenDoor, Peer, WorkerPeer, grid_config, open_door, open_second_door
from support.servers import NatsServer
from support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module")
async def door(nats_url: str) -> AsyncIterator[OpenDoor]:
    grid = grid_config(exec_drain_sec=120.0, exec_worker_down_delay_sec=0.2, exec_run_heartbeat_sec=0.3)
    async with open_door(nats_url, grid) as opened:
        yield opened


async def knows(door: OpenDoor, other: OpenDoor) -> None:
    await eventually(lambda: f"127.0.0.1:{other.port}" in door.door.context.redirects.others())


# Draining -------------------------------------------------------------------------------------------------------------


async def test_a_door_that_drains_sends_everybody_to_another_one_and_waits_for_them(door: OpenDoor) -> None:
    """GRID-41, GRID-42, GRID-45"""
    async with open_second_door(door) as second:
        await knows(second, door)
        client, worker, silent = (
            await ClientPeer.connect(second),
            await WorkerPeer.connect(second),
            await Peer.connect(second),
        )
        await client.hello()
        await worker.hello(worker_id="moves-on", credit=1)
        ack = await client.accepted()
        job = await worker.assigned()
        second.server.close()
        draining = asyncio.create_task(second.door.drain())
        for peer in (client, worker, silent):
            sent = await peer.not_leader()
            assert (sent.reason, sent.leader, sent.group) == ("draining", f"127.0.0.1:{door.port}", door.group)
        # A Hello and a job that come now are sent elsewhere, too.
        msg_id = await client.send(Type.SUBMIT_JOB, client.request().to_payload(), subject="job.submit.calcA")
        assert (await client.next(Type.NOT_LEADER)).corr_id == msg_id
        await silent.send(Type.HELLO_CLIENT, HelloClient(client_id="late").to_payload())
        assert (await silent.not_leader()).reason == "draining"
        assert await silent.ended() == []
        doors, address = door.door.context.programs.doors, f"127.0.0.1:{second.port}"
        await eventually(lambda: [each.state for each in doors.all() if each.addr == address] == [DoorState.DRAINING])
        # The worker attaches at the other door first, then leaves. Its program was started once.
        async with await WorkerPeer.connect(door) as moved:
            await moved.hello("moves-on")
            await moved.beat(job)
            await eventually(lambda: job.run_id in door.door.context.assigned)
            # The old one sees that it has another holder, and a heartbeat does not make it take it back.
            await eventually(lambda: not second.door.context.in_flight.all())
            await worker.beat(job)
            assert await worker.is_silent()
            assert (await door.run(ack.run_id)).program.holder == door.door.context.door_id
            await worker.close()
            await client.close()
            await silent.close()
            await asyncio.wait_for(draining, 120)
            assert await moved.settled(job) == "recorded"
        run = await door.run(ack.run_id)
        assert (run.status, run.attempt, run.program.lost) == (RunState.COMPLETED, 1, 0)


async def test_a_door_that_drains_still_takes_reports_and_claims_nothing(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GRID-41: with nowhere else to go, everybody stays until the time is over."""
    times: list[asyncio.Timeout] = []

    def timeout(seconds: float) -> asyncio.Timeout:
        found = asyncio.timeout(seconds)
        times.extend([found] if seconds == 600.0 else [])
        return found

    monkeypatch.setattr(door_module, "asyncio", SimpleNamespace(**vars(asyncio) | {"timeout": timeout}))
    async with open_door(nats_url, grid_config(exec_drain_sec=600.0)) as door:
        client, worker = await ClientPeer.connect(door), await WorkerPeer.connect(door)
        await client.hello(cap=1)
        await worker.hello(credit=5)
        await client.accepted()
        job = await worker.assigned()
        await client.accepted()
        door.server.close()
        draining = asyncio.create_task(door.door.drain())
        assert (await client.not_leader()).leader is None
        await worker.not_leader()
        archive = b"zip" * 1000
        stored = await worker.stored(job, "output.zip", archive)
        assert stored.startswith(job.run_id)
        assert await worker.settled(job, output_archive=archive) == "recorded"
        assert (await client.result()).output_archive == archive
        assert await worker.is_silent()
        [time_to_drain] = times
        time_to_drain.reschedule(asyncio.get_running_loop().time())
        await asyncio.wait_for(draining, 120)
        await door.door.stop()
        assert await client.ended() == await worker.ended() == []
        await client.close()
        await worker.close()


async def test_what_was_claimed_and_not_handed_over_goes_back_uncounted(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GRID-41"""

    async def never(*_: object) -> None:
        await asyncio.Event().wait()

    async with (
        open_door(nats_url, grid_config(exec_drain_sec=0.2)) as door,
        await ClientPeer.connect(door) as client,
        await WorkerPeer.connect(door) as worker,
    ):
        await client.hello()
        await worker.hello(credit=1)
        monkeypatch.setattr(Assigning, "_fetched", never)
        ack = await client.accepted(files={"large": bytes(100_000)})
        await eventually(lambda: ack.run_id in door.door.context.assigned)
        await door.door.drain()
        run = await door.run(ack.run_id)
        assert (run.status, run.attempt, run.program.lost) == (RunState.PENDING, 0, 0)
        assert ack.run_id not in door.door.context.assigned


# Standby --------------------------------------------------------------------------------------------------------------


async def test_a_standby_sends_everybody_elsewhere_until_it_is_told_to_serve(door: OpenDoor) -> None:
    """GRID-42, GRID-43"""
    async with open_second_door(door, is_standby=True) as standby, await ClientPeer.connect(standby) as client:
        await knows(standby, door)
        hello = HelloClient(client_id="waits").to_payload()
        for _ in range(2):  # without another door, a client may ask again on the same connection
            msg_id = await client.send(Type.HELLO_CLIENT, hello)
            frame = await client.next(Type.NOT_LEADER)
            assert frame.corr_id == msg_id
            assert b'"standby"' in frame.payload
            assert f"127.0.0.1:{door.port}".encode() in frame.payload
        async with await WorkerPeer.connect(standby) as worker:
            await worker.send(Type.HELLO_WORKER, HelloWorker(worker_id="w", patterns=("job.assign.*",)).to_payload())
            assert (await worker.not_leader()).reason == "standby"
        assert standby.door.describe().state is DoorState.STANDBY
        await standby.door.promote()
        assert standby.door.describe().state is DoorState.SERVING
        await client.hello("waits")
        await client.accepted(exec_name="later")
        async with await WorkerPeer.connect(standby) as worker:
            await worker.hello(patterns=["job.assign.later"], credit=1)
            await worker.settled(await worker.assigned())
        await client.result()


# Without a quorum -----------------------------------------------------------------------------------------------------


async def test_a_door_without_a_quorum_says_so_and_comes_back_by_itself(own_nats_server: NatsServer) -> None:
    """GRID-42, GRID-44, GRID-11: what was reported meanwhile is written when that is possible."""
    grid = grid_config(exec_run_heartbeat_sec=0.5, exec_ack_timeout_sec=60.0)
    async with (
        open_door(own_nats_server.url, grid, peers=("127.0.0.1:1",)) as door,
        await ClientPeer.connect(door) as client,
        await WorkerPeer.connect(door) as worker,
    ):
        await client.hello()
        await worker.hello(credit=2)
        ack = await client.accepted()
        job = await worker.assigned()
        with own_nats_server.frozen():
            await eventually(lambda: door.door.state is DoorState.NO_QUORUM)
            await client.submit()
            _, error = await client.error("UNAVAILABLE")
            assert (error.retry, error.retry_after_ms) == (True, 1000)
            async with await ClientPeer.connect(door) as late:
                await late.send(Type.HELLO_CLIENT, HelloClient(client_id="late").to_payload())
                assert (await late.not_leader()).reason == "no_quorum"
            await worker.ack(job, stdout="kept")
            await worker.beat(job)
        await eventually(lambda: door.door.state is DoorState.SERVING)
        await worker.next_of(Type.SETTLED)
        result = await client.result()
        assert (result.job_id, result.stdout, result.attempt) == (ack.job_id, "kept", 1)
        await client.accepted()
        await worker.assigned()


# Where else to go -----------------------------------------------------------------------------------------------------


class Records:
    def __init__(self, *records: DoorRecord) -> None:
        self.records = list(records)

    def all(self, group: str | None = None) -> list[DoorRecord]:
        return [each for each in self.records if group in (None, each.group)]


def a_record(number: int, state: DoorState = DoorState.SERVING, group: str = "g") -> DoorRecord:
    return DoorRecord(door_id=f"d{number}", addr=f"h:{number}", group=group, state=state, started_at=0.0, connections=0)


@pytest.mark.parametrize(
    ("records", "is_up", "others"),
    [
        ([a_record(1), a_record(2), a_record(3)], True, ["h:2", "h:3"]),
        ([a_record(1), a_record(2, DoorState.DRAINING), a_record(3, DoorState.STANDBY)], True, []),
        ([a_record(1), a_record(2, group="other")], True, []),
        ([a_record(1), a_record(2, DoorState.NO_QUORUM)], True, []),
        ([a_record(1), a_record(2)], False, ["p:1", "p:2"]),
        ([], True, ["p:1", "p:2"]),
    ],
)
async def test_addresses_come_from_records_and_from_peers_without_them(
    records: list[DoorRecord], is_up: bool, others: list[str]
) -> None:
    """GRID-46"""
    stub: object = Records(*records)
    redirects = Redirects(
        stub,  # type: ignore[arg-type]  # what is asked of it
        group="g",
        door_id="d1",
        own="h:1",
        peers=["p:1", "p:2", "h:1", "p:1"],
        is_up=lambda: is_up,
    )
    assert redirects.others() == others
    assert redirects.all() == ["h:1", *others]
    told = [redirects.not_leader(DoorState.DRAINING) for _ in range(4)]
    assert {each.leader or "" for each in told} == set(others or [""])
    assert all(each.retry_after_ms > 0 and list(each.doors) == others for each in told)


# How many may come ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", ["exec_max_conns", "exec_max_conns_per_ip"])
async def test_one_connection_too_many_gets_a_word_and_the_end(
    nats_url: str, limit: str, caplog: pytest.LogCaptureFixture
) -> None:
    """GRID-36, GRID-38"""
    caplog.set_level(logging.INFO)
    async with open_door(nats_url, grid_config(**{limit: 2})) as door:
        first, second = await ClientPeer.connect(door), await ClientPeer.connect(door)
        await first.hello()
        await second.hello()
        async with await ClientPeer.connect(door) as third:
            await third.send(Type.HELLO_CLIENT, HelloClient(client_id="third").to_payload())
            _, error = await third.error("TOO_MANY_CONNECTIONS")
            assert (error.retry, error.retry_after_ms) == (True, 5000)
            assert await third.ended() == []

        def closed() -> list[tuple[Any, Any]]:
            told = [fields_of(each) for each in caplog.records if each.getMessage() == "a connection ended"]
            return [(each["reason"], each["role"]) for each in told]

        await eventually(lambda: closed() == [("too_many_connections", "new")])
        await second.close()
        await eventually(lambda: door.server.connections == 1)
        async with await ClientPeer.connect(door) as fourth:
            await fourth.hello()
        await first.accepted()
        await first.close()
