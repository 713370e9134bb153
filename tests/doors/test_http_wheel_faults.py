"""Wheels that are not what they say, clients that vanish, stores and disks that fail: nothing is left of any of it."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import json
import logging
import os
import tempfile
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from pyoco_server.doors.http import byte_stream, pace, wheel_form
from pyoco_server.doors.http.state import DOWNLOADS_MAX, DOWNLOADS_OF_TENANT_MAX, UPLOADS_MAX, State
from pyoco_server.errors import NotStored
from pyoco_server.ports.nats.link import Link
from support.doors_support import FORM, check_refusal, disposition, form
from support.gateways import Gateway, error, fresh_gateway, listening, open_gateway
from support.memory_nats import MemoryServer
from support.servers import config_for
from support.waiting import eventually
from support.wheel_doors import Left, artifacts, history, left, open_spools, register, upload
from support.wheels import build_wheel, dist_info_of, pack, wheel_files, with_record

WHEEL = "my_tasks-1.0-py3-none-any.whl"
NOTHING = Left(0, 0, 0)


def state_of(gateway: Gateway) -> State:
    state: State = gateway.app.state.gateway
    return state


def packed(**changes: bytes) -> bytes:
    """A wheel with more files in it, all of them in its RECORD."""
    return pack(with_record({**wheel_files(), **changes}, dist_info_of()))


def bomb() -> bytes:
    """Small, and a thousand times larger once it is unpacked."""
    return packed(**{f"my_tasks/{n}.bin": bytes(10 << 20) for n in range(6)})


BROKEN = {
    "truncated": build_wheel(pad_bytes=50_000)[1][:-30_000],
    "without its directory": build_wheel()[1][:-22],
    "no zip at all": b"PK" + os.urandom(5000),
    "another package": build_wheel("other-tasks", "1.0")[1],
    "another version": build_wheel("my-tasks", "1.1")[1],
    "a path that leaves": packed(**{"../evil.py": b"x"}),
    "an absolute path": packed(**{"/etc/evil.py": b"x"}),
    "a path with a backslash": packed(**{"a\\..\\..\\evil.py": b"x"}),
    "a file that runs by itself": packed(**{"evil.pth": b"import os"}),
    "a record that does not fit": pack({**with_record(wheel_files(), dist_info_of()), "my_tasks/more.py": b"x"}),
    "changed after it was recorded": pack(
        {**with_record(wheel_files(), dist_info_of()), "my_tasks/__init__.py": b'VERSION = "9.9"\n'}
    ),
    "no wheel inside": pack({"hello.txt": b"hello"}),
}


class TestBrokenWheels:
    async def test_it_is_refused_with_a_reason_and_nothing_is_stored(self, gateway: Gateway, link: Link) -> None:
        """DESIGN 7, DESIGN 9.15: contents are checked"""
        for what, content in BROKEN.items():
            answer = await upload(gateway, WHEEL, content)
            assert answer.status_code == 422, what
            (problem,) = check_refusal(answer)
            assert (problem["loc"], problem["type"]) == (["wheel"], "content"), what
            assert answer.json()["detail"] == "invalid request", what
            assert await left(link, gateway.config) == NOTHING, what
            await eventually(lambda: open_spools(gateway.config.data_dir) == 0)  # its thread may be closing it

    async def test_a_bomb_is_refused_before_it_goes_off(self, link: Link, nats_url: str, tmp_path: Path) -> None:
        content = bomb()
        assert len(content) < 200_000
        async with fresh_gateway(link, nats_url, tmp_path, wheel_unpacked_max_bytes=10 << 20) as gateway:
            (problem,) = check_refusal(await upload(gateway, WHEEL, content))
            assert "unpacks" in problem["msg"]
            assert await left(link, gateway.config) == NOTHING

    async def test_a_bomb_that_lies_about_its_size_is_refused(self, link: Link, nats_url: str, tmp_path: Path) -> None:
        """By the bytes that come out, not by what the archive says of them."""
        content = bytearray(packed(**{"my_tasks/big.bin": bytes(10 << 20)}))
        honest, told = (10 << 20).to_bytes(4, "little"), (1000).to_bytes(4, "little")
        content = content.replace(honest, told)
        async with fresh_gateway(link, nats_url, tmp_path, wheel_unpacked_max_bytes=1 << 20) as gateway:
            check_refusal(await upload(gateway, WHEEL, bytes(content)))
            assert await left(link, gateway.config) == NOTHING

    async def test_the_loop_goes_on_while_a_wheel_is_read(
        self, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        began, go_on = threading.Event(), threading.Event()
        check = gateway.backend.wheel_files.check

        def slow(*args: Any) -> Any:
            began.set()
            assert go_on.wait(120)
            return check(*args)

        monkeypatch.setattr(gateway.backend.wheel_files, "check", slow)
        uploading = asyncio.create_task(upload(gateway, *build_wheel()))
        await eventually(began.is_set)
        assert await artifacts(gateway) == []
        go_on.set()
        assert (await uploading).status_code == 200


def head_of(content_length: int) -> bytes:
    return (
        f"POST /wheels HTTP/1.1\r\nHost: x\r\nContent-Type: {FORM['content-type']}\r\n"
        f"Content-Length: {content_length}\r\n\r\n"
    ).encode()


class TestClients:
    async def test_one_who_vanishes_in_the_middle_leaves_nothing(
        self, gateway: Gateway, link: Link, caplog: pytest.LogCaptureFixture
    ) -> None:
        body = form((disposition("wheel", WHEEL), build_wheel(pad_bytes=6_000_000)[1]))
        async with listening(gateway.app) as port:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(head_of(len(body)) + body[:4_000_000])
            await writer.drain()
            await eventually(lambda: open_spools(gateway.config.data_dir) == 1)
            assert state_of(gateway).uploads.taken == 1
            with caplog.at_level(logging.INFO):
                writer.transport.abort()
                await eventually(lambda: state_of(gateway).uploads.taken == 0)
            await eventually(lambda: open_spools(gateway.config.data_dir) == 0)
        assert await left(link, gateway.config) == NOTHING
        assert "request refused" in [record.message for record in caplog.records]

    async def test_one_who_stops_sending_is_given_up(
        self, gateway: Gateway, link: Link, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(pace, "_SPAN_SECONDS", 0.2)
        body = form((disposition("wheel", WHEEL), build_wheel(pad_bytes=200_000)[1]))
        answer = await half_sent(gateway, body, 100_000)
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert json.loads(answer.partition(b"\r\n\r\n")[2]) == error(2, "request timeout")
        assert await left(link, gateway.config) == NOTHING
        assert state_of(gateway).uploads.taken == 0

    async def test_one_who_drips_is_given_up_after_a_while(
        self, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Or four of them would keep everybody else out for hours."""
        monkeypatch.setattr(wheel_form, "_PACE_GRACE_SECONDS", -1000.0)
        answer = await upload(gateway, *build_wheel())
        assert (answer.status_code, answer.json()) == (408, error(2, "request timeout"))

    async def test_eight_who_send_the_same_at_once_to_two_gateways_get_one_wheel(
        self, gateway: Gateway, link: Link, tmp_path_factory: pytest.TempPathFactory
    ) -> None:
        """FLOW-213, FLOW-221"""
        data_dir = str(tmp_path_factory.mktemp("second"))
        async with open_gateway(replace(gateway.config, data_dir=data_dir)) as other:
            wheel = build_wheel(pad_bytes=500_000)
            doors = [gateway, other] * UPLOADS_MAX
            answers = await asyncio.gather(*(upload(door, *wheel) for door in doors))
        assert sorted(answer.status_code for answer in answers) == [200] + [409] * 7
        assert len(await artifacts(gateway)) == 1
        assert len(await history(gateway)) == 1
        assert await left(link, gateway.config) == Left(1, 1, 1)

    async def test_a_fifth_at_once_is_sent_away_and_may_come_again(self, gateway: Gateway) -> None:
        go_on = asyncio.Event()

        async def slow(start: bytes, rest: bytes) -> AsyncIterator[bytes]:
            yield start
            await go_on.wait()
            yield rest

        async def send(number: int) -> httpx.Response:
            file_name, content = build_wheel(f"p{number}")
            body = form((disposition("wheel", file_name), content))
            return await gateway.client.post("/wheels", content=slow(body[:500], body[500:]), headers=FORM)

        sending = [asyncio.create_task(send(number)) for number in range(UPLOADS_MAX)]
        await eventually(lambda: state_of(gateway).uploads.taken == UPLOADS_MAX)
        refused = await upload(gateway, *build_wheel())
        assert (refused.status_code, refused.json()) == (503, error(34, "too many transfers"))
        assert refused.headers["retry-after"] == "1"
        go_on.set()
        assert [answer.status_code for answer in await asyncio.gather(*sending)] == [200] * UPLOADS_MAX
        assert (await upload(gateway, *build_wheel())).status_code == 200
        assert state_of(gateway).uploads.taken == 0


async def half_sent(gateway: Gateway, body: bytes, size: int) -> bytes:
    async with listening(gateway.app) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head_of(len(body)) + body[:size])
        try:
            async with asyncio.timeout(120):
                return await reader.read()
        finally:
            writer.close()


class TestStores:
    @pytest.mark.virtual_time
    async def test_without_nats_everything_is_answered_with_503_and_nothing_is_kept(
        self, memory_nats_server: MemoryServer, tmp_path: Path
    ) -> None:
        """FLOW-47, FLOW-48, FLOW-62"""
        async with open_gateway(config_for(memory_nats_server.url, data_dir=str(tmp_path))) as gateway:
            await register(gateway)
            memory_nats_server.kill()

            async def ask_in_vain() -> None:
                answers = await asyncio.gather(
                    upload(gateway, *build_wheel(version="2.0")),
                    gateway.client.get("/wheels"),
                    gateway.client.get("/wheels/history"),
                    gateway.client.get(f"/wheels/{WHEEL}"),
                    gateway.client.delete(f"/wheels/{WHEEL}"),
                )
                for answer in answers:
                    assert (answer.status_code, answer.json()) == (503, error(3, "nats unavailable"))
                    assert answer.headers["retry-after"] == "1"

            async with asyncio.timeout(8.0):
                await ask_in_vain()
            await eventually(lambda: open_spools(tmp_path) == 0)
            assert state_of(gateway).uploads.taken == state_of(gateway).downloads.taken == 0

    @pytest.mark.virtual_time
    async def test_nats_that_dies_in_the_middle_of_an_upload_leaves_no_wheel(
        self, memory_nats_server: MemoryServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """FLOW-47"""
        async with open_gateway(config_for(memory_nats_server.url, data_dir=str(tmp_path))) as gateway:
            put = gateway.backend.wheels.put_admitted

            async def dying(name: str, chunks: Any, *more: Any) -> Any:
                async def cut() -> AsyncIterator[bytes]:
                    async for chunk in chunks:
                        yield chunk
                        memory_nats_server.kill()

                return await put(name, cut(), *more)

            monkeypatch.setattr(gateway.backend.wheels, "put_admitted", dying)
            answer = await upload(gateway, *build_wheel(pad_bytes=6_000_000))
            assert (answer.status_code, answer.json()) == (503, error(3, "nats unavailable"))
            monkeypatch.undo()
            await eventually(lambda: open_spools(tmp_path) == 0)
            memory_nats_server.start()
            await eventually(gateway.backend.is_up, 20)
            assert await artifacts(gateway) == await history(gateway) == []
            await register(gateway, pad_bytes=6_000_000)  # and it can be sent again

    async def test_a_full_disk_is_told_as_such(
        self, gateway: Gateway, link: Link, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: io.FileIO("/dev/full", "r+b"))
        answer = await upload(gateway, *build_wheel(pad_bytes=3_000_000))
        assert (answer.status_code, answer.json()) == (503, error(32, "no room on the disk"))
        assert answer.headers["retry-after"] == "1"
        assert await left(link, gateway.config) == NOTHING
        monkeypatch.undo()
        await register(gateway)

    async def test_an_event_that_cannot_be_written_does_not_undo_the_upload(
        self, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """FLOW-227"""

        async def fail(*_: object) -> None:
            raise NotStored

        monkeypatch.setattr(gateway.backend.wheel_history, "add", fail)
        await register(gateway)
        assert (await gateway.client.delete(f"/wheels/{WHEEL}")).status_code == 200
        assert await history(gateway) == []


async def damaged(gateway: Gateway, link: Link, wheel_name: str) -> None:
    """Another digest in its description than its bytes have."""
    bucket = gateway.config.wheel_object_store_bucket
    subject = f"$O.{bucket}.M.{base64.urlsafe_b64encode(wheel_name.encode()).decode()}"
    found = await link.api(f"STREAM.MSG.GET.OBJ_{bucket}", {"last_by_subj": subject}, dict[str, Any])
    meta = json.loads(base64.b64decode(found["message"]["data"]))
    meta["digest"] = "SHA-256=" + base64.urlsafe_b64encode(bytes(32)).decode()
    await link.store(subject, json.dumps(meta).encode(), {"Nats-Rollup": "sub"})


async def fetched(port: int, wheel_name: str) -> bytes:
    """Whatever comes before the connection is cut."""
    got = b""
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
        with contextlib.suppress(httpx.TransportError):
            async with client.stream("GET", f"/wheels/{wheel_name}") as answer:
                assert answer.status_code == 200
                async for chunk in answer.aiter_raw():
                    got += chunk
            raise AssertionError("it looked like a success")
    return got


class TestDownloads:
    async def test_a_damaged_wheel_is_an_error_when_that_is_known_in_time(self, gateway: Gateway, link: Link) -> None:
        made = await register(gateway)
        await damaged(gateway, link, made["name"])
        answer = await gateway.client.get(f"/wheels/{made['name']}")
        assert (answer.status_code, answer.json()) == (500, error(25, "stored data is damaged"))
        assert state_of(gateway).downloads.taken == 0

    async def test_a_damaged_wheel_is_never_sent_whole(
        self, gateway: Gateway, link: Link, caplog: pytest.LogCaptureFixture
    ) -> None:
        made = await register(gateway, pad_bytes=3_000_000)
        await damaged(gateway, link, made["name"])
        async with listening(gateway.app) as port:
            assert len(await fetched(port, made["name"])) < made["size_bytes"]
        await eventually(lambda: "download aborted" in [record.message for record in caplog.records])
        await eventually(lambda: state_of(gateway).downloads.taken == 0)

    async def test_a_wheel_deleted_in_the_middle_is_not_taken_for_whole(self, gateway: Gateway) -> None:
        made = await register(gateway, pad_bytes=24_000_000)
        async with listening(gateway.app) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=65_536)
            writer.write(f"GET /wheels/{made['name']} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            got = len((await reader.readuntil(b"\r\n\r\n")).partition(b"\r\n\r\n")[2])
            assert (await gateway.client.delete(f"/wheels/{made['name']}")).status_code == 200
            with contextlib.suppress(ConnectionError):
                while chunk := await reader.read(1 << 20):
                    got += len(chunk)
            writer.close()
        assert 0 < got < made["size_bytes"]
        await eventually(lambda: state_of(gateway).downloads.taken == 0)

    async def test_a_client_that_stops_reading_is_cut_off(
        self, gateway: Gateway, monkeypatch: pytest.MonkeyPatch, reads: list[int]
    ) -> None:
        """What it does not fetch is not read from the store, and does not pile up."""
        monkeypatch.setattr(byte_stream, "_SEND_SECONDS", 0.5)
        made = await register(gateway, pad_bytes=24_000_000)
        async with listening(gateway.app) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=65_536)
            writer.write(f"GET /wheels/{made['name']} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            await reader.readuntil(b"\r\n\r\n")
            assert state_of(gateway).downloads.taken == 1
            await eventually(lambda: state_of(gateway).downloads.taken == 0)
            writer.close()
        assert sum(reads) < 16_000_000  # what the sockets of this machine hold, and little more

    @pytest.fixture
    def reads(self, gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> list[int]:
        """The sizes of the chunks that were read from the store."""
        sizes: list[int] = []
        read = gateway.backend.wheels.read

        async def counted(info: Any) -> AsyncIterator[bytes]:
            async with contextlib.aclosing(read(info)) as chunks:
                async for chunk in chunks:
                    sizes.append(len(chunk))
                    yield chunk

        monkeypatch.setattr(gateway.backend.wheels, "read", counted)
        return sizes

    async def test_a_client_that_leaves_ends_the_reading(self, gateway: Gateway, reads: list[int]) -> None:
        made = await register(gateway, pad_bytes=24_000_000)
        async with listening(gateway.app) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=65_536)
            writer.write(f"GET /wheels/{made['name']} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            await reader.readuntil(b"\r\n\r\n")
            writer.transport.abort()
            await eventually(lambda: state_of(gateway).downloads.taken == 0)
        assert sum(reads) < 16_000_000

    async def test_so_many_at_once_and_no_more(self, gateway: Gateway) -> None:
        await register(gateway)
        turns = [state_of(gateway).downloads.take(f"tenant-{number}") for number in range(DOWNLOADS_MAX)]
        refused = await gateway.client.get(f"/wheels/{WHEEL}")
        assert (refused.status_code, refused.json()) == (503, error(34, "too many transfers"))
        assert (await gateway.client.head(f"/wheels/{WHEEL}")).status_code == 200
        turns[0]()
        assert (await gateway.client.get(f"/wheels/{WHEEL}")).status_code == 200

    async def test_whoever_reads_slowly_is_in_nobody_elses_way(self, gateway: Gateway) -> None:
        await register(gateway)
        for _ in range(DOWNLOADS_OF_TENANT_MAX):
            state_of(gateway).downloads.take("another tenant")
        assert (await gateway.client.get(f"/wheels/{WHEEL}")).status_code == 200
        turns = [state_of(gateway).downloads.take("") for _ in range(DOWNLOADS_MAX - DOWNLOADS_OF_TENANT_MAX)]
        assert (await gateway.client.get(f"/wheels/{WHEEL}")).status_code == 503
        turns[0]()
        assert (await gateway.client.get(f"/wheels/{WHEEL}")).status_code == 200

    @pytest.mark.parametrize("is_stopping", [True, False])
    async def test_a_stop_cuts_it_off_without_a_traceback(self, gateway: Gateway, is_stopping: bool) -> None:
        await register(gateway, pad_bytes=3_000_000)
        waits, sent = asyncio.Event(), []

        async def receive() -> dict[str, Any]:
            await asyncio.Event().wait()
            return {}

        async def send(message: Any) -> None:
            sent.append(message)
            if len(sent) > 3:
                waits.set()
                await asyncio.Event().wait()

        scope = {"type": "http", "method": "GET", "path": f"/wheels/{WHEEL}", "headers": [], "query_string": b""}
        gateway.app.state.stopping = is_stopping
        sending = asyncio.create_task(gateway.app(scope, receive, send))
        await waits.wait()
        sending.cancel()
        with contextlib.nullcontext() if is_stopping else pytest.raises(asyncio.CancelledError):
            await sending
        assert sent[-1]["more_body"]
        assert state_of(gateway).downloads.taken == 0
