"""The client of the JetStream in memory: what it refuses, and connections that break."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from pyoco_server.errors import NotStored, SettingError, Unavailable
from pyoco_server.ports.nats.access import Access
from pyoco_server.ports.nats.client import Raw
from pyoco_server.ports.nats.link import Link, open_link
from pyoco_server.ports.nats.memory.server import MemoryNats, drop_server, server_at
from support.waiting import eventually

URL = "memory://client-tests"


@pytest.fixture
async def server() -> AsyncIterator[MemoryNats]:
    yield server_at(URL)
    drop_server(URL)


@pytest.fixture
async def link(server: MemoryNats) -> AsyncIterator[Link]:
    link = await open_link(URL, "tests")
    yield link
    await link.close()


@pytest.mark.parametrize(
    "more", [{"user": "anna", "password_file": "/p"}, {"creds": "/c"}, {"tls_ca": "/ca"}, {"tls_cert": "/c"}]
)
async def test_users_and_tls_are_refused(more: dict[str, str]) -> None:
    with pytest.raises(SettingError, match=r"no users and no TLS; unset PYOCO_NATS_"):
        await open_link(Access(url=URL, **more), "tests")


async def test_several_addresses_are_refused() -> None:
    with pytest.raises(SettingError, match="stands alone"):
        await open_link(f"{URL},nats://127.0.0.1:4222", "tests")


async def test_what_is_stored_outlives_a_connection(server: MemoryNats, link: Link) -> None:
    await link.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"]}, dict[str, Any])
    assert await link.store("s.a", b"1") == 1
    server.cut(server.clients[0])
    await eventually(lambda: link.is_up)
    assert await link.store("s.a", b"2") == 2
    await link.close()
    other = await open_link(URL, "other")
    assert (await other.api("STREAM.INFO.S", {}, dict[str, Any]))["state"]["messages"] == 2
    await other.close()


async def test_nobody_listens_on_an_unknown_subject(link: Link) -> None:
    with pytest.raises(NotStored):
        await link.store("nobody.here", b"")


async def test_a_question_fails_when_the_connection_breaks(server: MemoryNats, link: Link) -> None:
    await link.nc.listen("held", lambda _: None)
    held = asyncio.create_task(link.ask("held", b""))
    await link.nc.flush()
    server.cut(server.clients[0])
    with pytest.raises(Unavailable, match="connection to NATS was lost"):
        await held


async def test_a_stopped_server_takes_no_connection(server: MemoryNats) -> None:
    server.stop()
    with pytest.raises(NotStored, match="no NATS server answers"):
        await open_link(URL, "tests", connect_seconds=1.0)
    server.start()
    link = await open_link(URL, "tests")
    await link.close()


async def test_a_subscription_survives_a_reconnect_until_it_is_forgotten(server: MemoryNats, link: Link) -> None:
    heard: list[Raw] = []
    subscription = await link.nc.listen("news.*", heard.append)
    server.cut(server.clients[0])
    await eventually(lambda: link.is_up)
    await link.tell("news.one", b"1")
    await eventually(lambda: len(heard) == 1)
    await (await link.nc.leave(subscription))
    link.nc.forget(subscription)
    await link.tell("news.two", b"2")
    await link.nc.flush()
    assert [each.data for each in heard] == [b"1"]
