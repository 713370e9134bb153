"""A wire does what it is told, and nothing is left of that when it is healed."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
import time
from collections.abc import AsyncIterator

import pytest

from pyoco_server.errors import Unavailable
from pyoco_server.ports.nats.link import Patience, open_link
from storm.faults.wires import CutWire, FrozenWire, OneWayWire, RelayWire, SlowWire, loop_of_wires
from storm.port import Fault, Site
from support.waiting import eventually

_ANSWER_SECONDS = 60.0


class Echo:
    """A server that repeats what it hears, behind a wire, and those who talk to it."""

    def __init__(self) -> None:
        self.heard: list[bytes] = []
        self._writers: list[asyncio.StreamWriter] = []
        self.wire = RelayWire("anna>n1", 0)

    async def dial(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.wire.port)
        self._writers.append(writer)
        return reader, writer

    async def on_client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        with contextlib.suppress(OSError):
            while data := await reader.read(4096):
                self.heard.append(data)
                writer.write(data)
                await writer.drain()
        writer.close()

    async def close(self) -> None:
        for writer in self._writers:
            writer.close()
        for writer in self._writers:
            with contextlib.suppress(OSError):
                await writer.wait_closed()


@pytest.fixture(params=["its own loop", "a loop of wires"])
async def echo(request: pytest.FixtureRequest) -> AsyncIterator[Echo]:
    async with contextlib.AsyncExitStack() as stack:
        echo = Echo()
        stack.push_async_callback(echo.close)
        server = await asyncio.start_server(echo.on_client, "127.0.0.1", 0)
        stack.callback(server.close)
        loop = await stack.enter_async_context(loop_of_wires()) if request.param == "a loop of wires" else None
        echo.wire = RelayWire("anna>n1", server.sockets[0].getsockname()[1], loop)
        await stack.enter_async_context(echo.wire)
        yield echo


async def ask(stream: tuple[asyncio.StreamReader, asyncio.StreamWriter], data: bytes) -> None:
    stream[1].write(data)
    async with asyncio.timeout(_ANSWER_SECONDS):
        assert await stream[0].readexactly(len(data)) == data


async def silent(reader: asyncio.StreamReader, seconds: float = 0.2) -> bool:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(seconds):
            await reader.read(1)
    return True


async def test_bytes_pass_in_their_order_however_many(echo: Echo) -> None:
    stream = await echo.dial()
    data = random.Random(1).randbytes(3_000_000)
    stream[1].write(data)
    async with asyncio.timeout(_ANSWER_SECONDS):
        assert await stream[0].readexactly(len(data)) == data
    stream[1].close()
    await eventually(lambda: echo.wire.open_connections == 0)


async def test_a_cut_wire_hangs_up_and_takes_nobody_until_it_is_healed(echo: Echo) -> None:
    stream = await echo.dial()
    await ask(stream, b"one")
    echo.wire.cut()
    with contextlib.suppress(ConnectionError):
        assert await stream[0].read() == b""
    with contextlib.suppress(ConnectionError):
        late = await echo.dial()
        assert await late[0].read() == b""
    echo.wire.heal()

    async def works() -> bool:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            again = await echo.dial()
            await ask(again, b"two")
            return True
        return False

    await eventually(works)


async def test_a_frozen_wire_is_silent_both_ways_and_forgets_nothing(echo: Echo) -> None:
    stream = await echo.dial()
    await ask(stream, b"one")
    echo.wire.freeze()
    await eventually(lambda: not any(echo.wire._passes))
    stream[1].write(b"two")
    late = await echo.dial()
    late[1].write(b"three")
    assert await silent(stream[0])
    assert await silent(late[0], 0.05)
    assert b"two" not in b"".join(echo.heard)
    echo.wire.heal()
    for one, words in ((stream, b"two"), (late, b"three")):
        async with asyncio.timeout(_ANSWER_SECONDS):
            assert await one[0].readexactly(len(words)) == words


async def test_a_frozen_wire_keeps_a_bounded_number_of_bytes(echo: Echo) -> None:
    stream = await echo.dial()
    await ask(stream, b"one")
    echo.wire.freeze()
    await eventually(lambda: not any(echo.wire._passes))
    sent = 0
    with contextlib.suppress(TimeoutError):
        while sent < 64_000_000:
            stream[1].write(bytes(1_000_000))
            sent += 1_000_000
            async with asyncio.timeout(0.5):
                await stream[1].drain()
    assert sent < 32_000_000, "it takes whatever comes"  # what is above 1 MB is in the buffers of TCP


@pytest.mark.parametrize("to_server", [True, False])
async def test_a_one_way_wire_passes_one_direction_alone(echo: Echo, to_server: bool) -> None:
    stream = await echo.dial()
    await ask(stream, b"one")
    echo.wire.one_way(to_server)
    await eventually(lambda: echo.wire._passes == [not to_server, to_server])
    stream[1].write(b"two")
    if to_server:
        await eventually(lambda: b"two" in b"".join(echo.heard))
    assert await silent(stream[0])
    assert (b"two" in b"".join(echo.heard)) == to_server
    echo.wire.heal()
    async with asyncio.timeout(_ANSWER_SECONDS):
        assert await stream[0].readexactly(3) == b"two"


async def test_a_slow_wire_is_late_both_ways_and_quick_once_healed(echo: Echo) -> None:
    stream = await echo.dial()
    await ask(stream, b"one")
    echo.wire.slow(0.1, jitter=0.05)
    await eventually(lambda: echo.wire._delay > 0)
    for number in range(3):
        began = time.monotonic()
        await ask(stream, b"%d" % number)
        assert time.monotonic() - began >= 0.2
    stream[1].write(b"a" * 1000)
    stream[1].write(b"b" * 1000)
    async with asyncio.timeout(_ANSWER_SECONDS):
        assert await stream[0].readexactly(2000) == b"a" * 1000 + b"b" * 1000
    echo.wire.slow(2 * _ANSWER_SECONDS, jitter=0.0)
    await eventually(lambda: echo.wire._delay > _ANSWER_SECONDS)
    echo.wire.heal()
    await eventually(lambda: echo.wire._delay == 0)
    await ask(stream, b"quick")  # with the delay it would not be answered in time


# The library forgets to close a connection that was accepted and cut before its first word; nobody holds it either.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_a_link_to_nats_survives_a_wire_that_was_cut(nats_url: str) -> None:
    """FLOW-48: who asks meanwhile is told; who asks afterwards is answered."""
    async with RelayWire("anna>n1", int(nats_url.rpartition(":")[2])) as wire:
        patience = Patience(down_seconds=0.3, answer_seconds=1.0)
        link = await open_link(f"nats://127.0.0.1:{wire.port}", "tests", patience)
        try:
            wire.cut()
            await eventually(lambda: not link.is_up)
            with pytest.raises(Unavailable):
                await link.api("INFO", {}, dict[str, object])
            wire.heal()
            await link.until_up(_ANSWER_SECONDS)
            link.patience = Patience()
            assert "streams" in await link.api("INFO", {}, dict[str, object])
        finally:
            await link.close()
    gc.collect()  # what was forgotten is told of here, and not in another test


@pytest.mark.parametrize("fault", [CutWire(), FrozenWire(), OneWayWire(), SlowWire()], ids=lambda each: each.name)
async def test_each_fault_of_wires_heals_what_it_struck(fault: Fault) -> None:
    names = ["anna>n1", "anna>n2", "bert>n1"]
    wires = {name: RelayWire(name, 9) for name in names}
    site = Site(nodes=1, processes=[], wires=wires)
    assert not fault.can_strike(Site(nodes=1, processes=[]))
    for seed in range(8):
        struck = await fault.strike(site, random.Random(seed))
        again = await fault.strike(site, random.Random(seed))
        assert struck == again, "the seed tells the whole story"
        hit = {name for name in names if _is_struck(wires[name])}
        assert hit == set(struck.target.split(","))
        await fault.heal(site, struck)
        await fault.heal(site, struck)
        assert not any(_is_struck(wire) for wire in wires.values())


def _is_struck(wire: RelayWire) -> bool:
    return wire._is_cut or wire._passes != [True, True] or wire._delay > 0
