"""Senders that stop: a connection is held for a limited time, and shutdown does not wait for it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from pyoco_server.doors.cli.gateway import BoundedHttp, _Server
from pyoco_server.doors.http import guard, pace, requests
from pyoco_server.ports.backend import GatewayBackend
from support.gateways import Gateway, error
from support.servers import NatsServer
from support.waiting import eventually
from support.warm_processes import begun

SCRIPTS = Path(sys.executable).parent
HEALTH = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
HALF = b"GET /health HTTP/1.1\r\nHost: x\r\nX-"
RUN = b'{"flow_name": "f"}'
SENT = b"POST /runs HTTP/1.1\r\nHost: x\r\nContent-Length: 18\r\n\r\n"
CHUNKED = b"POST /runs HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
FORM = b"POST /runs/yaml HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n"
FORM += b"Content-Type: multipart/form-data; boundary=B\r\n\r\n"


@contextlib.asynccontextmanager
async def served(app: Any, http: Any = BoundedHttp, keep_alive: int = 1) -> AsyncIterator[int]:
    """The application behind the gateway's own server. Gives the port."""
    settings = uvicorn.Config(
        app, port=0, http=http, ws="none", lifespan="off", log_config=None, timeout_keep_alive=keep_alive
    )
    server = _Server(settings)
    serving = asyncio.create_task(server.serve())
    try:
        await eventually(lambda: server.started)
        yield int(server.servers[0].sockets[0].getsockname()[1])
    finally:
        server.should_exit = server.force_exit = True
        await serving


@contextlib.asynccontextmanager
async def connected(port: int, sent: bytes = b"") -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """`sent` is on its way before the server knows of the connection: a busy machine cannot be late with it."""
    one = socket.create_connection(("127.0.0.1", port))
    one.sendall(sent)
    reader, writer = await asyncio.open_connection(sock=one)
    try:
        async with asyncio.timeout(120):
            yield reader, writer
    finally:
        writer.close()


async def rest_of(reader: asyncio.StreamReader) -> bytes:
    """Everything until the server closes. When it has not read all that was sent, that is a reset."""
    said = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := await reader.read(65_536):
            said += piece
    return said


async def last_words(port: int, sent: bytes = b"") -> bytes:
    async with connected(port, sent) as (reader, _):
        return await rest_of(reader)


@pytest.fixture
def heads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BoundedHttp, "HEAD_SECONDS_MAX", 0.2)


@pytest.fixture
def bodies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "_SPAN_SECONDS", 0.2)


@pytest.mark.usefixtures("heads")
class TestHeads:
    async def test_a_head_that_does_not_come_is_waited_for_no_longer(
        self, gateway: Gateway, caplog: pytest.LogCaptureFixture
    ) -> None:
        cases = [b"", b"\r\n\r\n", b"G", HALF]
        with caplog.at_level(logging.INFO):
            async with served(gateway.app) as port:
                answers = await asyncio.gather(*(last_words(port, sent) for sent in cases))
        for sent, answer in zip(cases, answers, strict=True):
            wanted = b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
            assert answer == wanted, sent
        told = [record.levelno for record in caplog.records if "request head timed out" in record.message]
        assert told == [logging.INFO] * len(cases)

    async def test_a_head_that_drips_gains_no_time(self, gateway: Gateway) -> None:
        async with served(gateway.app) as port, connected(port) as (reader, writer):
            answer = asyncio.create_task(rest_of(reader))
            writer.write(HALF)
            while not answer.done():
                writer.write(b"a")
                await asyncio.wait({answer}, timeout=0.05)
            assert answer.result().startswith(b"HTTP/1.1 408 ")

    async def test_a_later_head_has_its_own_time(self, gateway: Gateway) -> None:
        async with served(gateway.app) as port:
            answer = await last_words(port, HEALTH + HALF)
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert b"HTTP/1.1 408 " in answer

    async def test_the_time_counts_from_the_connection_and_then_from_the_first_byte(self, gateway: Gateway) -> None:
        seen: list[BoundedHttp] = []

        class Seen(BoundedHttp):
            HEAD_SECONDS_MAX = 600.0

            def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
                super().connection_made(transport)
                seen.append(self)

        async with served(gateway.app, Seen, keep_alive=75) as port, connected(port) as (reader, writer):
            await eventually(lambda: bool(seen))
            first = seen[0]._head_ends_at
            await asyncio.sleep(0.05)
            writer.write(HEALTH)
            await reader.readuntil(b"}")
            assert seen[0]._head_ends_at == first
            writer.write(HALF)
            await eventually(lambda: seen[0]._in_head)
            assert seen[0]._head_ends_at > first

    async def test_an_idle_connection_is_kept(self, gateway: Gateway) -> None:
        """For as long as uvicorn keeps one."""
        async with served(gateway.app, keep_alive=600) as port, connected(port, HEALTH) as (reader, writer):
            for _ in range(3):
                assert (await reader.readuntil(b"}")).startswith(b"HTTP/1.1 200 ")
                await last_words(port)  # a whole limit goes by
                await last_words(port)
                writer.write(HEALTH)
            assert (await reader.readuntil(b"}")).startswith(b"HTTP/1.1 200 ")

    async def test_an_answer_under_way_is_not_cut(self) -> None:
        """The next head waits behind it, and has its time afterwards."""
        go = asyncio.Event()

        async def slow(scope: Scope, receive: Receive, send: Send) -> None:
            await go.wait()
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"1")]})
            await send({"type": "http.response.body", "body": b"}"})

        async with served(slow) as port, connected(port, HEALTH + HALF) as (reader, _):
            for _ in range(3):
                await last_words(port)
            go.set()
            answer = await rest_of(reader)
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert b"}HTTP/1.1 408 " in answer

    async def test_what_follows_an_answer_and_is_no_request_keeps_nothing_open(self, gateway: Gateway) -> None:
        """The rest of a refused body, or a blank line, after which nothing comes."""
        refused = b"POST /runs HTTP/1.1\r\nHost: x\r\nContent-Length: 5000000\r\n\r\n"
        async with served(gateway.app) as port:
            for head, rest in ((refused, b"x"), (HEALTH, b"\r\n")):
                async with connected(port, head) as (reader, writer):
                    await reader.readuntil(b"}")
                    writer.write(rest)
                    await rest_of(reader)

    @pytest.mark.usefixtures("bodies")
    @pytest.mark.parametrize(
        ("head", "piece"),
        [
            (b"POST /nosuch HTTP/1.1\r\nHost: x\r\nContent-Length: 5000000\r\n\r\n", b"x"),
            (b"GET /health HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
            (HEALTH, b"\r\n"),
        ],
        ids=["rest of a body", "chunks", "blank lines"],
    )
    async def test_what_drips_after_an_answer_keeps_nothing_open(
        self, gateway: Gateway, caplog: pytest.LogCaptureFixture, head: bytes, piece: bytes
    ) -> None:
        """SAFE-11"""
        with caplog.at_level(logging.INFO):
            async with served(gateway.app, keep_alive=600) as port, connected(port, head) as (reader, writer):
                await reader.readuntil(b"}")
                closed = asyncio.create_task(rest_of(reader))
                while not closed.done():
                    writer.write(piece)
                    await asyncio.wait({closed}, timeout=0.02)
        assert "closed connection: unread data after a response arrives too slowly" in caplog.messages

    async def test_a_body_that_comes_fast_enough_after_its_answer_is_dropped(self, gateway: Gateway) -> None:
        """SAFE-11: the next request on the connection is answered"""
        head = b"POST /nosuch HTTP/1.1\r\nHost: x\r\nContent-Length: 2000\r\n\r\n"
        async with served(gateway.app, keep_alive=600) as port, connected(port, head) as (reader, writer):
            await reader.readuntil(b"}")
            for _ in range(2):
                writer.write(b"x" * 1_000)
                await last_words(port)  # a whole limit of a head goes by, a fraction of that of a body
            writer.write(HEALTH)
            assert (await reader.readuntil(b"}")).startswith(b"HTTP/1.1 200 ")


@pytest.mark.usefixtures("bodies")
class TestBodies:
    @pytest.mark.parametrize("http", [BoundedHttp, "httptools", "h11"])
    async def test_a_body_that_stops_is_given_up(self, gateway: Gateway, http: Any) -> None:
        cases = [SENT, SENT + RUN[:5], CHUNKED, CHUNKED + b"5\r\n" + RUN[:5], FORM, FORM + b"--B"]
        async with served(gateway.app, http) as port:
            answers = await asyncio.gather(*(last_words(port, sent) for sent in cases))
        for sent, answer in zip(cases, answers, strict=True):
            head, _, body = answer.partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 408 "), sent
            assert b"connection: close" in head.lower(), sent
            assert json.loads(body) == error(2, "request timeout"), sent

    async def test_all_pieces_of_a_body_share_one_time_limit(
        self, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """SAFE-11: a piece does not restart the time."""
        monkeypatch.setattr(pace, "_SPAN_SECONDS", 600.0)
        timers: list[float] = []

        def timeout(seconds: float) -> asyncio.Timeout:
            timers.append(seconds)
            return asyncio.timeout(seconds)

        more = {"Event": asyncio.Event, "get_running_loop": asyncio.get_running_loop}
        monkeypatch.setattr(requests, "asyncio", SimpleNamespace(timeout=timeout, **more))
        async with served(gateway.app) as port, connected(port, SENT) as (reader, writer):
            for count, at in enumerate(range(0, len(RUN), 3), 1):
                await eventually(lambda count=count: len(timers) == count)  # type: ignore[misc]
                writer.write(RUN[at : at + 3])
            assert (await reader.readuntil(b"}")).startswith(b"HTTP/1.1 200 ")
        assert len(timers) == 6
        assert timers[0] == 600.0
        assert all(later < earlier for earlier, later in pairwise(timers))

    @pytest.mark.parametrize("http", [BoundedHttp, "httptools", "h11"])
    async def test_a_body_that_is_there_needs_no_clock(
        self, gateway: Gateway, monkeypatch: pytest.MonkeyPatch, http: Any
    ) -> None:
        monkeypatch.setattr(requests, "asyncio", SimpleNamespace(Event=asyncio.Event))
        async with served(gateway.app, http) as port, connected(port, SENT + RUN) as (reader, _):
            assert (await reader.readuntil(b"}")).startswith(b"HTTP/1.1 200 ")


class TestStop:
    @pytest.mark.parametrize("is_stopping", [True, False])
    async def test_only_a_stop_turns_a_cancellation_into_an_answer(self, gateway: Gateway, is_stopping: bool) -> None:
        waits = asyncio.Event()

        async def content() -> AsyncIterator[bytes]:
            yield RUN[:5]
            waits.set()
            await asyncio.Event().wait()

        gateway.app.state.stopping = is_stopping
        asking = asyncio.create_task(gateway.client.post("/runs", content=content()))
        await waits.wait()
        asking.cancel()
        if not is_stopping:
            with pytest.raises(asyncio.CancelledError):
                await asking
            return
        answer = await asking
        assert (answer.status_code, answer.json()) == (503, error(3, "gateway is stopping"))
        assert answer.headers["retry-after"] == "1"

    async def test_whoever_waits_at_the_entrance_is_answered_too(
        self, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        waits = asyncio.Event()

        async def admit(*_: object) -> None:
            waits.set()
            await asyncio.Event().wait()

        monkeypatch.setattr(guard, "_admit", admit)
        monkeypatch.setattr(gateway.app.state.gateway, "backend", _with_keys(gateway))
        gateway.app.state.stopping = True
        asking = asyncio.create_task(gateway.client.get("/runs"))
        await waits.wait()
        asking.cancel()
        assert (await asking).json() == error(3, "gateway is stopping")

    def test_a_half_sent_body_does_not_hold_up_the_stop(self, own_nats_server: NatsServer, tmp_path: Path) -> None:
        """Our 503, and no error in the log"""
        _stop_half_way(own_nats_server.url, tmp_path)


def _stop_half_way(nats_url: str, folder: Path) -> None:
    """Stop a gateway while a client has stopped sending in the middle of a body."""
    out = folder / "out"
    command = [str(SCRIPTS / "pyoco-server"), "gateway", "--port", "0", "--nats-url", nats_url]
    with out.open("wb") as stdout:
        process = begun(command, stdout=stdout, cwd=folder)
    try:
        port = _port_of(process, out)
        with socket.create_connection(("127.0.0.1", port), timeout=60) as sender:
            sender.sendall(SENT.replace(b"Host: x", b"Host: x\r\nExpect: 100-continue"))
            assert sender.recv(4096).startswith(b"HTTP/1.1 100 ")  # somebody waits for the body
            sender.sendall(RUN[:5])
            process.send_signal(signal.SIGTERM)
            head, _, body = b"".join(iter(lambda: sender.recv(4096), b"")).partition(b"\r\n\r\n")
        assert process.wait(60) == 0
        assert head.startswith(b"HTTP/1.1 503 ")
        assert b"retry-after: 1" in head
        assert b"connection: close" in head
        assert json.loads(body) == error(3, "gateway is stopping")
        lines = [json.loads(line) for line in out.read_text().splitlines()]
        assert not [line for line in lines if "exc_traceback" in line]
        (told,) = (line for line in lines if line["message"] == "request abandoned: gateway is stopping")
        assert (told["level"], told["path"]) == ("INFO", "/runs")
    finally:
        process.kill()
        process.wait()


def _with_keys(gateway: Gateway) -> GatewayBackend:
    return replace(gateway.backend, config=replace(gateway.config, http_auth_mode="api_key"))


def _port_of(process: subprocess.Popen[bytes], out: Path) -> int:
    deadline = time.monotonic() + 120
    while True:
        assert process.poll() is None
        assert time.monotonic() < deadline
        for line in out.read_text().splitlines():
            if '"serving HTTP"' in line and line.endswith("}"):
                return int(json.loads(line)["port"])
        time.sleep(0.02)
