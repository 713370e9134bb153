"""The web by httpcore2: to the address that was checked, with the name that was asked for. It dials loopback alone."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from pyoco_server.core.web.addresses import Refusal
from pyoco_server.core.web.targets import Exempt, Reach, Target, parse
from pyoco_server.errors import SettingError
from pyoco_server.ports.web.pinned import PinnedWeb, look_up
from pyoco_server.ports.web.port import AddressRefused, Broken, NameUnknown, NotConnected, TlsFailed, WebResponse
from pyoco_server.ports.web.trust import check_ca_file
from support.priced.url_sites import NAME, PUBLIC, Authority, Dialled, Site, page, silent, site_of
from support.waiting import eventually

URL = f"https://{NAME}/x?y=1"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def site(authority: Authority) -> Iterator[Site]:
    with site_of(authority, {"/x?y=1": page("<title>Hi</title>")}) as site:
        yield site


def target(url: str = URL, reach: Reach | None = None) -> Target:
    found = parse(url, reach or Reach())
    assert isinstance(found, Target)
    return found


def web_of(site: Site, *addresses: str, network: Dialled | None = None) -> PinnedWeb:
    ca_file = str(site.authority.ca_file)
    return PinnedWeb(ca_file, look_up=lambda _: list(addresses), network=network or Dialled(site.port))


@contextlib.asynccontextmanager
async def asked(web: PinnedWeb, url: str = URL) -> AsyncIterator[WebResponse]:
    async with web.get(await web.pin(target(url)), 10) as answer:
        yield answer


async def read(answer: WebResponse) -> bytes:
    return b"".join([chunk async for chunk in answer.body])


async def test_the_connection_goes_to_the_address_that_was_checked_and_the_name_is_in_tls_and_host(site: Site) -> None:
    """PRICED-137, PRICED-143: one lookup; no cookie, no credentials"""
    network, looks = Dialled(site.port), list[str]()
    # Whoever looked a second time would be told another address: rebinding.
    answers = iter([[PUBLIC], ["127.0.0.1"]])

    def look(name: str) -> list[str]:
        looks.append(name)
        return next(answers)

    web = PinnedWeb(str(site.authority.ca_file), look_up=look, network=network)
    async with asked(web) as answer:
        assert answer.status == 200
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        assert await read(answer) == b"<title>Hi</title>"
    assert looks == [NAME]
    assert network.places == [(PUBLIC, 443)]
    assert site.names == [NAME]
    head = site.heads[0].lower()
    assert head.startswith("get /x?y=1 http/1.1\r\n")
    assert f"\r\nhost: {NAME}\r\n" in head
    assert "cookie" not in head
    assert "authorization" not in head


async def test_a_proxy_of_the_environment_is_not_used(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """PRICED-143"""
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "HTTP_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    network = Dialled(site.port)
    async with asked(web_of(site, PUBLIC, network=network)):
        pass
    assert network.places == [(PUBLIC, 443)]


@pytest.mark.parametrize(
    ("addresses", "refused", "why"),
    [
        (["127.0.0.1"], "127.0.0.1", Refusal.LOOPBACK),
        ([PUBLIC, "10.0.0.1"], "10.0.0.1", Refusal.PRIVATE_IP),
        (["10.0.0.1", PUBLIC], "10.0.0.1", Refusal.PRIVATE_IP),
        ([PUBLIC, "2606:4700::1111", "::1"], "::1", Refusal.LOOPBACK),
        ([PUBLIC, "::ffff:169.254.169.254"], "::ffff:169.254.169.254", Refusal.LINK_LOCAL),
        (["fe80::1%eth0"], "fe80::1%eth0", Refusal.LINK_LOCAL),
        (["64:ff9b::a00:1"], "64:ff9b::a00:1", Refusal.PRIVATE_IP),
        ([*[PUBLIC] * 50, "0.0.0.0"], "0.0.0.0", Refusal.UNSPECIFIED),
        (["what is this"], "what is this", Refusal.RESERVED),
    ],
)
async def test_one_address_that_is_refused_refuses_the_name(addresses: list[str], refused: str, why: Refusal) -> None:
    """PRICED-136: nothing is connected"""
    network = Dialled()
    web = PinnedWeb(look_up=lambda _: addresses, network=network)
    with pytest.raises(AddressRefused) as caught:
        await web.pin(target())
    assert (caught.value.address, caught.value.why) == (refused, why)
    assert network.places == []


async def test_a_literal_is_not_looked_up_and_an_exempt_one_not_checked() -> None:
    web = PinnedWeb(look_up=lambda _: pytest.fail("looked up"), network=Dialled())
    with pytest.raises(AddressRefused):
        await web.pin(target("https://2130706433/"))
    assert (await web.pin(target("https://134744072/"))).addresses == ("8.8.8.8",)
    exempt = Reach(exempt=Exempt("127.0.0.1", 8443))
    assert (await web.pin(target("https://127.0.0.1:8443/", exempt))).addresses == ("127.0.0.1",)


@pytest.mark.parametrize("answer", [socket.gaierror(-2, "no"), UnicodeError("no"), TimeoutError("no"), []])
async def test_a_name_without_an_address_is_unknown(answer: Exception | list[str]) -> None:
    def look(_: str) -> list[str]:
        if isinstance(answer, Exception):
            raise answer
        return answer

    with pytest.raises(NameUnknown):
        await PinnedWeb(look_up=look, network=Dialled()).pin(target())


def test_a_resolver_that_hangs_holds_nobody() -> None:
    """PRICED-141: neither the end of the loop nor that of the process"""
    hangs, threads = threading.Event(), list[threading.Thread]()

    def look(_: str) -> list[str]:
        threads.append(threading.current_thread())
        hangs.wait(600)
        return [PUBLIC]

    async def give_up() -> None:
        web = PinnedWeb(look_up=look, network=Dialled())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await web.pin(target())

    began = time.monotonic()
    asyncio.run(give_up())
    assert time.monotonic() - began < 60
    asyncio.run(eventually(lambda: len(threads) == 1))
    hangs.set()
    [thread] = threads
    assert thread.daemon
    thread.join(60)  # it finds the loop closed, and says nothing


def test_lookups_that_hang_are_counted_in_the_whole_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """PRICED-141: those of runs that are over, too; and a place is free again when one ends"""
    monkeypatch.setattr("pyoco_server.ports.web.pinned._lookups", threading.BoundedSemaphore(2))
    hangs, threads = threading.Event(), list[threading.Thread]()

    def look(_: str) -> list[str]:
        threads.append(threading.current_thread())
        hangs.wait(600)
        return [PUBLIC]

    async def give_up() -> None:
        web = PinnedWeb(look_up=look, network=Dialled())
        for _ in range(3):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await web.pin(target())

    async def wait() -> None:
        pin = asyncio.create_task(PinnedWeb(look_up=look, network=Dialled()).pin(target()))
        done, _ = await asyncio.wait({pin}, timeout=0.05)
        assert not done
        hangs.set()
        assert (await asyncio.wait_for(pin, 60)).addresses == (PUBLIC,)

    for _ in range(2):
        asyncio.run(give_up())
    asyncio.run(eventually(lambda: len(threads) == 2))
    asyncio.run(wait())
    assert len(threads) == 3
    for thread in threads:
        thread.join(60)


async def test_without_a_thread_a_name_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is tried again by the next: nothing is left taken"""
    monkeypatch.setattr("pyoco_server.ports.web.pinned._lookups", threading.BoundedSemaphore(1))
    web = PinnedWeb(look_up=lambda _: [PUBLIC], network=Dialled())

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        for _ in range(2):
            with pytest.raises(NameUnknown):
                await web.pin(target())
    assert (await asyncio.wait_for(web.pin(target()), 60)).addresses == (PUBLIC,)


async def test_a_lookup_has_a_small_stack_and_other_threads_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, start = list[int](), threading.Thread.start

    def noted(thread: threading.Thread) -> None:
        sizes.append(threading.stack_size())
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", noted)
    before = threading.stack_size()
    await PinnedWeb(look_up=lambda _: [PUBLIC], network=Dialled()).pin(target())
    assert sizes == [512 * 1_024]
    assert threading.stack_size() == before


def test_the_systems_resolver_answers_with_plain_addresses() -> None:
    assert "127.0.0.1" in look_up("127.0.0.1")


async def test_an_address_where_nobody_is_leaves_the_next_one(site: Site) -> None:
    network = Dialled(site.port, dead=frozenset({"2606:4700::1111"}))
    async with asked(web_of(site, "2606:4700::1111", PUBLIC, PUBLIC, network=network)) as answer:
        assert answer.status == 200
    assert network.places == [("2606:4700::1111", 443), (PUBLIC, 443)]


async def test_nobody_at_any_address_is_not_connected(site: Site) -> None:
    with pytest.raises(NotConnected):
        async with asked(web_of(site, PUBLIC, "1.1.1.1", network=Dialled())):
            pass


async def test_a_certificate_of_another_name_is_refused(authority: Authority) -> None:
    """PRICED-143: nothing is sent to it"""
    with site_of(authority, {}, names=("other.example.com", "127.0.0.1")) as site:
        with pytest.raises(TlsFailed):
            async with asked(web_of(site, PUBLIC)):
                pass
        assert site.heads == []


async def test_a_certificate_of_an_unknown_authority_is_refused(site: Site) -> None:
    """PRICED-143"""
    with pytest.raises(TlsFailed):
        async with asked(PinnedWeb(look_up=lambda _: [PUBLIC], network=Dialled(site.port))):
            pass
    assert site.heads == []


async def test_a_server_that_speaks_no_tls_has_failed_tls(authority: Authority) -> None:
    with site_of(authority, {}, tls=False) as site:
        site.answer = lambda connection: connection.sendall(b"220 smtp.example.com\r\n" * 50)  # type: ignore[method-assign]
        with pytest.raises(TlsFailed):
            async with asked(web_of(site, PUBLIC)):
                pass


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"HTTP/1.1",
        b"220 smtp.example.com ESMTP\r\n",
        b"\x00" * 5_000,
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 50_000 + b"\r\n",
        b"HTTP/1.1 200 OK\r\nX\x00: y\r\n\r\n",
        b"HTTP/1.1 999999 OK\r\n\r\n",
    ],
    ids=["nothing", "half", "smtp", "zeros", "below zero", "two lengths", "long header", "headers", "nul", "status"],
)
async def test_what_is_no_http_is_not_connected(site: Site, sent: bytes) -> None:
    site.paths["/x?y=1"] = lambda connection: connection.sendall(sent)
    with pytest.raises(NotConnected):
        async with asked(web_of(site, PUBLIC)):
            pass


async def test_early_answers_without_end_are_cut_off(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """By bytes, before it is by time"""
    monkeypatch.setattr("pyoco_server.ports.web.pinned._WIRE_BYTES_MAX", 1_000_000)

    def flood(connection: socket.socket) -> None:
        while True:
            connection.sendall(b"HTTP/1.1 103 Early Hints\r\n\r\n" * 1_000)

    site.paths["/x?y=1"] = flood
    with pytest.raises(NotConnected):
        async with asked(web_of(site, PUBLIC)):
            pass


@pytest.mark.parametrize(
    "sent",
    [
        b"Content-Length: 100\r\n\r\nhalf",
        b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nzz\r\n",
    ],
)
async def test_a_body_that_breaks_off_is_broken(site: Site, sent: bytes) -> None:
    site.paths["/x?y=1"] = lambda connection: connection.sendall(b"HTTP/1.1 200 OK\r\n" + sent)
    async with asked(web_of(site, PUBLIC)) as answer:
        with pytest.raises(Broken):
            await read(answer)


async def test_a_cancelled_request_leaves_no_socket_open(site: Site) -> None:
    """At the handshake, and while it waits: an open one would be a ResourceWarning"""
    deaf = socket.create_server(("127.0.0.1", 0))
    with deaf, pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2), asked(web_of(site, PUBLIC, network=Dialled(deaf.getsockname()[1]))):
            pass
    late = threading.Event()
    site.paths["/x?y=1"] = silent(late)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5), asked(web_of(site, PUBLIC)):
            pass
    late.set()


@pytest.mark.parametrize("content", [None, b"", b"no certificate", b"\xff" * 100])
def test_a_file_without_certificates_is_said_at_once(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "ca.pem"
    if content is not None:
        file.write_bytes(content)
    for make in (PinnedWeb, check_ca_file):
        with pytest.raises(SettingError, match=r"PYOCO_URL_PACK_CA_FILE: no .*; example: PYOCO_URL_PACK_CA_FILE="):
            make(str(file))
