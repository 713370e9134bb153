"""`/healthz` and `/readyz` of a worker or keeper: two answers, also for malformed requests."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping

import psutil
import pytest

from pyoco_server.doors.http import probe_server as module
from pyoco_server.doors.http.probe_server import probe_server
from pyoco_server.errors import UsageError
from support.waiting import eventually

READY: Mapping[str, object] = {"status": "ok", "checks": {"ledger": "ok"}}


class Probes:
    """One server, and what its checks say."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.is_ready = True
        self.checks = 0

    async def look(self) -> tuple[bool, Mapping[str, object]]:
        self.checks += 1
        return self.is_ready, READY

    async def send(self, head: bytes) -> bytes:
        """All that is answered, until the connection ends."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(head)
            return await asyncio.wait_for(reader.read(), 120)
        except ConnectionError:
            return b""
        finally:
            await _closed(writer)

    async def ask(self, path: str, method: str = "GET") -> tuple[int, bytes]:
        """Status and body."""
        head, _, body = (await self.send(f"{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())).partition(
            b"\r\n\r\n"
        )
        return int(head.split()[1]), body


async def _closed(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


@pytest.fixture
async def probes(unused_port: int) -> AsyncIterator[Probes]:
    probes = Probes(unused_port)
    async with probe_server("127.0.0.1", unused_port, probes.look):
        yield probes


async def test_being_alive_is_told_without_a_look_at_anything(probes: Probes) -> None:
    """PRICED-177"""
    assert await probes.ask("/healthz") == (200, b'{"status": "ok"}')
    assert probes.checks == 0


@pytest.mark.parametrize(("is_ready", "status"), [(True, 200), (False, 503)])
async def test_readiness_is_what_the_checks_say(probes: Probes, is_ready: bool, status: int) -> None:
    """PRICED-178"""
    probes.is_ready = is_ready
    got, body = await probes.ask("/readyz?verbose=1")
    assert (got, json.loads(body)) == (status, READY)


async def test_a_head_request_gets_the_head_alone(probes: Probes) -> None:
    answer = await probes.send(b"HEAD /readyz HTTP/1.1\r\n\r\n")
    head, _, body = answer.partition(b"\r\n\r\n")
    length = len(json.dumps(dict(READY)))
    assert head.startswith(b"HTTP/1.1 200 OK")
    assert f"Content-Length: {length}".encode() in head
    assert body == b""


async def test_other_paths_and_methods_are_refused(probes: Probes) -> None:
    assert (await probes.ask("/runs"))[0] == 404
    assert (await probes.ask("/healthz", "POST"))[0] == 405
    assert probes.checks == 0


@pytest.mark.parametrize(
    "head",
    [
        b"\r\n\r\n",
        b"GET\r\n\r\n",
        b"\x16\x03\x01\x00\r\n\r\n",
        b"G" * 20_000,
        b"GET /healthz HTTP/1.1\r\nX: " + b"x" * 20_000,
    ],
    ids=["empty", "one word", "TLS", "no end", "a long header"],
)
async def test_what_is_no_request_ends_its_own_connection_alone(probes: Probes, head: bytes) -> None:
    assert await probes.send(head) == b""
    assert (await probes.ask("/healthz"))[0] == 200


async def test_who_sends_slowly_is_cut_off_and_keeps_nobody_waiting(
    probes: Probes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_SECONDS_MAX", 120.0)
    slow = [asyncio.create_task(probes.send(b"GET /healthz HTTP/1.1\r\n")) for _ in range(20)]
    assert (await probes.ask("/healthz"))[0] == 200
    assert not any(each.done() for each in slow)
    for each in slow:
        each.cancel()
    await asyncio.wait(slow)
    monkeypatch.setattr(module, "_SECONDS_MAX", 0.3)
    slow = [asyncio.create_task(probes.send(b"GET /healthz HTTP/1.1\r\n")) for _ in range(20)]
    assert set(await asyncio.gather(*slow)) == {b""}


async def test_more_connections_than_it_serves_are_closed_at_once(
    probes: Probes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """64 at a time: a flood costs sockets for a moment, and no memory."""
    idle = [await asyncio.open_connection("127.0.0.1", probes.port) for _ in range(64)]
    try:

        async def is_full() -> bool:
            return await probes.send(b"GET /healthz HTTP/1.1\r\n\r\n") == b""

        await eventually(is_full)
    finally:
        for _, writer in idle:
            await _closed(writer)

    async def answers() -> bool:
        return (await probes.send(b"GET /healthz HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 200")

    await eventually(answers)


async def test_checks_that_hang_get_no_more_time_than_a_request(
    unused_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_SECONDS_MAX", 0.2)

    async def hang() -> tuple[bool, Mapping[str, object]]:
        await asyncio.Event().wait()
        raise AssertionError

    async with probe_server("127.0.0.1", unused_port, hang):
        assert await Probes(unused_port).send(b"GET /readyz HTTP/1.1\r\n\r\n") == b""


async def test_a_check_that_fails_leaves_no_connection_open(unused_port: int, caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> tuple[bool, Mapping[str, object]]:
        raise RuntimeError("a defect")

    async with probe_server("127.0.0.1", unused_port, fail):
        assert await Probes(unused_port).send(b"GET /readyz HTTP/1.1\r\n\r\n") == b""
    assert "probe request failed" in caplog.text


async def test_a_port_that_is_taken_is_named(probes: Probes) -> None:
    with pytest.raises(UsageError, match=f"PYOCO_HEALTH_PORT={probes.port} cannot be used"):
        async with probe_server("127.0.0.1", probes.port, probes.look):
            pytest.fail("two servers at one port")


async def test_without_a_port_nobody_listens() -> None:
    async def look() -> tuple[bool, Mapping[str, object]]:
        raise AssertionError

    def listening() -> set[int]:
        connections = psutil.Process().net_connections("tcp")
        return {each.laddr.port for each in connections if each.status == psutil.CONN_LISTEN}

    before = listening()
    async with probe_server("127.0.0.1", 0, look):
        assert listening() <= before


async def test_after_its_block_nobody_listens(unused_port: int) -> None:
    probes = Probes(unused_port)
    async with probe_server("127.0.0.1", unused_port, probes.look):
        assert (await probes.ask("/healthz"))[0] == 200
    with pytest.raises(OSError):
        await probes.ask("/healthz")
