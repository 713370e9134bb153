"""Archives on their way to a client, whole or not at all; and jobs that it stops."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest

from pyoco_server.core.frames.codec import Frame, Type
from pyoco_server.core.frames.messages import BinaryPart, ObjectGet
from pyoco_server.core.programs.faults import Code
from pyoco_server.core.states import RunState
from pyoco_server.grid_client import (
    GridClient,
    GridRefused,
    JobRequest,
    JobResult,
    LinkSettings,
    OutputDamaged,
)
from support.grid.fake_door import QUICK, FakeDoor, Talk, fake_door
from support.waiting import eventually


def ask(name: str = "calcA", *args: str, job_id: str = "") -> JobRequest:
    return JobRequest(exec_name=name, args=args, job_id=job_id)


@pytest.fixture
async def door() -> AsyncIterator[FakeDoor]:
    async with fake_door() as door:
        yield door


@pytest.fixture
async def client(door: FakeDoor) -> AsyncIterator[GridClient]:
    async with client_of(door) as client:
        yield client


def client_of(door: FakeDoor, *more: FakeDoor, settings: LinkSettings = QUICK, desired: int = 4) -> GridClient:
    doors = [each.address for each in more]
    return GridClient("127.0.0.1", door.port, "clientA", desired=desired, doors=doors, token="k", settings=settings)


class TestCancelling:
    async def test_a_job_of_this_client_ends_cancelled(self, door: FakeDoor, client: GridClient) -> None:
        """GRID-121, GRID-163"""
        door.is_holding = True
        future = await client.submit(ask())
        await eventually(lambda: len(door.submits) == 1)
        assert client.cancel(door.submitted[0]) is future
        assert (await future).status is RunState.CANCELLED

    async def test_it_is_cancelled_once_the_door_has_taken_it(self, door: FakeDoor, client: GridClient) -> None:
        """GRID-163: before its SubmitAck, a door would not know the job."""

        async def not_yet(talk: Talk, frame: Frame) -> None:
            pass

        door.on_submit = not_yet
        future = await client.submit(ask("slow"))
        await eventually(lambda: len(door.submits) == 1)
        client.cancel(door.submitted[0])
        door.on_submit = door.accept
        await client.run(ask())  # what was said before has been heard
        assert door.cancels == []
        await door.talks[0].ack(door.talks[0].asked[door.submitted[0]])
        assert (await future).status is RunState.CANCELLED

    async def test_it_is_cancelled_after_a_reconnect_too(self, door: FakeDoor, client: GridClient) -> None:
        """GRID-122, GRID-163"""
        door.is_holding = True
        future = await client.submit(ask())
        await eventually(lambda: len(door.submits) == 1)
        await door.stop()
        client.cancel(door.submitted[0])
        await door.start()
        assert (await future).status is RunState.CANCELLED
        assert len(door.submits) == 2

    async def test_a_job_of_another_process_is_cancelled(self, door: FakeDoor, client: GridClient) -> None:
        """GRID-121, GRID-163: `--cancel` knows nothing but the JobId."""
        job_id = str(uuid4())

        async def obey(talk: Talk, frame: Frame) -> None:
            result = JobResult(
                job_id=job_id, client_id="clientA", exec_name="e", status=RunState.CANCELLED, run_id="r", attempt=1
            )
            await talk.say(Type.RESULT, result, frame)

        door.on_cancel = obey
        assert (await client.cancel(job_id.upper())).status is RunState.CANCELLED
        assert door.cancels[0].job_id == job_id
        assert client.stats().groups[0].unfinished == 0

    async def test_a_job_that_nobody_knows_is_not_found(self, client: GridClient) -> None:
        """GRID-163"""
        with pytest.raises(GridRefused) as caught:
            await client.cancel(str(uuid4()))
        assert caught.value.code is Code.NOT_FOUND
        with pytest.raises(GridRefused, match="BAD_JOB_ID"):
            client.cancel("x")

    async def test_a_cancel_that_may_work_later_is_said_again(self, door: FakeDoor, client: GridClient) -> None:
        """GRID-44, GRID-163"""
        door.is_holding = True
        tries = iter(range(2))

        async def later(talk: Talk, frame: Frame) -> None:
            if next(tries, None) is not None:
                await talk.refuse(frame, Code.UNAVAILABLE, retry_after_ms=1)
            else:
                await door.obey(talk, frame)

        door.on_cancel = later
        future = await client.submit(ask())
        await eventually(lambda: len(door.submits) == 1)
        client.cancel(door.submitted[0])
        assert (await future).status is RunState.CANCELLED
        assert len(door.cancels) == 3

    async def test_a_job_that_was_never_sent_is_cancelled_here(self, door: FakeDoor) -> None:
        """GRID-126"""
        await door.stop()
        client = client_of(door)
        connecting = asyncio.create_task(client.connect())
        job_id = str(uuid4())
        future = await client.submit(ask(job_id=job_id))
        client.cancel(job_id)
        result = await future
        assert (result.status, result.exec_name) == (RunState.CANCELLED, "calcA")
        await door.start()
        await connecting
        await client.run(ask())
        assert job_id not in door.submitted
        await client.close()


class TestOutputs:
    #: More than a frame holds.
    DATA = random.Random(8).randbytes(5_500_000)

    async def result_with(self, door: FakeDoor, client: GridClient) -> JobResult:
        job_id = str(uuid4())
        door.objects[job_id] = self.DATA
        return await client.run(ask(job_id=job_id))

    async def test_an_archive_in_the_frame_is_saved(self, door: FakeDoor, client: GridClient, tmp_path: Path) -> None:
        """GRID-143"""
        door.is_holding = True
        future = await client.submit(ask())
        await eventually(lambda: len(door.submits) == 1)
        await door.finish(door.submitted[0], output_archive=b"zip")
        assert await client.save_output(await future, tmp_path / "o.zip")
        assert (tmp_path / "o.zip").read_bytes() == b"zip"

    async def test_without_an_archive_nothing_is_saved(self, client: GridClient, tmp_path: Path) -> None:
        """GRID-143"""
        assert not await client.save_output(await client.run(ask()), tmp_path / "o.zip")
        assert list(tmp_path.iterdir()) == []

    async def test_a_large_archive_is_fetched_and_checked(
        self, door: FakeDoor, client: GridClient, tmp_path: Path
    ) -> None:
        """GRID-143, GRID-146"""
        result = await self.result_with(door, client)
        assert await client.save_output(result, tmp_path / "o.zip")
        assert (tmp_path / "o.zip").read_bytes() == self.DATA
        assert [(get.name, get.offset) for get in door.gets] == [("output.zip", 0)]

    async def test_an_empty_archive_is_fetched(self, door: FakeDoor, client: GridClient, tmp_path: Path) -> None:
        """GRID-146"""
        job_id = str(uuid4())
        door.objects[job_id] = b""
        assert await client.save_output(await client.run(ask(job_id=job_id)), tmp_path / "o.zip")
        assert (tmp_path / "o.zip").read_bytes() == b""

    async def test_a_fetch_goes_on_where_it_broke_off(self, door: FakeDoor, client: GridClient, tmp_path: Path) -> None:
        """GRID-146"""
        breaks = iter(range(2))

        async def half(talk: Talk, frame: Frame) -> None:
            if next(breaks, None) is None:
                await door.serve(talk, frame)
            else:
                await self.send_some(talk, frame)

        door.on_get = half
        result = await self.result_with(door, client)
        assert await client.save_output(result, tmp_path / "o.zip")
        assert (tmp_path / "o.zip").read_bytes() == self.DATA
        offsets = [get.offset for get in door.gets]
        assert len(offsets) == 3
        assert offsets == sorted(offsets)
        assert offsets[-1] > 0

    async def send_some(self, talk: Talk, frame: Frame) -> None:
        """Two parts, and then the connection breaks."""
        get = ObjectGet.read(frame.payload)
        for start in (get.offset, get.offset + 600_000):
            part = BinaryPart(
                job_id=get.job_id,
                name=get.name,
                offset=start,
                size=len(self.DATA),
                last=False,
                data=self.DATA[start : start + 600_000],
            )
            await talk.say(Type.OBJECT_CHUNK, part, frame)
        await talk.wire.close("draining")

    @pytest.mark.parametrize("lie", ["other bytes", "too short", "a gap"])
    async def test_a_file_that_is_not_the_announced_one_is_not_saved(
        self, door: FakeDoor, client: GridClient, tmp_path: Path, lie: str
    ) -> None:
        """GRID-146: the sha256 is checked, and nothing is left behind."""
        result = await self.result_with(door, client)
        other = {
            "other bytes": self.DATA[:-1] + b"!",
            "too short": self.DATA[:-1],
            "a gap": self.DATA,
        }[lie]

        async def deceive(talk: Talk, frame: Frame) -> None:
            if lie == "a gap":
                get = replace(ObjectGet.read(frame.payload), offset=1024 * 1024)
                frame = Frame(frame.type, get.to_payload(), frame.msg_id)
            await door.send_parts(talk, frame, other)

        door.on_get = deceive
        with pytest.raises(OutputDamaged):
            await client.save_output(result, tmp_path / "o.zip")
        assert list(tmp_path.iterdir()) == []
        assert (await client.run(ask())).status is RunState.COMPLETED

    @pytest.mark.parametrize("code", [Code.NOT_FOUND, Code.FORBIDDEN])
    async def test_a_file_that_is_refused_is_not_saved(
        self, door: FakeDoor, client: GridClient, tmp_path: Path, code: Code
    ) -> None:
        """GRID-146: it expired, for example."""
        result = await self.result_with(door, client)

        async def refuse(talk: Talk, frame: Frame) -> None:
            await talk.refuse(frame, code)

        door.on_get = refuse
        with pytest.raises(GridRefused) as caught:
            await client.save_output(result, tmp_path / "o.zip")
        assert caught.value.code is code
        assert list(tmp_path.iterdir()) == []

    async def test_whoever_stops_waiting_for_a_file_holds_up_nobody(
        self, door: FakeDoor, client: GridClient, tmp_path: Path
    ) -> None:
        """GRID-146"""
        result = await self.result_with(door, client)
        started = asyncio.Event()

        async def slowly(talk: Talk, frame: Frame) -> None:
            started.set()
            await door.send_parts(talk, frame, self.DATA, size=100_000)

        door.on_get = slowly
        saving = asyncio.create_task(client.save_output(result, tmp_path / "o.zip"))
        await started.wait()
        saving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await saving
        assert list(tmp_path.iterdir()) == []
        assert (await client.run(ask())).status is RunState.COMPLETED
