"""How a client of one group connects to a door, and what it refuses before it sends."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from pyoco_server.core.frames.codec import Frame
from pyoco_server.core.programs.faults import Code
from pyoco_server.core.states import RunState
from pyoco_server.frames.addresses import Address, Addresses
from pyoco_server.grid_client import (
    DoorUnreachable,
    GridClient,
    GridRefused,
    JobRequest,
    LinkSettings,
    Pace,
    client_context,
)
from support.grid.fake_door import QUICK, FakeDoor, Talk
from support.grid.multi_clients import gives_up_soon
from support.grid.single_clients import ask, client, client_of, door
from support.priced.url_sites import Authority
from support.waiting import eventually

__all__ = ["client", "door"]


class TestConnecting:
    async def test_the_delay_doubles_to_half_a_minute_and_is_jittered(self) -> None:
        """GRID-123, GRID-194"""
        chances = iter([0.0, 1.0, *[0.5] * 10])
        addresses = Addresses([Address("h", 1)], clock=lambda: 0.0, chance=lambda: next(chances))
        delays = [round(addresses.delay(), 6) for _ in range(9)]
        assert delays == [0.4, 1.2, 2, 4, 8, 16, 30, 30, 30]

    async def test_tries_do_not_end_by_themselves(self, door: FakeDoor) -> None:
        """GRID-123"""
        pauses: list[float] = []

        async def sleep(seconds: float) -> None:
            pauses.append(seconds)
            await asyncio.sleep(0)
            if len(pauses) == 12:
                await door.start()

        await door.stop()
        async with client_of(door, settings=LinkSettings(pace=Pace(chance=lambda: 0.5, sleep=sleep))) as client:
            await client.run(ask())
        assert pauses[:9] == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]

    async def test_a_limit_ends_them(self, door: FakeDoor) -> None:
        """GRID-120, GRID-123"""
        await door.stop()
        settings = LinkSettings(connect_timeout=0.2, pace=QUICK.pace)
        client = client_of(door, settings=settings)
        with pytest.raises(DoorUnreachable, match=door.address):
            await client.connect()
        with pytest.raises(DoorUnreachable):
            await client.submit(ask())
        await client.close()

    async def test_the_limit_counts_later_too_and_ends_what_waits(self, door: FakeDoor) -> None:
        """GRID-123"""
        door.is_holding = True
        client = client_of(door)
        await client.connect()
        future = await client.submit(ask())
        await eventually(lambda: len(door.submits) == 1)
        gives_up_soon(client, 0)  # a busy machine needs longer to connect
        await door.stop()
        with pytest.raises(DoorUnreachable):
            await future
        await client.close()

    @pytest.mark.parametrize("code", [Code.UNAUTHENTICATED, Code.FORBIDDEN, Code.BAD_HELLO])
    async def test_a_client_that_is_refused_is_told(self, door: FakeDoor, code: Code) -> None:
        """GRID-120, GRID-167"""

        async def refuse(talk: Talk, frame: Frame) -> None:
            await talk.refuse(frame, code)

        door.on_hello = refuse
        client = client_of(door)
        with pytest.raises(GridRefused) as caught:
            await client.connect()
        assert caught.value.code is code
        await client.close()

    async def test_a_client_that_is_refused_for_now_tries_again(self, door: FakeDoor) -> None:
        """GRID-36"""
        tries = iter(range(2))

        async def full(talk: Talk, frame: Frame) -> None:
            if next(tries, None) is not None:
                await talk.refuse(frame, Code.TOO_MANY_CONNECTIONS, retry_after_ms=1)
            else:
                await door.welcome(talk, frame)

        door.on_hello = full
        async with client_of(door) as client:
            await client.run(ask())

    async def test_jobs_wait_until_there_is_a_door(self, door: FakeDoor) -> None:
        """GRID-127"""
        await door.stop()
        client = client_of(door)
        connecting = asyncio.create_task(client.connect())
        future = await client.submit(ask())
        assert client.stats().pending == 1
        await door.start()
        await connecting
        assert (await future).status is RunState.COMPLETED
        await client.close()

    async def test_tls_and_a_certificate_that_is_not_trusted(self, tmp_path: Path) -> None:
        """GRID-166"""
        authority = Authority(tmp_path)
        door = FakeDoor()
        await door.start(authority.context("127.0.0.1"))
        trusting = LinkSettings(tls=client_context(ca=str(authority.ca_file)), pace=QUICK.pace)
        async with client_of(door, settings=trusting) as client:
            await client.run(ask())
        for settings in (
            LinkSettings(tls=client_context(), pace=QUICK.pace, connect_timeout=0.3),
            LinkSettings(pace=QUICK.pace, connect_timeout=0.3),
        ):
            stranger = client_of(door, settings=settings)
            with pytest.raises(DoorUnreachable):
                await stranger.connect()
            await stranger.close()
        assert len(door.hellos) == 1
        await door.stop()


class TestRefusedHere:
    @pytest.mark.parametrize(
        ("request_", "code"),
        [
            (JobRequest(exec_name="a.b"), Code.BAD_EXEC_NAME),
            (JobRequest(exec_name="a", job_id="x"), Code.BAD_JOB_ID),
            (JobRequest(exec_name="a", files={"../x": b""}), Code.BAD_FILE_NAME),
            (JobRequest(exec_name="a", args=("x\0",)), Code.BAD_SCHEMA),
            (JobRequest(exec_name="a", timeout_sec=0), Code.BAD_SCHEMA),
            (JobRequest(exec_name="a", client_id="other"), Code.CLIENT_ID_MISMATCH),
        ],
        ids=lambda each: each if isinstance(each, str) else "",
    )
    async def test_what_no_door_would_take_is_not_sent(
        self, door: FakeDoor, client: GridClient, request_: JobRequest, code: Code
    ) -> None:
        """GRID-96"""
        with pytest.raises(GridRefused) as caught:
            await client.submit(request_)
        assert caught.value.code is code
        assert door.submits == []

    @pytest.mark.parametrize("size", [3_146_000, 50_000_000])
    async def test_inputs_that_do_not_fit_into_a_frame_name_the_way_out(self, client: GridClient, size: int) -> None:
        """GRID-147, GRID-21"""
        with pytest.raises(GridRefused, match="POST /jobs") as caught:
            await client.submit(JobRequest(exec_name="calcA", files={"big": bytes(size)}))
        assert caught.value.code is Code.TOO_LARGE

    async def test_three_megabytes_fit(self, door: FakeDoor, client: GridClient) -> None:
        """GRID-147"""
        result = await client.run(JobRequest(exec_name="calcA", files={"big": bytes(3_145_000)}))
        assert result.status is RunState.COMPLETED
        assert len(door.submits[0].files["big"]) == 3_145_000
