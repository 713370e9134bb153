"""One connection: reads and writes complete frames, and enforces the timers (sections 3 and 8.1).

    wire = Wire(reader, writer, Timers.of(config))
    try:
        while True:
            frame = await wire.receive()
    except WireClosed as closed:
        ...
    finally:
        await wire.close("draining")

The owner of a wire must close it, whatever `receive` and `send` have raised; the first reason is kept. TLS is left to
the streams.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol, Self
from uuid import UUID, uuid4

from pyoco_server.core.frames.codec import NIL, Decoder, Frame, FrameError, Type, encode
from pyoco_server.core.programs.faults import Code

__all__ = ["CLOSE_REASONS", "PIECE_BYTES", "Timers", "Wire", "WireClosed", "fresh"]

#: GRID-17: the most bytes per read and per write.
PIECE_BYTES: Final = 64 * 1024
#: The limits of the write queue.
QUEUE_FRAMES_MAX: Final = 64
QUEUE_BYTES_MAX: Final = 16 * 1024 * 1024
#: How long `close` waits for the last frames to reach the peer.
_LINGER_SECONDS = 2.0
#: How long `close` waits for further bytes of the peer.
_SILENCE_SECONDS = 0.25

#: Section 26.3.
CLOSE_REASONS: Final = frozenset(
    {
        "peer_closed",
        "eof_in_frame",
        "hello_timeout",
        "frame_timeout",
        "idle_timeout",
        "write_timeout",
        "bad_frame",
        "frame_too_large",
        "bad_state",
        "bad_hello",
        "auth_failed",
        "too_many_errors",
        "too_many_connections",
        "worker_replaced",
        "key_revoked",
        "draining",
        "tls_error",
        "internal_error",
    }
)


class WireClosed(Exception):
    """The connection has ended, or can no longer be read."""

    def __init__(self, reason: str, fault: FrameError | None = None) -> None:
        super().__init__(reason)
        #: One of CLOSE_REASONS.
        self.reason = reason
        #: Why the bytes were not a valid frame. The peer can still be sent an Error: `close(reason, last=…)`.
        self.fault = fault


class _Settings(Protocol):
    """The required part of a GridConfig. The client library uses this package and must not depend on settings."""

    @property
    def exec_hello_sec(self) -> float: ...
    @property
    def exec_frame_sec(self) -> float: ...
    @property
    def exec_idle_sec(self) -> float: ...
    @property
    def exec_write_sec(self) -> float: ...
    @property
    def exec_heartbeat_sec(self) -> float: ...


@dataclass(frozen=True)
class Timers:
    """GRID-33, in seconds."""

    #: From the connection to the start of the first frame.
    hello: float = 10.0
    #: From the first byte of a frame to its last.
    frame: float = 30.0
    #: Between two complete frames.
    idle: float = 60.0
    #: For one write to be taken by the socket.
    write: float = 30.0
    #: Without a frame sent, until a Heartbeat is sent.
    heartbeat: float = 15.0

    @classmethod
    def of(cls, config: _Settings) -> Self:
        return cls(
            hello=config.exec_hello_sec,
            frame=config.exec_frame_sec,
            idle=config.exec_idle_sec,
            write=config.exec_write_sec,
            heartbeat=config.exec_heartbeat_sec,
        )


def fresh(kind: Type, payload: bytes = b"", *, corr_id: UUID = NIL, subject: str = "") -> Frame:
    """Return a frame with a new msgId."""
    return Frame(kind, payload, uuid4(), corr_id, subject)


class Wire:
    """One task at a time may receive; any number may send: frames never interleave (GRID-20).

    Memory: one incomplete frame, one read of small frames, and the write queue. The socket is read only while `receive`
    waits: otherwise TCP flow control slows the peer down, and that time does not count against its timers. A wire never
    answers by itself: it sends no Error and no NotLeader.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        timers: Timers,
        heartbeat: Callable[[], bytes] = bytes,
    ) -> None:
        """`heartbeat` returns the payload of a Heartbeat. Must be called in a running event loop."""
        self.peer = _peer_of(writer)
        self.frames_read = self.bytes_read = 0
        self.frames_written = self.bytes_written = 0
        self._reader, self._writer, self._timers, self._heartbeat = reader, writer, timers, heartbeat
        self._loop = asyncio.get_running_loop()
        self._decoder = Decoder()
        self._ready: deque[Frame | FrameError] = deque()
        #: Times of the loop's clock: of the last complete frame and of the last return of `_fill`; and below, when the
        #: incomplete frame began.
        self._quiet_since = self._left_at = self._loop.time()
        self._frame_since: float | None = None
        self._patience: asyncio.Timeout | None = None
        #: A stream allows one reader at a time.
        self._reading = asyncio.Lock()
        self._outgoing: deque[tuple[Frame, bytes]] = deque()
        self._outgoing_bytes = 0
        #: Written one by one, when nothing else waits.
        self._background: deque[tuple[Frame, bytes]] = deque()
        self._reason: str | None = None
        self._fault: FrameError | None = None
        #: Set if there is something to write, and if there is room in the queue; both are set when the wire ends.
        self._work, self._room = asyncio.Event(), asyncio.Event()
        self._is_finishing = False
        self._closed_event = asyncio.Event()
        writer.transport.set_write_buffer_limits(high=PIECE_BYTES)
        self._task = self._loop.create_task(self._write(), name=f"wire to {self.peer}")

    @property
    def reason(self) -> str | None:
        """Why the wire has ended; None while it is open."""
        return self._reason

    @property
    def unwritten(self) -> tuple[Frame, ...]:
        """The frames of which no byte was passed to the transport."""
        return tuple(frame for frame, _ in self._outgoing)

    # Reading.

    async def receive(self) -> Frame:
        """Return the next frame. Safe to cancel: no data is lost.

        Raises WireClosed; FrameError for a complete but invalid frame (BAD_SUBJECT): the caller may continue.
        """
        if not self._ready:
            await self._fill()
        item = self._ready.popleft()
        if isinstance(item, Frame):
            return item
        if not item.is_fatal:
            raise item
        self._fault = item
        self._end("frame_too_large" if item.code is Code.FRAME_TOO_LARGE else "bad_frame")
        raise self._closed()

    async def _fill(self) -> None:
        """Read until there is at least one item. Raises WireClosed."""
        pause = self._loop.time() - self._left_at
        self._quiet_since += pause
        if self._frame_since is not None:
            self._frame_since += pause
        try:
            while not self._ready:
                data = await self._read_piece()
                self._take(data)
        finally:
            self._left_at = self._loop.time()

    async def _read_piece(self) -> bytes:
        if self._reason is not None:
            raise self._closed()
        deadline, reason = self._deadline()
        data = b""
        try:
            data = await self._read_until(deadline)
        except TimeoutError:
            self._end(reason)  # keeps the earlier reason if `_end` has interrupted the read
        except ssl.SSLError:
            self._end("tls_error")
        except OSError:
            pass
        if not data:
            self._end("eof_in_frame" if self._decoder.held else "peer_closed")
            raise self._closed()
        return data

    async def _read_until(self, deadline: float) -> bytes:
        """Read once. `_end` interrupts it. Raises TimeoutError, OSError."""
        try:
            async with self._reading, asyncio.timeout_at(deadline) as self._patience:
                return await self._reader.read(PIECE_BYTES)
        finally:
            self._patience = None

    def _deadline(self) -> tuple[float, str]:
        if self._frame_since is not None:
            return self._frame_since + self._timers.frame, "frame_timeout"
        if not self.frames_read:
            return self._quiet_since + self._timers.hello, "hello_timeout"
        return self._quiet_since + self._timers.idle, "idle_timeout"

    def _take(self, data: bytes) -> None:
        now = self._loop.time()
        self.bytes_read += len(data)
        had_begun = self._frame_since is not None
        found = self._decoder.feed(data)
        self._ready.extend(found)
        self.frames_read += len(found)
        if found:
            self._quiet_since = now
        if not self._decoder.held:
            self._frame_since = None
        elif found or not had_begun:
            self._frame_since = now

    # Writing.

    async def send(self, frame: Frame) -> None:
        """Wait for room and queue the frame. Raises WireClosed, and FrameError for a frame over the limit."""
        data = encode(frame)
        while self._reason is None and not self._has_room(len(data)):
            self._room.clear()
            await self._room.wait()
        if self._reason is not None:
            raise self._closed()
        self._put(frame, data)

    def send_soon(self, frame: Frame) -> bool:
        """Queue the frame without waiting. False: no room, or the wire has ended. FrameError: over the size limit."""
        data = encode(frame)
        if self._reason is not None or not self._has_room(len(data)):
            return False
        self._put(frame, data)
        return True

    def send_in_background(self, frame: Frame) -> None:
        """Queue a frame that every other frame may overtake until it is being written. Bounded by the caller.

        Raises WireClosed, and FrameError for a frame over the limit.
        """
        data = encode(frame)
        if self._reason is not None:
            raise self._closed()
        self._background.append((frame, data))
        self._work.set()

    def _has_room(self, size: int) -> bool:
        return len(self._outgoing) < QUEUE_FRAMES_MAX and self._outgoing_bytes + size <= QUEUE_BYTES_MAX

    def _put(self, frame: Frame, data: bytes) -> None:
        self._outgoing.append((frame, data))
        self._outgoing_bytes += len(data)
        self._work.set()

    async def _write(self) -> None:
        try:
            while not (self._is_finishing and not self._outgoing):
                if not self._outgoing and self._background:
                    self._put(*self._background.popleft())
                if self._outgoing:
                    await self._write_next()
                elif not await self._worked():
                    self._put(*_with_bytes(fresh(Type.HEARTBEAT, self._heartbeat())))
        except TimeoutError:
            self._end("write_timeout")
            self._writer.transport.abort()
        except ssl.SSLError:
            self._end("tls_error")
        except OSError:
            self._end("peer_closed")

    async def _worked(self) -> bool:
        """Wait for something to write. False: the heartbeat interval has passed without any."""
        self._work.clear()
        try:
            async with asyncio.timeout(self._timers.heartbeat):
                await self._work.wait()
        except TimeoutError:
            return self._reason is not None
        return True

    async def _write_next(self) -> None:
        """Write small frames batched up to PIECE_BYTES, or one large frame in pieces. Raises TimeoutError, OSError."""
        self._check_open()
        pieces = [self._taken()]
        size = len(pieces[0])
        while self._outgoing and size + len(self._outgoing[0][1]) <= PIECE_BYTES:
            pieces.append(self._taken())
            size += len(pieces[-1])
        self._room.set()
        data = memoryview(pieces[0] if len(pieces) == 1 else b"".join(pieces))
        for start in range(0, size, PIECE_BYTES):
            self._check_open()
            self._writer.write(data[start : start + PIECE_BYTES])
            async with asyncio.timeout(self._timers.write):
                await self._writer.drain()
        self.bytes_written += size

    def _check_open(self) -> None:
        """Raise ConnectionResetError if closed. uvloop's transports raise RuntimeError when used after close."""
        if self._writer.is_closing():
            raise ConnectionResetError

    def _taken(self) -> bytes:
        _, data = self._outgoing.popleft()
        self._outgoing_bytes -= len(data)
        self.frames_written += 1
        return data

    # Closing.

    def _end(self, reason: str) -> None:
        if self._reason is None:
            self._reason = reason
        self._work.set()
        self._room.set()
        if self._patience is not None and not self._patience.expired():
            self._patience.reschedule(self._loop.time())

    def _closed(self) -> WireClosed:
        assert self._reason is not None
        return WireClosed(self._reason, self._fault)

    async def close(self, reason: str, last: Frame | None = None) -> None:
        """Write the queued frames, then `last`, then close; takes about 2 s at most. May be called more than once.

        A blocked `receive` or `send` raises WireClosed. Bytes that the peer still sends are read and dropped: closing a
        connection with unread bytes resets it, and the last frame would be lost.
        """
        if self._is_finishing:
            await self._closed_event.wait()
            return
        self._is_finishing = True
        if last is not None:
            self._put(*_with_bytes(last))
        self._end(reason)
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(_LINGER_SECONDS, self._timers.write)):
                    await asyncio.wait({self._task})
                    await self._say_goodbye()
        finally:
            self._task.cancel()
            self._writer.close()
            self._writer.transport.abort()
            self._closed_event.set()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    async def _say_goodbye(self) -> None:
        async with self._reading:  # wait for an interrupted `receive` to return
            await self._drain_peer()

    async def _drain_peer(self) -> None:
        with contextlib.suppress(OSError):
            self._check_open()
            if self._writer.can_write_eof():
                self._writer.write_eof()
            else:
                self._writer.close()
                await self._writer.wait_closed()
            data = b"something"
            while data:
                async with asyncio.timeout(_SILENCE_SECONDS):
                    data = await self._reader.read(PIECE_BYTES)


def _with_bytes(frame: Frame) -> tuple[Frame, bytes]:
    return frame, encode(frame)


def _peer_of(writer: asyncio.StreamWriter) -> str:
    name = writer.get_extra_info("peername")
    if not isinstance(name, tuple):
        return "unknown"
    host = f"[{name[0]}]" if ":" in name[0] else name[0]
    return f"{host}:{name[1]}"
