"""Registering, reading and deleting wheels, at each point where something can go wrong."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import AsyncIterator, Awaitable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from contracts.objects import pieces_of
from pyoco_server.actions import register_wheel as registering
from pyoco_server.actions.delete_wheel import delete_wheel
from pyoco_server.actions.list_wheel_history import HistoryFilter, list_wheel_history
from pyoco_server.actions.list_wheels import list_wheels, wheel_of
from pyoco_server.actions.read_wheel import find_wheel, read_wheel
from pyoco_server.actions.register_wheel import WheelUpload, register_wheel
from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.run import Caller
from pyoco_server.core.wheel import TAGS_HEADER, Wheel, read_wheel_name
from pyoco_server.core.wheel_event import WheelAction, WheelSource
from pyoco_server.errors import Corrupt, InvalidWheel, NotStored, Unavailable, WheelNotFound, WheelNotNewer
from pyoco_server.ports.backend import GatewayBackend
from pyoco_server.ports.nats.link import Link
from pyoco_server.ports.objects.port import ObjectInfo
from pyoco_server.ports.spool import Spool
from support.backends import Clock, fields_of
from support.faulty_ports import AFTER, BEFORE, UNHEARD, Trouble, with_trouble
from support.gateway_backends import opened_gateway_backend
from support.wheel_doors import Left, left
from support.wheels import build_wheel

CALLER = Caller("team-a", "key-1")
SOURCE = WheelSource(remote_addr="192.0.2.1", user_agent="tests")


@pytest.fixture
async def backend(prepared: NatsBackendConfig, clock: Clock, tmp_path: Path) -> AsyncIterator[GatewayBackend]:
    async with opened_gateway_backend(prepared, tmp_path) as backend:
        yield replace(backend, clock=clock)


@contextlib.asynccontextmanager
async def uploaded(
    backend: GatewayBackend,
    package: str = "my-tasks",
    version: str = "1.0",
    *,
    tags: tuple[str, ...] = (),
    **parts: Any,
) -> AsyncIterator[WheelUpload]:
    file_name, data = build_wheel(package, version, **parts)
    async with Spool(Path(backend.config.data_dir) / "tmp") as content:
        await content.write(data)
        yield WheelUpload(read_wheel_name(file_name), tags, content, await content.finish())


async def registered(backend: GatewayBackend, package: str = "my-tasks", version: str = "1.0", **parts: Any) -> Wheel:
    async with uploaded(backend, package, version, **parts) as upload:
        return await register_wheel(backend, CALLER, SOURCE, upload)


async def outcome(work: Awaitable[Wheel]) -> Wheel | type[Exception]:
    try:
        return await work
    except Exception as error:  # noqa: BLE001  (which one it is, is what the test looks at)
        return type(error)


async def events(backend: GatewayBackend) -> list[tuple[str, str]]:
    return [(event.action.value, event.wheel_name) for event in await list_wheel_history(backend, HistoryFilter())]


async def collect(chunks: AsyncIterator[bytes], given: list[bytes]) -> None:
    async for chunk in chunks:
        given.append(chunk)  # noqa: PERF401  (what came before an error counts)


async def content_of(backend: GatewayBackend, wheel_name: str) -> bytes:
    return b"".join([chunk async for chunk in read_wheel(backend, await find_wheel(backend, wheel_name))])


class TestRegister:
    async def test_a_wheel_is_stored_whole_and_told_in_the_history(self, backend: GatewayBackend, clock: Clock) -> None:
        """FLOW-210, FLOW-211, FLOW-221 to FLOW-225"""
        wheel = await registered(backend, tags=("a", "b"), pad_bytes=500_000)
        data = build_wheel(pad_bytes=500_000)[1]
        assert await list_wheels(backend) == [wheel]
        assert (wheel.sha256_hex, wheel.tags) == (hashlib.sha256(data).hexdigest(), ("a", "b"))
        assert await content_of(backend, wheel.name.file_name) == data
        (event,) = await list_wheel_history(backend, HistoryFilter())
        assert (event.action, event.wheel_name) == (WheelAction.UPLOAD, wheel.name.file_name)
        assert (event.occurred_at, event.source, event.actor) == (clock(), SOURCE, CALLER)
        assert (event.tags, event.size_bytes, event.sha256_hex) == (wheel.tags, len(data), wheel.sha256_hex)

    async def test_of_many_uploads_of_one_package_at_once_one_wins(self, backend: GatewayBackend, link: Link) -> None:
        """FLOW-213"""
        outcomes = await asyncio.gather(
            *(outcome(registered(backend, tag=f"{n}-py3-none-any", pad_bytes=400_000)) for n in range(8))
        )
        assert sorted(map(str, outcomes))[:7] == [str(WheelNotNewer)] * 7
        (wheel,) = [each for each in outcomes if isinstance(each, Wheel)]
        assert await list_wheels(backend) == [wheel]
        assert await left(link, backend.config) == Left(1, 1, 1)

    async def test_of_many_versions_at_once_the_last_is_the_newest(self, backend: GatewayBackend) -> None:
        """FLOW-213: whichever got in, each was newer than all before it"""
        outcomes = await asyncio.gather(*(outcome(registered(backend, version=f"1.{n}")) for n in range(8)))
        wheels = [each for each in outcomes if isinstance(each, Wheel)]
        assert {each for each in outcomes if not isinstance(each, Wheel)} <= {WheelNotNewer}
        in_time = [name for _, name in reversed(await events(backend))]
        assert in_time == sorted(in_time)
        assert in_time[-1] == "my_tasks-1.7-py3-none-any.whl"
        assert sorted(in_time) == sorted(wheel.name.file_name for wheel in wheels)

    async def test_thirty_packages_at_once_through_three_gateways_all_get_in(
        self, backend: GatewayBackend, link: Link, tmp_path_factory: pytest.TempPathFactory
    ) -> None:
        """FLOW-213: a change of another package is no reason to send anybody away"""
        async with contextlib.AsyncExitStack() as open_ones:
            doors = [backend]
            for number in range(2):
                folder = tmp_path_factory.mktemp(f"gateway{number}")
                doors.append(await open_ones.enter_async_context(opened_gateway_backend(backend.config, folder)))
            outcomes = await asyncio.gather(*(outcome(registered(doors[n % 3], f"p{n}")) for n in range(30)))
        assert [each for each in outcomes if not isinstance(each, Wheel)] == []
        assert await left(link, backend.config) == Left(30, 30, 30)

    async def test_an_older_one_is_refused_before_it_is_read(self, backend: GatewayBackend) -> None:
        """FLOW-213"""
        await registered(backend, version="2.0")
        looked: list[str] = []

        class Looking:
            def check(self, *_: object) -> None:
                looked.append("inside")

        with pytest.raises(WheelNotNewer, match=r"2\.0"):
            await registered(replace(backend, wheel_files=Looking()), version="1.0")
        assert looked == []

    async def test_what_comes_in_while_it_is_read_counts(self, backend: GatewayBackend) -> None:
        """FLOW-213"""
        trouble = Trouble(meanwhile={"wheels.catalogue": lambda: registered(backend, version="2.0")})
        with pytest.raises(WheelNotNewer):
            await registered(with_trouble(backend, trouble, "wheels"), version="1.5")
        assert [wheel.name.file_name for wheel in await list_wheels(backend)] == ["my_tasks-2.0-py3-none-any.whl"]

    async def test_what_is_no_wheel_is_not_stored(self, backend: GatewayBackend, link: Link) -> None:
        """DESIGN 9.15"""
        async with uploaded(backend) as upload:
            with pytest.raises(InvalidWheel) as refused:
                await register_wheel(
                    backend, CALLER, SOURCE, replace(upload, name=read_wheel_name("x-1-py3-none-any.whl"))
                )
        assert [problem.loc for problem in refused.value.problems] == [("wheel",)]
        assert await left(link, backend.config) == Left(0, 0, 0)

    async def test_what_was_not_stored_is_stored_again(self, backend: GatewayBackend, link: Link) -> None:
        """DESIGN 9.16"""
        trouble = Trouble(plan={"wheels.put_admitted": [UNHEARD]})
        wheel = await registered(with_trouble(backend, trouble, "wheels"))
        assert await list_wheels(backend) == [wheel]
        assert await left(link, backend.config) == Left(1, 1, 1)
        assert trouble.calls.count("wheels.put_admitted") == 2

    @pytest.mark.parametrize(("fate", "count"), [(BEFORE, 0), (AFTER, 1)])
    async def test_what_may_be_stored_is_not_stored_again(
        self, backend: GatewayBackend, link: Link, fate: str, count: int
    ) -> None:
        """FLOW-47: it would be refused because of itself. The store has tried for long to find out."""
        trouble = Trouble(plan={"wheels.put_admitted": [fate]})
        with pytest.raises(Unavailable):
            await registered(with_trouble(backend, trouble, "wheels"))
        assert trouble.calls.count("wheels.put_admitted") == 1
        assert await left(link, backend.config) == Left(count, count, 0)

    async def test_a_store_that_stays_silent_is_given_up(
        self, backend: GatewayBackend, link: Link, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """FLOW-47"""
        monkeypatch.setattr(registering, "_UNANSWERED_SECONDS", 0.3)
        trouble = Trouble(plan={"wheels.put_admitted": [UNHEARD] * 50})
        with pytest.raises(NotStored):
            await registered(with_trouble(backend, trouble, "wheels"))
        assert 2 <= trouble.calls.count("wheels.put_admitted") < 10
        assert await left(link, backend.config) == Left(0, 0, 0)

    async def test_without_a_connection_nothing_is_tried_again(self, backend: GatewayBackend) -> None:
        """DESIGN 9.16"""
        trouble = Trouble(plan={"wheels.put_admitted": [UNHEARD] * 50})
        down = replace(with_trouble(backend, trouble, "wheels"), is_up=lambda: False)
        with pytest.raises(Unavailable):
            await registered(down)
        assert trouble.calls.count("wheels.put_admitted") == 1

    @pytest.mark.parametrize("fate", [BEFORE, UNHEARD])
    async def test_a_lost_event_is_logged_and_the_wheel_stands(
        self, backend: GatewayBackend, caplog: pytest.LogCaptureFixture, fate: str
    ) -> None:
        """FLOW-227"""
        trouble = Trouble(plan={"wheel_history.add": [fate]})
        with caplog.at_level(logging.INFO):
            wheel = await registered(with_trouble(backend, trouble, "wheel_history"))
        assert await list_wheels(backend) == [wheel]
        assert await events(backend) == []
        (line,) = [record for record in caplog.records if record.message == "wheel history event not written"]
        assert line.levelno == logging.ERROR
        assert fields_of(line)["event"]["wheel_name"] == wheel.name.file_name

    async def test_the_answer_tells_the_time_that_lists_tell(self, backend: GatewayBackend) -> None:
        """FLOW-154: unless the store cannot be asked; then it tells what it knows"""
        trouble = Trouble(plan={"wheels.info": [BEFORE]})
        wheel = await registered(with_trouble(backend, trouble, "wheels"))
        (listed,) = await list_wheels(backend)
        assert abs(wheel.modified - listed.modified) < 5
        assert replace(wheel, modified=listed.modified) == listed

    async def test_bytes_that_a_disk_has_changed_are_not_registered(self, backend: GatewayBackend, link: Link) -> None:
        async with uploaded(backend) as upload:
            with pytest.raises(Corrupt, match="disk"):
                await register_wheel(backend, CALLER, SOURCE, replace(upload, sha256_hex="0" * 64))
        assert await list_wheels(backend) == []
        assert (await left(link, backend.config)).chunk_subjects == 0
        assert await events(backend) == []

    async def test_who_is_cancelled_in_the_middle_leaves_nothing(self, backend: GatewayBackend, link: Link) -> None:
        sending = asyncio.Event()

        class Watched:
            def __getattr__(self, name: str) -> Any:
                return getattr(backend.wheels, name)

            async def put_admitted(self, name: str, chunks: Any, *more: Any) -> ObjectInfo:
                async def halting() -> AsyncIterator[bytes]:
                    async for chunk in chunks:
                        yield chunk[:600_000]
                        sending.set()
                        await asyncio.Event().wait()

                return await backend.wheels.put_admitted(name, halting(), *more)

        watched = replace(backend, wheels=Watched())
        working = asyncio.create_task(registered(watched, pad_bytes=2_000_000))
        await sending.wait()
        working.cancel()
        with pytest.raises(asyncio.CancelledError):
            await working
        assert await left(link, backend.config) == Left(0, 0, 0)


class TestRead:
    async def test_the_last_chunk_is_held_back_until_the_digest_is_known(self, backend: GatewayBackend) -> None:
        """FLOW-152: what is damaged is never given whole"""
        wheel = await registered(backend, pad_bytes=1_000_000)
        found = await find_wheel(backend, wheel.name.file_name)
        damaged = replace(found, info=replace(found.info, sha256_hex="0" * 64))
        given: list[bytes] = []
        with pytest.raises(Corrupt):
            await collect(read_wheel(backend, damaged), given)
        assert 0 < len(b"".join(given)) < wheel.size_bytes

    async def test_a_wheel_that_is_deleted_meanwhile_is_not_found(self, backend: GatewayBackend) -> None:
        wheel = await registered(backend, pad_bytes=6_000_000)
        chunks = read_wheel(backend, await find_wheel(backend, wheel.name.file_name))
        given = [await anext(chunks)]
        await delete_wheel(backend, CALLER, SOURCE, wheel.name.file_name)
        with pytest.raises(WheelNotFound):
            await collect(chunks, given)
        assert len(b"".join(given)) < wheel.size_bytes

    @pytest.mark.parametrize("name", ["history", "x.whl", "../x-1.0-py3-none-any.whl", "x-1.0-py3-none-any.whl", ""])
    async def test_what_is_not_there_is_not_found(self, backend: GatewayBackend, name: str) -> None:
        """FLOW-159"""
        with pytest.raises(WheelNotFound):
            await find_wheel(backend, name)

    async def test_what_somebody_else_put_there_is_no_wheel(self, backend: GatewayBackend) -> None:
        name = "x-1.0-py3-none-any.whl"
        info = await backend.wheels.put(name, pieces_of(b"x"), 1, {TAGS_HEADER: "a b"})
        assert wheel_of(info) is None
        assert wheel_of(replace(info, name="notes.txt", headers={})) is None
        with pytest.raises(WheelNotFound):
            await find_wheel(backend, name)


class TestDelete:
    async def test_of_many_at_once_one_deletes_and_one_event_tells(self, backend: GatewayBackend, link: Link) -> None:
        """FLOW-221"""
        name = (await registered(backend)).name.file_name

        async def delete() -> bool:
            try:
                await delete_wheel(backend, CALLER, SOURCE, name)
            except WheelNotFound:
                return False
            return True

        assert sorted(await asyncio.gather(*(delete() for _ in range(6)))) == [False] * 5 + [True]
        assert await events(backend) == [("delete", name), ("upload", name)]
        assert (await left(link, backend.config)).chunk_subjects == 0

    async def test_a_lost_event_is_logged_and_the_wheel_is_gone(
        self, backend: GatewayBackend, caplog: pytest.LogCaptureFixture
    ) -> None:
        """FLOW-227"""
        name = (await registered(backend)).name.file_name
        trouble = Trouble(plan={"wheel_history.add": [BEFORE]})
        await delete_wheel(with_trouble(backend, trouble, "wheel_history"), CALLER, SOURCE, name)
        assert await list_wheels(backend) == []
        assert "wheel history event not written" in [record.message for record in caplog.records]

    async def test_a_lost_answer_tells_of_no_event(self, backend: GatewayBackend) -> None:
        """FLOW-221: whether it happened is not known, so nothing is claimed"""
        name = (await registered(backend)).name.file_name
        trouble = Trouble(plan={"wheels.delete": [AFTER]})
        with pytest.raises(Unavailable):
            await delete_wheel(with_trouble(backend, trouble, "wheels"), CALLER, SOURCE, name)
        assert await events(backend) == [("upload", name)]
