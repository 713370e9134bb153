"""HTTP requests with httpcore2 that connect only to addresses that were checked."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator
from typing import Any, Final

import httpcore2

from pyoco_server.core.web.addresses import refusal
from pyoco_server.core.web.body import ACCEPTED_ENCODINGS
from pyoco_server.core.web.targets import Target
from pyoco_server.ports.web.port import (
    AddressRefused,
    Broken,
    NameUnknown,
    NotConnected,
    Pinned,
    TlsFailed,
    WebResponse,
)
from pyoco_server.ports.web.trust import trust

__all__ = ["LookUp", "PinnedWeb", "look_up"]

#: Returns the addresses of a name. Raises OSError.
LookUp = Callable[[str], list[str]]

#: Limit of one response, including headers and framing. Headers have their own limit (100 KiB), but there may be any
#: number of 1xx responses.
_WIRE_BYTES_MAX: Final = 32 * 1_048_576
#: Limit per read: one TLS record. Parsing 64 KiB of tiny chunks would block the event loop for a third of a second.
_READ_BYTES_MAX: Final = 16_384
#: Concurrent lookups in this process, including abandoned ones: a resolver may hang for minutes.
_LOOKUPS_MAX: Final = 64
_lookups = threading.BoundedSemaphore(_LOOKUPS_MAX)
_FREE_LOOKUP_SECONDS: Final = 0.02
#: The usual 8 MiB would count where memory is limited.
_LOOKUP_STACK_BYTES: Final = 512 * 1_024
_starting = threading.Lock()
_HEADERS: Final = (
    (b"User-Agent", b"pyoco-server"),
    (b"Accept", b"text/html, application/xhtml+xml, text/*;q=0.9, */*;q=0.5"),
    (b"Accept-Encoding", ACCEPTED_ENCODINGS.encode()),
    (b"Connection", b"close"),
)


def look_up(host: str) -> list[str]:
    """Blocks for as long as the resolver does."""
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return [str(info[4][0]) for info in found]


class PinnedWeb:
    """Opens a connection per request. None is reused, so none serves a name that it was not checked for."""

    def __init__(
        self, ca_file: str = "", *, look_up: LookUp = look_up, network: httpcore2.AsyncNetworkBackend | None = None
    ) -> None:
        """`ca_file` contains certificates to trust in addition to the system's.

        Raises SettingError if they cannot be read.
        """
        self._ssl = httpcore2.default_ssl_context()
        if ca_file:
            trust(self._ssl, ca_file)
        self._look_up = look_up
        self._network = network or httpcore2.AnyIOBackend()

    async def pin(self, target: Target) -> Pinned:
        addresses = (target.host,) if target.is_literal else await self._resolved(target.host)
        if not target.is_exempt:
            for address in addresses:
                if (why := refusal(address)) is not None:
                    raise AddressRefused(address, why)
        return Pinned(target, addresses)

    async def _resolved(self, host: str) -> tuple[str, ...]:
        try:
            found = await _in_thread(self._look_up, host)
        except (OSError, UnicodeError) as error:
            raise NameUnknown("the name cannot be looked up") from error
        if not found:
            raise NameUnknown("the name has no address")
        return tuple(dict.fromkeys(found))

    @contextlib.asynccontextmanager
    async def get(self, pinned: Pinned, seconds: float) -> AsyncIterator[WebResponse]:
        target = pinned.target
        origin = httpcore2.Origin(target.scheme.encode(), target.host.encode(), target.port)
        url = httpcore2.URL(scheme=origin.scheme, host=origin.host, port=origin.port, target=target.path.encode())
        headers = [(b"Host", target.authority.encode()), *_HEADERS]
        async with _Dialler(self._network, pinned, seconds) as dialler:
            connection = httpcore2.AsyncHTTPConnection(origin, ssl_context=self._ssl, network_backend=dialler)
            with _errors(NotConnected):
                response = await connection.handle_async_request(httpcore2.Request(b"GET", url, headers=headers))
            body = _body(response)
            try:
                yield WebResponse(response.status, _first(response.headers), body)
            finally:
                with contextlib.suppress(Broken), _errors(Broken):
                    await body.aclose()
                    await response.aclose()


def _first(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in headers:
        found.setdefault(name.decode("latin-1").lower(), _text(value))
    return found


def _text(value: bytes) -> str:
    """Decode a header value. Servers send UTF-8 where only ASCII is allowed."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


async def _body(response: httpcore2.Response) -> AsyncGenerator[bytes, None]:
    with _errors(Broken):
        async with contextlib.aclosing(response.aiter_stream()) as chunks:
            async for chunk in chunks:
                yield chunk


class _TlsError(httpcore2.ConnectError):
    """The TLS handshake failed; the TCP connection was established."""


@contextlib.contextmanager
def _errors(otherwise: type[NotConnected | Broken]) -> Iterator[None]:
    """The only place that translates errors of httpcore2 into ours."""
    try:
        yield
    except _TlsError as error:
        raise TlsFailed("no TLS with that name") from error
    except (httpcore2.NetworkError, httpcore2.TimeoutException, httpcore2.ProtocolError, OSError) as error:
        # OSError includes ssl.SSLError, which httpcore2 does not translate while reading a response.
        raise otherwise(type(error).__name__) from error


async def _in_thread(look_up: LookUp, host: str) -> list[str]:
    """Look the name up in a separate thread that can be abandoned, so a hanging resolver blocks neither loop nor
    process.

    While too many lookups hang, waits until one has ended. Raises OSError if no thread can be started.
    """
    lookups, loop = _lookups, asyncio.get_running_loop()
    answer: asyncio.Future[list[str]] = loop.create_future()

    def set_answer(found: list[str] | None, error: Exception | None) -> None:
        if answer.done():  # the lookup was abandoned
            return
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(found or [])

    def resolve() -> None:
        found: list[str] | None = None
        trouble: Exception | None = None
        try:
            found = look_up(host)
        except Exception as error:  # noqa: BLE001  (raised again in the caller)
            trouble = error
        finally:
            lookups.release()
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(set_answer, found, trouble)

    while not lookups.acquire(blocking=False):  # noqa: ASYNC110 - released by a thread, for any loop
        await asyncio.sleep(_FREE_LOOKUP_SECONDS)
    try:
        _start(threading.Thread(target=resolve, name="look up", daemon=True))
    except RuntimeError as error:
        lookups.release()
        raise OSError("there is no thread to look it up") from error
    return await answer


def _start(thread: threading.Thread) -> None:
    """Start the thread with a small stack. Raises RuntimeError."""
    with _starting:  # the stack size applies to every thread started meanwhile
        before = threading.stack_size(_LOOKUP_STACK_BYTES)
        try:
            thread.start()
        finally:
            threading.stack_size(before)


class _Dialler(httpcore2.AsyncNetworkBackend):
    """Connects only to the addresses that were checked, whatever host is requested. Closes what it opened."""

    def __init__(self, network: httpcore2.AsyncNetworkBackend, pinned: Pinned, seconds: float) -> None:
        self._network, self._pinned, self._seconds = network, pinned, seconds
        self._opened: httpcore2.AsyncNetworkStream | None = None

    async def __aenter__(self) -> _Dialler:
        return self

    async def __aexit__(self, *_: object) -> None:
        # If cancelled during the handshake, httpcore2 does not close it.
        if self._opened is not None:
            with contextlib.suppress(OSError, httpcore2.NetworkError):
                await self._opened.aclose()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        target, addresses = self._pinned.target, self._pinned.addresses
        assert (host, port) == (target.host, target.port)
        clock = asyncio.get_running_loop().time
        deadline = clock() + self._seconds
        for left in range(len(addresses), 0, -1):
            # An address that drops all packets must leave time for the others. The last one has no limit of its own.
            share = max(0.001, deadline - clock()) / left if left > 1 else None
            try:
                self._opened = await self._network.connect_tcp(addresses[-left], port, timeout=share)
                return _Stream(self._opened)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout, OSError):
                if left == 1:
                    raise
        raise httpcore2.ConnectError("there is no address")

    async def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[Any] | None = None
    ) -> httpcore2.AsyncNetworkStream:
        raise httpcore2.ConnectError("nothing of this machine is reached")

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class _Stream(httpcore2.AsyncNetworkStream):
    """A connection that limits the bytes read for one response."""

    def __init__(self, stream: httpcore2.AsyncNetworkStream) -> None:
        self._stream = stream
        self._read_bytes = 0

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        data = await self._stream.read(min(max_bytes, _READ_BYTES_MAX), timeout)
        self._read_bytes += len(data)
        if self._read_bytes > _WIRE_BYTES_MAX:
            raise httpcore2.ReadError("the answer does not end")
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        await self._stream.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.AsyncNetworkStream:
        try:
            return _Stream(await self._stream.start_tls(ssl_context, server_hostname, timeout))
        except (httpcore2.ConnectError, OSError, ValueError) as error:  # ValueError: the name is not valid for TLS
            raise _TlsError(str(error)) from error

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)
