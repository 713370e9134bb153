"""A web site on loopback, with a certificate of an authority made here, which serves whatever a test puts there."""

from __future__ import annotations

import contextlib
import datetime as dt
import ipaddress
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpcore2
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

__all__ = [
    "NAME",
    "PUBLIC",
    "Authority",
    "Dialled",
    "NowhereElse",
    "Serve",
    "Site",
    "page",
    "redirect",
    "silent",
    "site_of",
]

#: The name in its certificate, besides 127.0.0.1.
NAME = "site.example.com"
#: An allowed address. No test ever connects to it: see `Dialled`.
PUBLIC = "93.184.216.34"

#: Writes an answer. The connection is closed when it returns; errors of its writes are ignored.
Serve = Callable[[ssl.SSLSocket | socket.socket], None]


def page(body: bytes | str, status: str = "200 OK", **headers: str) -> Serve:
    """A whole answer."""
    data = body.encode() if isinstance(body, str) else body
    named = {"Content-Type": "text/html; charset=utf-8", "Content-Length": str(len(data))}
    named |= {name.replace("_", "-"): value for name, value in headers.items()}
    lines = "".join(f"{name}: {value}\r\n" for name, value in named.items() if value)
    return lambda connection: connection.sendall(f"HTTP/1.1 {status}\r\n{lines}\r\n".encode() + data)


def redirect(location: str, status: str = "302 Found") -> Serve:
    return page("gone", status, Location=location)


def silent(over: threading.Event) -> Serve:
    """Says nothing, until that is set."""

    def serve(_: ssl.SSLSocket | socket.socket) -> None:
        over.wait(60)

    return serve


class Authority:
    """Signs certificates. Its own is in `ca_file`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "tests")])
        usage = x509.BasicConstraints(ca=True, path_length=0)
        certificate = self._signed(self._name, self._key, [(usage, True)])
        self.ca_file = folder / "ca.pem"
        self.ca_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def _signed(
        self,
        name: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        extensions: list[tuple[x509.ExtensionType, bool]],
        hours: float = 24,
    ) -> x509.Certificate:
        now = dt.datetime.now(dt.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(days=1))
            .not_valid_after(now + dt.timedelta(hours=hours))
        )
        for extension, is_critical in extensions:
            builder = builder.add_extension(extension, is_critical)
        return builder.sign(self._key, hashes.SHA256())

    def chain(self, *names: str, hours: float = 24) -> Path:
        """A file with a certificate for these names or addresses, the first of them as its common name, and its key. It
        is good for so many hours; below zero, it has expired."""
        key = ec.generate_private_key(ec.SECP256R1())
        alternatives = x509.SubjectAlternativeName([_alternative(name) for name in names])
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, names[0])])
        certificate = self._signed(name, key, [(alternatives, False)], hours)
        chain = self._folder / f"{certificate.serial_number}.pem"
        chain.write_bytes(
            certificate.public_bytes(serialization.Encoding.PEM)
            + key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return chain

    def context(self, *names: str) -> ssl.SSLContext:
        """Of a server with a certificate for these names or addresses."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.chain(*names))
        return context


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


@dataclass
class Site:
    """What it serves, by path; and the heads of the requests that came."""

    authority: Authority
    port: int
    paths: dict[str, Serve] = field(default_factory=dict)
    heads: list[str] = field(default_factory=list)
    #: The server names (SNI) that clients have requested.
    names: list[str | None] = field(default_factory=list)
    connections: int = 0

    @property
    def place(self) -> str:
        return f"127.0.0.1:{self.port}"

    def url(self, path: str = "/") -> str:
        return f"https://{self.place}{path}"

    def answer(self, connection: ssl.SSLSocket | socket.socket) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            data = connection.recv(65_536)
            if not data:
                return
            head += data
        self.heads.append(head.decode("latin-1"))
        path = head.split(b" ")[1].decode()
        self.paths.get(path, page("nothing here", "404 Not Found"))(connection)


@contextlib.contextmanager
def site_of(
    authority: Authority, paths: Mapping[str, Serve], names: tuple[str, ...] = ("127.0.0.1", NAME), *, tls: bool = True
) -> Iterator[Site]:
    """A thread per connection; all of them are over when the block is."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)
    site = Site(authority, listener.getsockname()[1], dict(paths))
    context = authority.context(*names) if tls else None
    if context is not None:
        context.sni_callback = lambda _socket, name, _context: site.names.append(name)
    is_over = threading.Event()
    threads: list[threading.Thread] = []

    def serve(accepted: socket.socket) -> None:
        accepted.settimeout(15)
        connection: ssl.SSLSocket | socket.socket = accepted
        with contextlib.suppress(OSError):  # the client has gone, which is what many tests are about
            if context is not None:
                connection = context.wrap_socket(accepted, server_side=True)
            site.answer(connection)
        connection.close()
        accepted.close()

    def listen() -> None:
        while not is_over.is_set():
            try:
                accepted, _ = listener.accept()
            except OSError:
                return
            site.connections += 1
            threads.append(threading.Thread(target=serve, args=(accepted,), daemon=True))
            threads[-1].start()

    main = threading.Thread(target=listen, daemon=True)
    main.start()
    try:
        yield site
    finally:
        is_over.set()
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        main.join(60)
        for thread in threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in threads)


class Dialled(httpcore2.AsyncNetworkBackend):
    """Connects to nothing but a port of this machine, and tells where it was asked to go. No port: to nothing."""

    def __init__(self, port: int | None = None, dead: frozenset[str] = frozenset()) -> None:
        self._port, self._dead = port, dead
        self._network = httpcore2.AnyIOBackend()
        self.places: list[tuple[str, int]] = []

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Any = None,
    ) -> httpcore2.AsyncNetworkStream:
        self.places.append((host, port))
        if self._port is None or host in self._dead:
            raise httpcore2.ConnectError("nobody is there")
        return await self._network.connect_tcp("127.0.0.1", self._port, timeout=timeout)


class NowhereElse(Dialled):
    """Connects to that port of this machine when it is asked for exactly that, and to nothing otherwise: also when what
    is tested is wrong, nothing leaves the machine."""

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Any = None,
    ) -> httpcore2.AsyncNetworkStream:
        assert (host, port) == ("127.0.0.1", self._port), "somewhere else was dialled"
        return await super().connect_tcp(host, port, timeout)
