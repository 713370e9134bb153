"""Wheels up and down: streamed, compared, and whole or not there at all."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import io
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from python_multipart import parse_form

from pyoco_server.client.files import CHUNK_BYTES
from pyoco_server.client.forms import frame
from pyoco_server.http_client import AnswerDamaged, SourceChanged
from support.client_twins import MakeClient, make_async
from support.scripted_gateway import Asked, answer, cut, forwarding, raw, scripted
from support.waiting import eventually
from support.wheels import build_wheel

NAME = "my_tasks-1.0-py3-none-any.whl"
DATA = bytes(range(256)) * 3000  # several chunks
OLDER = {"detail": "same/older version is rejected", "err_id": "ERR-PYOCO-0022"}
pytestmark = pytest.mark.usefixtures("hurried")

AWAY = {"detail": "nats unavailable", "err_id": "ERR-PYOCO-0003"}


def artifact(data: bytes = DATA, name: str = NAME) -> dict[str, Any]:
    return {"name": name, "size_bytes": len(data), "sha256_hex": hashlib.sha256(data).hexdigest(), "tags": []}


def read_form(asked: Asked) -> dict[str, Any]:
    """The fields by their names; the file as its name and bytes. By the reader that the gateway uses."""
    found: dict[str, Any] = {}

    def on_field(field: Any) -> None:
        found[field.field_name.decode()] = field.value.decode()

    def on_file(file: Any) -> None:
        file.file_object.seek(0)
        found[file.field_name.decode()] = (file.file_name.decode(), file.file_object.read())

    headers = {"Content-Type": asked.headers["content-type"].encode()}
    parse_form(headers, io.BytesIO(asked.body), on_field, on_file)
    return found


class Pipe(io.RawIOBase):
    """A file that cannot go back."""

    def __init__(self, data: bytes) -> None:
        self._rest = io.BytesIO(data)

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        return self._rest.read(size)


def halves() -> Iterator[bytes]:
    yield DATA[:1000]
    yield b""
    yield DATA[1000:]


async def async_halves() -> AsyncIterator[bytes]:
    for half in halves():
        yield half


class TestUpload:
    @pytest.mark.parametrize("kind", ["bytes", "bytearray", "path", "text path", "file", "pipe", "chunks"])
    async def test_whatever_holds_the_bytes_is_sent(self, make: MakeClient, tmp_path: Path, kind: str) -> None:
        """FLOW-406, FLOW-151: with its length when that is known"""
        path = tmp_path / "some-file"
        path.write_bytes(DATA)
        file = path.open("rb")
        data: Any = {
            "bytes": DATA,
            "bytearray": bytearray(DATA),
            "path": path,
            "text path": str(path),
            "file": file,
            "pipe": Pipe(DATA),
            "chunks": halves(),
        }[kind]
        async with scripted(answer(artifact())) as server, make(server.url) as client:
            assert await client.upload_wheel(NAME, data, tags=["gpu", "x"]) == artifact()
        asked = server.asked[0]
        assert read_form(asked) == {"replace": "true", "tags": "gpu,x", "wheel": (NAME, DATA)}
        assert ("content-length" in asked.headers) == (kind not in {"pipe", "chunks"})
        assert not file.closed, "what the caller has opened stays open"
        file.close()

    async def test_chunks_may_come_from_a_coroutine(self) -> None:
        async with scripted(answer(artifact())) as server, make_async(server.url) as client:
            assert await client.upload_wheel(NAME, async_halves()) == artifact()
        assert read_form(server.asked[0])["wheel"] == (NAME, DATA)

    async def test_a_file_is_sent_from_where_it_stands(self, make: MakeClient) -> None:
        file = io.BytesIO(b"skipped" + DATA)
        file.seek(7)
        async with scripted(cut, answer(artifact())) as server, make(server.url) as client:
            await client.upload_wheel(NAME, file, replace=False)
        assert [read_form(asked)["wheel"][1] == DATA for asked in server.asked] == [True, True]
        assert read_form(server.asked[0])["replace"] == "false"
        assert "tags" not in read_form(server.asked[0])

    async def test_a_file_name_cannot_leave_its_line(self, make: MakeClient) -> None:
        async with scripted(answer(artifact(name="x"))) as server, make(server.url) as client:
            await client.upload_wheel('a"; name="tags"\r\nX: y', DATA)
        found = read_form(server.asked[0])
        assert set(found) == {"replace", "wheel"}
        assert b"\r\nX: y" not in server.asked[0].body

    async def test_progress_is_told(self, make: MakeClient) -> None:
        for data, total in ((DATA, len(DATA)), (halves(), None)):
            told: list[tuple[int, int | None]] = []
            async with scripted(answer(artifact())) as server, make(server.url) as client:
                await client.upload_wheel(NAME, data, progress=lambda *now, told=told: told.append(now))
            counts = [done for done, _ in told]
            assert counts == sorted(counts)
            assert told[-1] == (len(DATA), total)
            assert len(told) > 1

    @pytest.mark.parametrize("first", [cut, answer(AWAY, 503)])
    async def test_what_can_be_read_again_is_tried_again(self, make: MakeClient, first: Any, tmp_path: Path) -> None:
        path = tmp_path / NAME
        path.write_bytes(DATA)
        for data in (DATA, path, io.BytesIO(DATA)):
            async with scripted(first, answer(artifact())) as server, make(server.url) as client:
                assert await client.upload_wheel(NAME, data) == artifact()
            assert [read_form(asked)["wheel"][1] == DATA for asked in server.asked] == [True, True]

    async def test_what_cannot_be_read_again_is_not(self, make: MakeClient) -> None:
        for data in (Pipe(DATA), halves()):
            async with scripted(cut, answer(artifact())) as server, make(server.url) as client:
                with pytest.raises(httpx.RemoteProtocolError):
                    await client.upload_wheel(NAME, data)
                assert len(server.asked) == 1

    async def test_an_upload_that_meets_itself_has_succeeded(self, make: MakeClient) -> None:
        """FLOW-158: the answer was lost, the wheel was not"""
        turns = [cut, answer(OLDER, 409), answer([artifact(b"other", "x.whl"), artifact()])]
        async with scripted(*turns) as server, make(server.url) as client:
            assert await client.upload_wheel(NAME, io.BytesIO(DATA)) == artifact()
        assert [asked.path for asked in server.asked] == ["/wheels"] * 3

    async def test_an_upload_that_meets_another_has_not(self, make: MakeClient) -> None:
        """FLOW-158"""
        turns = [cut, answer(OLDER, 409), answer([artifact(b"other")])]
        async with scripted(*turns) as server, make(server.url) as client:
            with pytest.raises(httpx.HTTPStatusError) as raised:
                await client.upload_wheel(NAME, DATA)
            assert raised.value.response.json() == OLDER
        async with scripted(answer(OLDER, 409)) as server, make(server.url) as client:
            with pytest.raises(httpx.HTTPStatusError):
                await client.upload_wheel(NAME, DATA)
            assert len(server.asked) == 1, "the first word counts"

    async def test_another_digest_than_was_sent_is_an_error(self, make: MakeClient) -> None:
        """FLOW-154"""
        async with scripted(answer(artifact(b"other"))) as server, make(server.url) as client:
            with pytest.raises(AnswerDamaged, match="registered with the sha256"):
                await client.upload_wheel(NAME, DATA)
            assert len(server.asked) == 1

    async def test_what_is_no_bytes_is_not_sent(self, make: MakeClient, tmp_path: Path) -> None:
        async with scripted() as server, make(server.url) as client:
            with pytest.raises(TypeError, match="'rb'"):
                await client.upload_wheel(NAME, io.StringIO("text"))
            with pytest.raises(FileNotFoundError):
                await client.upload_wheel(NAME, tmp_path / "nothing")

    @pytest.mark.parametrize("change", [-1, 1, CHUNK_BYTES, -len(DATA)])
    @pytest.mark.parametrize("kind", ["path", "file"])
    async def test_a_file_that_changes_meanwhile_is_not_uploaded(
        self, make: MakeClient, tmp_path: Path, change: int, kind: str
    ) -> None:
        """FLOW-406: and the caller learns that it was the file"""
        path = tmp_path / NAME
        path.write_bytes(DATA)

        def change_it(done: int, total: int | None) -> None:
            assert total == len(DATA)
            with path.open("r+b") as file:
                file.truncate(len(DATA) + change)

        async with scripted() as server, make(server.url) as client:
            with path.open("rb") as file, pytest.raises(SourceChanged, match=f"has changed .* {len(DATA)} bytes"):
                await client.upload_wheel(NAME, file if kind == "file" else path, progress=change_it)
            assert server.asked == [], "no whole form has arrived"
            server.turns = [answer([])]
            assert await client.list_wheels() == [], "and the client goes on working"

    async def test_a_file_that_changes_between_two_tries_is_not_uploaded(
        self, make: MakeClient, tmp_path: Path
    ) -> None:
        path = tmp_path / NAME
        path.write_bytes(DATA)

        async def change_it(_asked: Asked, _writer: asyncio.StreamWriter) -> None:
            path.write_bytes(DATA + b"more")

        async with scripted(change_it, answer(artifact())) as server, make(server.url) as client:
            with pytest.raises(SourceChanged):
                await client.upload_wheel(NAME, path)
            assert len(server.asked) == 1

    async def test_an_early_no_is_heard_in_the_middle_of_an_upload(self, make: MakeClient) -> None:
        """FLOW-157: with its words, though not everything was sent"""

        left = asyncio.Event()

        async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            await answer({"detail": "wheel too large"}, 413)(Asked("", "", {}, b""), writer)
            while await reader.read(CHUNK_BYTES):
                """As a server does for a while, so that its answer is not lost."""
            writer.close()
            left.set()

        server = await asyncio.start_server(refuse, "127.0.0.1", 0)
        async with server, make(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}") as client:
            with pytest.raises(httpx.HTTPStatusError) as raised:
                await client.upload_wheel(NAME, bytes(20_000_000))
            assert raised.value.response.json() == {"detail": "wheel too large"}
            await client.close()
            await asyncio.wait_for(left.wait(), 120)


def sent(data: bytes = DATA, promised: bytes = DATA, length: int | None = None) -> Any:
    digest = base64.b64encode(hashlib.sha256(promised).digest()).decode()
    announced = str(len(data) if length is None else length)
    return answer(data, repr_digest=f"sha-256=:{digest}:", content_length=announced)


class TestDownload:
    async def test_a_wheel_comes_whole(self, make: MakeClient, tmp_path: Path) -> None:
        """FLOW-414, FLOW-152"""
        told: list[tuple[int, int | None]] = []
        async with scripted(sent(), sent(), sent()) as server, make(server.url) as client:
            assert await client.get_wheel(NAME) == DATA
            path = tmp_path / "mine.whl"
            found = await client.download_wheel(NAME, path, progress=lambda *now: told.append(now))
            assert found == {
                "name": NAME,
                "path": str(path),
                "size_bytes": len(DATA),
                "sha256_hex": hashlib.sha256(DATA).hexdigest(),
            }
            assert (await client.download_wheel(NAME, str(tmp_path)))["path"] == str(tmp_path / NAME)
        assert path.read_bytes() == (tmp_path / NAME).read_bytes() == DATA
        assert told[-1] == (len(DATA), len(DATA))
        assert {asked.path for asked in server.asked} == {"/wheels/" + NAME.replace(".", "%2E")}
        assert sorted(each.name for each in tmp_path.iterdir()) == sorted(["mine.whl", NAME])

    @pytest.mark.parametrize(
        "broken",
        [
            cut,
            sent(DATA[:-1], length=len(DATA)),
            sent(DATA[:-1]),
            sent(DATA[:-1] + b"\xff"),
            answer(DATA),
            answer(DATA, repr_digest="sha-256=:AAAA:"),
            answer(AWAY, 503),
        ],
    )
    async def test_a_damaged_one_is_fetched_again(self, make: MakeClient, broken: Any, tmp_path: Path) -> None:
        async with scripted(broken, sent()) as server, make(server.url) as client:
            await client.download_wheel(NAME, tmp_path / "x.whl")
            assert (tmp_path / "x.whl").read_bytes() == DATA
            server.turns = [broken, sent()]
            assert await client.get_wheel(NAME) == DATA

    async def test_a_damaged_one_is_never_there(self, make: MakeClient, tmp_path: Path) -> None:
        """What was there before stays, and nothing lies beside it"""
        path = tmp_path / "x.whl"
        path.write_bytes(b"old")
        async with scripted(sent(DATA + b"!"), sent(b"", DATA)) as server, make(server.url, retries=1) as client:
            with pytest.raises(AnswerDamaged, match="announced"):
                await client.download_wheel(NAME, path)
        assert path.read_bytes() == b"old"
        assert list(tmp_path.iterdir()) == [path]

    async def test_an_unknown_one_is_not_found(self, make: MakeClient, tmp_path: Path) -> None:
        """FLOW-159, FLOW-415: with the server's words, though the answer is a stream"""
        async with scripted(*[answer({"detail": "wheel not found"}, 404)] * 2) as server, make(server.url) as client:
            for call in (client.get_wheel(NAME), client.download_wheel(NAME, tmp_path / "x.whl")):
                with pytest.raises(httpx.HTTPStatusError) as raised:
                    await call
                assert raised.value.response.json() == {"detail": "wheel not found"}
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("name", ["../x.whl", "..", "a/b", "a\\b", ""])
    async def test_a_name_cannot_lead_out_of_the_folder(self, make: MakeClient, name: str, tmp_path: Path) -> None:
        async with scripted() as server, make(server.url) as client:
            with pytest.raises(ValueError, match="no name of a file"):
                await client.download_wheel(name, tmp_path)
            assert server.asked == []

    async def test_an_interrupt_leaves_nothing(self, tmp_path: Path) -> None:
        half = raw(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\nrepr-digest: sha-256=:" + b"A" * 43 + b"=:\r\n\r\nhalf")

        async def stop(asked: Asked, writer: asyncio.StreamWriter) -> None:
            await half(asked, writer)
            await asyncio.Event().wait()

        async with scripted(stop) as server, make_async(server.url) as client:
            fetching = asyncio.create_task(client.download_wheel(NAME, tmp_path / "x.whl"))
            await eventually(lambda: list(tmp_path.glob(".x.whl.*.part")) != [])
            fetching.cancel()
            with pytest.raises(asyncio.CancelledError):
                await fetching
        assert list(tmp_path.iterdir()) == []


class TestWithAGateway:
    async def test_a_wheel_there_and_back(self, make: MakeClient, url: str, tmp_path: Path) -> None:
        """FLOW-404 to FLOW-407, FLOW-414"""
        name, data = build_wheel("my-tasks", "1.0", pad_bytes=700_000)
        async with make(url) as client:
            registered = await client.upload_wheel(name, data, tags=["gpu"])
            assert (registered["name"], registered["size_bytes"], registered["tags"]) == (name, len(data), ["gpu"])
            assert await client.list_wheels() == [registered]
            assert await client.get_wheel(name) == data
            found = await client.download_wheel(name, tmp_path)
            assert Path(found["path"]).read_bytes() == data
            with pytest.raises(httpx.HTTPStatusError) as raised:
                await client.upload_wheel(name, data)
            assert raised.value.response.json()["err_id"] == "ERR-PYOCO-0022"
            assert await client.delete_wheel(name) == {"name": name, "deleted": True}
            for call in (client.delete_wheel(name), client.get_wheel(name)):
                with pytest.raises(httpx.HTTPStatusError) as raised:
                    await call
                assert raised.value.response.json()["err_id"] == "ERR-PYOCO-0023"
            history = await client.list_wheel_history(limit=5, wheel_name=name)
            assert [event["action"] for event in history] == ["delete", "upload"]
            assert await client.list_wheel_history(action="delete") == history[:1]
            with pytest.raises(httpx.HTTPStatusError) as raised:
                await client.list_wheel_history(limit=0)
            assert raised.value.response.status_code == 422

    async def test_chunks_are_taken_too(self, make: MakeClient, url: str) -> None:
        name, data = build_wheel("my-tasks", "1.0", pad_bytes=700_000)
        async with make(url) as client:
            registered = await client.upload_wheel(name, iter([data[:5], data[5:]]))
        assert registered["sha256_hex"] == hashlib.sha256(data).hexdigest()

    async def test_an_upload_whose_answer_is_lost_counts_once(self, make: MakeClient, url: str) -> None:
        name, data = build_wheel("my-tasks", "1.0")
        lost: list[Asked] = []

        def lose(asked: Asked) -> bool:
            lost.append(asked)
            return len(lost) == 1

        async with scripted(*[forwarding(url, lose)] * 3) as proxy, make(proxy.url) as client:
            registered = await client.upload_wheel(name, data)
            assert [asked.method for asked in proxy.asked] == ["POST", "POST", "GET"]
        async with make(url) as client:
            assert await client.list_wheels() == [registered]
            assert len(await client.list_wheel_history()) == 1


def test_two_forms_have_two_boundaries() -> None:
    first, second = (frame({}, "wheel", "x", "y") for _ in range(2))
    assert first.content_type != second.content_type
    assert re.fullmatch(r"multipart/form-data; boundary=[0-9a-f]{32}", first.content_type)
    assert first.length(5) == len(first.head) + 5 + len(first.tail)
