"""A relay in front of a server, on loopback: connections through it can be cut, frozen, slowed down, and the way
closed for a while. `RelayWire` for whoever has a loop, `Relay` for whoever has none."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from types import TracebackType
from typing import Any, Self

__all__ = ["Relay", "RelayWire", "loop_of_wires", "relayed"]

_CHUNK_BYTES = 64 * 1024
#: What one connection keeps of each direction. Beyond it the sender is not read from, and TCP holds him back.
_KEPT_BYTES_MAX = 1024 * 1024
_DIAL_SECONDS = 30.0


class RelayWire:
    """A relay on a port of its own, on loopback. It runs in the loop that opens it, or in that of `loop_of_wires`; what
    it is told takes effect at once in the first case, within moments in the second. Memory: 2 MB for a connection."""

    def __init__(
        self, name: str, upstream_port: int, loop: asyncio.AbstractEventLoop | None = None, host: str = "127.0.0.1"
    ) -> None:
        self.name = name
        self._upstream, self._loop = (host, upstream_port), loop
        self._server: asyncio.Server | None = None
        self._connections: set[_Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_cut = False
        #: Whether bytes pass: to the client, to the server.
        self._passes = [True, True]
        self._delay, self._jitter = 0.0, 0.0
        self._dice = random.Random(name)
        self._changed = asyncio.Event()
        self.port = 0
        #: How many connections were accepted, and bytes passed on either way.
        self.connections = 0
        self.passed_bytes = 0

    @property
    def open_connections(self) -> int:
        return len(self._connections)

    async def __aenter__(self) -> Self:
        self._loop = self._loop or asyncio.get_running_loop()
        await self._there(self._start())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._there(self._stop())

    async def _there(self, work: Coroutine[Any, Any, None]) -> None:
        assert self._loop is not None
        if self._loop is asyncio.get_running_loop():
            await work
        else:
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    async def _start(self) -> None:
        self._server = await asyncio.start_server(self._on_client, "127.0.0.1", self.port, limit=_CHUNK_BYTES)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _stop(self) -> None:
        if self._server is not None:
            self._server.close()
        self._drop()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    # Commands of the test.

    def cut(self) -> None:
        self._tell(is_cut=True, passes=[True, True])

    def freeze(self) -> None:
        self._tell(passes=[False, False])

    def one_way(self, to_server: bool) -> None:
        self._tell(passes=[not to_server, to_server])

    def slow(self, seconds: float, jitter: float = 0.0) -> None:
        self._tell(passes=[True, True], delay=seconds, jitter=jitter)

    def heal(self) -> None:
        self._tell(passes=[True, True])

    def _tell(self, *, passes: list[bool], is_cut: bool = False, delay: float = 0.0, jitter: float = 0.0) -> None:
        def change() -> None:
            self._is_cut, self._passes, self._delay, self._jitter = is_cut, passes, delay, jitter
            if is_cut:
                self._drop()
            before, self._changed = self._changed, asyncio.Event()
            before.set()

        try:
            here = asyncio.get_running_loop()
        except RuntimeError:
            here = None
        if self._loop is None or self._loop is here:
            change()
        else:
            self._loop.call_soon_threadsafe(change)

    def stand_still(self) -> None:
        """Every connection of now stays, and says nothing for ever; a new one works."""
        for connection in self._connections:
            connection.is_still = True

    def _wants(self, data: bytes) -> bool:
        """False: cut the connection of the sender. For tests that inspect the traffic."""
        return True

    def _drop(self) -> None:
        for connection in list(self._connections):
            connection.abort()

    # What passes.

    async def _on_client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """asyncio holds no task of its own for us: the set does, so that none outlives the wire."""
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        connection = _Connection(reader, writer)
        self._connections.add(connection)
        try:
            if not self._is_cut:
                await self._carry(connection)
        except (OSError, TimeoutError, asyncio.CancelledError):
            pass  # one end is closed, and the other soon will be; or the relay is being closed
        finally:
            connection.abort()
            self._connections.discard(connection)
            self._tasks.discard(task)

    async def _carry(self, connection: _Connection) -> None:
        """Nobody is dialled while nothing passes: a server would wait for its new client, and give it up."""
        await self._until_passes(to_server=True)
        if self._is_cut:
            return
        async with asyncio.timeout(_DIAL_SECONDS):
            up = await asyncio.open_connection(*self._upstream, limit=_CHUNK_BYTES)
        connection.up_writer = up[1]
        if connection.is_aborted:  # cut meanwhile
            return
        ways = (
            self._pass_on(connection, connection.reader, up[1], to_server=True),
            self._pass_on(connection, up[0], connection.writer, to_server=False),
        )
        tasks = [asyncio.ensure_future(each) for each in ways]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            for writer in (up[1], connection.writer):
                writer.close()
                await writer.wait_closed()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _pass_on(
        self, connection: _Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, to_server: bool
    ) -> None:
        """Until one side hangs up; its last bytes and its goodbye come as late as all the rest."""
        kept = _Kept()
        reading = asyncio.ensure_future(self._read(reader, kept))
        try:
            while (item := await kept.next()) is not None:
                due, data = item
                await self._sleep_until(due)
                await self._until_passes(to_server=to_server)
                kept.forget(data)
                if connection.is_still:
                    continue
                if not self._wants(data):
                    return
                writer.write(data)
                await writer.drain()
                self.passed_bytes += len(data)
            await self._until_passes(to_server=to_server)
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def _read(self, reader: asyncio.StreamReader, kept: _Kept) -> None:
        due = 0.0
        try:
            while data := await reader.read(_CHUNK_BYTES):
                now = asyncio.get_running_loop().time()
                due = max(due, now + self._delay + self._dice.random() * self._jitter)  # in order, whatever the jitter
                await kept.put(due, data)
        except OSError:
            pass  # as a hang-up: what came before it is passed on
        finally:
            kept.end()

    async def _sleep_until(self, due: float) -> None:
        """Healed meanwhile: at once."""
        loop = asyncio.get_running_loop()
        while self._delay + self._jitter > 0 and (left := due - loop.time()) > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._changed.wait()

    async def _until_passes(self, *, to_server: bool) -> None:
        while not self._passes[to_server]:
            await self._changed.wait()


class _Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.up_writer: asyncio.StreamWriter | None = None
        self.is_aborted = self.is_still = False

    def abort(self) -> None:
        self.is_aborted = True
        for writer in (self.writer, self.up_writer):
            if writer is not None:
                writer.transport.abort()


class _Kept:
    """Bytes of one direction that are on their way, with the moment each is due. Bounded."""

    def __init__(self) -> None:
        self._items: deque[tuple[float, bytes]] = deque()
        self._bytes = 0
        self._is_over = False
        self._moved = asyncio.Event()

    async def put(self, due: float, data: bytes) -> None:
        while self._bytes > _KEPT_BYTES_MAX - _CHUNK_BYTES:
            await self._wait()
        self._items.append((due, data))
        self._bytes += len(data)
        self._moved.set()

    async def next(self) -> tuple[float, bytes] | None:
        """None: all was passed on, and no more will come."""
        while not self._items:
            if self._is_over:
                return None
            await self._wait()
        return self._items.popleft()

    def forget(self, data: bytes) -> None:
        self._bytes -= len(data)
        self._moved.set()

    def end(self) -> None:
        self._is_over = True
        self._moved.set()

    async def _wait(self) -> None:
        self._moved.clear()
        await self._moved.wait()


class _ListeningWire(RelayWire):
    #: All that went through, either way.
    seen = b""
    #: A connection that sends this is cut; how often that was.
    unwanted: bytes | None = None
    cuts = 0

    def _wants(self, data: bytes) -> bool:
        if self.unwanted is not None and self.unwanted in data:
            self.cuts += 1
            return False
        self.seen += data
        return True


class Relay:
    """A wire for whoever has no loop: it has a thread of its own, and what it is told has happened when a call returns.
    It listens in."""

    def __init__(self, host: str, port: int) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="relay", daemon=True)
        self._thread.start()
        self._wire = _ListeningWire("relay", port, self._loop, host)
        self._do(self._wire._start())

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _tell(self, order: Callable[[], None]) -> None:
        async def there() -> None:
            order()

        self._do(there())

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._wire.port}"

    @property
    def connections(self) -> int:
        return self._wire.connections

    @property
    def seen(self) -> bytes:
        return self._wire.seen

    @property
    def cuts(self) -> int:
        return self._wire.cuts

    @property
    def unwanted(self) -> bytes | None:
        return self._wire.unwanted

    @unwanted.setter
    def unwanted(self, words: bytes | None) -> None:
        self._wire.unwanted = words

    def close_the_way(self) -> None:
        """Break all connections, and refuse new ones."""
        self._tell(self._wire.cut)

    def open_the_way(self) -> None:
        self._tell(self._wire.heal)

    def stand_still(self) -> None:
        """Every connection of now stays, and says nothing; a new one works."""
        self._tell(self._wire.stand_still)

    def end(self) -> None:
        self._do(self._wire._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@contextlib.contextmanager
def relayed(url: str) -> Iterator[Relay]:
    host, _, port = url.removeprefix("http://").partition(":")
    relay = Relay(host, int(port))
    try:
        yield relay
    finally:
        relay.end()


@contextlib.asynccontextmanager
async def loop_of_wires() -> AsyncIterator[asyncio.AbstractEventLoop]:
    """A loop in a thread of its own, for wires that must not wait for a busy test."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="wires", daemon=True)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        await asyncio.to_thread(thread.join)
        loop.close()
