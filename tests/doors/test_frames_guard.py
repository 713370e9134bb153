"""Which connections a door accepts: TLS, certificates, API keys, ACL records (section 22; the cells of P24)."""

from __future__ import annotations

import contextlib
import logging
import secrets
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from pyoco_server.actions.programs.set_cap import set_cap
from pyoco_server.core.api_key import KeyRecord, make_key
from pyoco_server.core.frames.codec import Type
from pyoco_server.core.frames.messages import HelloClient, HelloWorker
from pyoco_server.core.programs.names import client_key
from pyoco_server.doors.frames.settings import check_exposure, is_loopback
from pyoco_server.doors.frames.tls import ServerTls, TlsFiles
from pyoco_server.errors import ExposureRefused, UsageError
from pyoco_server.ports.acl.port import AclRecord
from support.backends import fields_of
from support.grid.peers import ClientPeer, OpenDoor, Peer, WorkerPeer, grid_config, new_client_id, open_door
from support.priced.url_sites import Authority
from support.servers import config_for, unique
from support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

PEPPER = "of these tests"


# Keys and ACL ---------------------------------------------------------------------------------------------------------


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def door(module_nats_url: str) -> AsyncIterator[OpenDoor]:
    config = config_for(module_nats_url, auth_pepper=PEPPER)
    async with open_door(module_nats_url, grid_config(exec_auth="api_key"), config) as opened:
        yield opened


class Keyed:
    """A client id and a worker id, with a key for both."""

    def __init__(self, key: str, record: KeyRecord, client_id: str, worker_id: str) -> None:
        self.key, self.record, self.client_id, self.worker_id = key, record, client_id, worker_id


async def a_key(door: OpenDoor) -> tuple[str, KeyRecord]:
    plain, record = make_key("tenant-a", PEPPER, door.backend.clock(), secrets.token_hex, secrets.token_urlsafe)
    assert await door.backend.keys.add(record)
    return plain, record


@pytest_asyncio.fixture(loop_scope="module")
async def keyed(door: OpenDoor) -> Keyed:
    plain, record = await a_key(door)
    found = Keyed(plain, record, new_client_id(), unique("w"))
    acl = door.door.context.programs.acl
    await acl.put("client", found.client_id, AclRecord(api_key_ids=(record.key_id,), execs=("calc*",), max_cap=3))
    await acl.put("worker", found.worker_id, AclRecord(api_key_ids=(record.key_id,), execs=("calc*",)))
    await eventually(lambda: acl.find("worker", found.worker_id) is not None)
    return found


async def refused(door: OpenDoor, kind: Type, payload: bytes, code: str, caplog: pytest.LogCaptureFixture) -> str:
    """Says Hello in vain; the text it got."""
    caplog.set_level(logging.INFO)
    async with await Peer.connect(door) as peer:
        msg_id = await peer.send(kind, payload)
        frame, error = await peer.error(code)
        assert frame.corr_id == msg_id
        assert await peer.ended() == []
    await eventually(lambda: "auth_failed" in _reasons(caplog))
    return error.message


async def test_a_key_opens_and_its_tenant_is_that_of_the_run(door: OpenDoor, keyed: Keyed) -> None:
    """GRID-167"""
    async with await ClientPeer.connect(door) as client:
        await client.hello(keyed.client_id, token=keyed.key)
        ack = await client.accepted(exec_name="calcA")
        run = await door.run(ack.run_id)
        assert (run.tenant_id, run.api_key_id) == ("tenant-a", keyed.record.key_id)


@pytest.mark.parametrize("role", ["client", "worker"])
async def test_no_key_a_wrong_one_and_a_revoked_one_get_the_same_answer(
    door: OpenDoor, keyed: Keyed, role: str, caplog: pytest.LogCaptureFixture
) -> None:
    """GRID-167"""
    revoked, record = await a_key(door)
    await door.backend.keys.revoke(record.key_id, door.backend.clock())
    wrong = keyed.key[:-1] + ("A" if keyed.key[-1] != "A" else "B")
    texts = set()
    for token in (None, "", "nonsense", wrong, revoked):
        hello: HelloClient | HelloWorker
        if role == "client":
            hello = HelloClient(client_id=keyed.client_id, token=token)
        else:
            hello = HelloWorker(worker_id=keyed.worker_id, patterns=("job.assign.*",), token=token)
        kind = Type.HELLO_CLIENT if role == "client" else Type.HELLO_WORKER
        texts.add(await refused(door, kind, hello.to_payload(), "UNAUTHENTICATED", caplog))
    assert len(texts) == 1
    assert all(secret not in caplog.text for secret in (keyed.key, wrong, revoked))


async def test_an_id_without_a_record_or_with_anothers_key_is_forbidden(
    door: OpenDoor, keyed: Keyed, caplog: pytest.LogCaptureFixture
) -> None:
    """GRID-168"""
    other, _ = await a_key(door)
    for client_id, token in (("nobody-knows", keyed.key), (keyed.client_id, other)):
        hello = HelloClient(client_id=client_id, token=token)
        await refused(door, Type.HELLO_CLIENT, hello.to_payload(), "FORBIDDEN", caplog)
    for worker_id, token in (("nobody-knows", keyed.key), (keyed.worker_id, other)):
        worker = HelloWorker(worker_id=worker_id, patterns=("job.assign.*",), token=token)
        await refused(door, Type.HELLO_WORKER, worker.to_payload(), "FORBIDDEN", caplog)


async def test_a_job_of_a_program_that_is_not_allowed_is_forbidden(door: OpenDoor, keyed: Keyed) -> None:
    """GRID-168; a change acts on who is connected."""
    acl = door.door.context.programs.acl
    async with await ClientPeer.connect(door) as client:
        await client.hello(keyed.client_id, token=keyed.key)
        await client.accepted(exec_name="calcA")
        await client.submit(exec_name="render")
        _, error = await client.error("FORBIDDEN")
        assert error.job_id is not None
        record = AclRecord(api_key_ids=(keyed.record.key_id,), execs=("render",))
        await acl.put("client", keyed.client_id, record)
        await eventually(lambda: acl.find("client", keyed.client_id) == record)
        await client.accepted(exec_name="render")
        await client.submit(exec_name="calcA")
        await client.error("FORBIDDEN")


async def test_a_cap_above_the_highest_is_lowered_also_later(door: OpenDoor, keyed: Keyed) -> None:
    """GRID-168"""
    context = door.door.context
    async with await ClientPeer.connect(door) as client:
        assert (await client.hello(keyed.client_id, cap=10, token=keyed.key)).cap == 3
        assert (await client.hello(keyed.client_id, cap=2, token=keyed.key)).cap == 2
        await client.hello(keyed.client_id, cap=10, token=keyed.key)
        record = AclRecord(api_key_ids=(keyed.record.key_id,), execs=("*",), max_cap=1)
        await context.programs.acl.put("client", keyed.client_id, record)

        def cap() -> int | None:
            known = context.programs.slots.cap(context.group, client_key(keyed.client_id, "tenant-a"))
            return known.cap if known is not None else None

        await eventually(lambda: cap() == 1, 5.0)


async def test_a_lower_highest_cap_does_not_raise_one_that_was_said_since(door: OpenDoor, keyed: Keyed) -> None:
    """GRID-71, GRID-168: what an operator said after the Hello stays."""
    context = door.door.context
    async with await ClientPeer.connect(door) as client:
        assert (await client.hello(keyed.client_id, cap=10, token=keyed.key)).cap == 3
        await set_cap(context.backend, context.group, client_key(keyed.client_id, "tenant-a"), 1, "http")
        record = AclRecord(api_key_ids=(keyed.record.key_id,), execs=("*",), max_cap=2)
        await context.programs.acl.put("client", keyed.client_id, record)
        await eventually(lambda: context.programs.acl.find("client", keyed.client_id) == record)
        sides = [each.peer for each in door.door.sessions if each.peer is not None]
        [peer] = [each for each in sides if each.visitor.id == keyed.client_id]
        await peer.review()
        known = context.programs.slots.cap(context.group, client_key(keyed.client_id, "tenant-a"))
        assert known is not None
        assert known.cap == 1


async def test_a_worker_gets_only_programs_its_record_allows(door: OpenDoor, keyed: Keyed) -> None:
    """GRID-168: whatever its pattern."""
    acl = door.door.context.programs.acl
    everything = AclRecord(api_key_ids=(keyed.record.key_id,), execs=("*",))
    await acl.put("client", keyed.client_id, everything)
    await eventually(lambda: acl.find("client", keyed.client_id) == everything)
    async with await ClientPeer.connect(door) as client, await WorkerPeer.connect(door) as worker:
        await client.hello(keyed.client_id, token=keyed.key)
        await client.accepted(exec_name="render")
        ack = await client.accepted(exec_name="calcX")
        await worker.hello(keyed.worker_id, patterns=["job.assign.render", "job.assign.calcX"], token=keyed.key)
        await worker.credit(5)
        assert (await worker.assigned()).job_id == ack.job_id
        assert await worker.is_silent()
        await acl.put("worker", keyed.worker_id, everything)
        await eventually(lambda: acl.find("worker", keyed.worker_id) == everything)
        await worker.credit(1)
        assert (await worker.assigned()).exec_name == "render"


@pytest.mark.parametrize("how", ["key", "record"])
async def test_a_key_that_no_longer_opens_loses_its_connections(
    door: OpenDoor, keyed: Keyed, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """GRID-167"""
    caplog.set_level(logging.INFO)
    async with await ClientPeer.connect(door) as client, await WorkerPeer.connect(door) as worker:
        await client.hello(keyed.client_id, token=keyed.key)
        await worker.hello(keyed.worker_id, token=keyed.key)
        if how == "key":
            await door.backend.keys.revoke(keyed.record.key_id, door.backend.clock())
        else:
            await door.door.context.programs.acl.delete("client", keyed.client_id)
            await door.door.context.programs.acl.delete("worker", keyed.worker_id)
        assert await client.ended() == []
        assert await worker.ended() == []
    await eventually(lambda: len(_reasons(caplog)) == 2)
    assert _reasons(caplog) == ["key_revoked", "key_revoked"]


# TLS ------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("stranger"))


def trusting(authority: Authority, chain: Path | None = None) -> ssl.SSLContext:
    """As a client has it."""
    context = ssl.create_default_context(cafile=str(authority.ca_file))
    if chain is not None:
        context.load_cert_chain(chain)
    return context


@contextlib.asynccontextmanager
async def tls_door(
    nats_url: str, chain: Path, ca: Path | None = None, **settings: Any
) -> AsyncIterator[tuple[OpenDoor, ServerTls]]:
    tls = ServerTls(TlsFiles(chain, chain, ca))
    async with open_door(nats_url, grid_config(**{"exec_hello_sec": 120.0, **settings}), tls=tls) as door:
        yield door, tls


async def test_the_cells_of_tls(
    nats_url: str, authority: Authority, stranger: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    """GRID-166: plain, TLS, another authority, another name; a new certificate without losing a connection."""
    caplog.set_level(logging.INFO)
    chain = authority.chain("127.0.0.1", "door.example")
    async with tls_door(nats_url, chain) as (door, tls):  # noqa: SIM117 - the door is needed to connect to it
        async with await ClientPeer.connect(door, trusting(authority)) as client:
            await client.hello()
            await client.accepted()
            async with await Peer.connect(door) as plain:
                await plain.send(Type.HELLO_CLIENT, HelloClient(client_id="plain").to_payload())
                assert await plain.ended() == []
            with pytest.raises(ssl.SSLCertVerificationError):
                await ClientPeer.connect(door, trusting(stranger))
            with pytest.raises(ssl.SSLCertVerificationError):
                await ClientPeer.connect(door, trusting(authority), name="other.example")
            await eventually(lambda: _reasons(caplog).count("tls_error") == 3)
            # A new certificate, of another authority: who is connected stays, who comes sees the new one.
            chain.write_bytes(stranger.chain("127.0.0.1").read_bytes())
            assert tls.reload()
            await client.accepted()
            async with await ClientPeer.connect(door, trusting(stranger)) as newer:
                await newer.hello()
            chain.write_bytes(b"this is no certificate")
            assert not tls.reload()
            async with await ClientPeer.connect(door, trusting(stranger)) as still:
                await still.hello()


def _reasons(caplog: pytest.LogCaptureFixture) -> list[Any]:
    return [fields_of(each).get("reason") for each in caplog.records if each.getMessage() == "a connection ended"]


async def test_old_versions_of_tls_are_refused(nats_url: str, authority: Authority) -> None:
    """GRID-166"""
    async with tls_door(nats_url, authority.chain("127.0.0.1")) as (door, _):
        old = trusting(authority)
        with pytest.warns(DeprecationWarning, match="TLSv1_1"):
            old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await ClientPeer.connect(door, old)


async def test_a_stalled_handshake_is_cut_off(
    nats_url: str, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    """GRID-33, GRID-36: it counts as a connection, and ends like one."""
    caplog.set_level(logging.INFO)
    chain = authority.chain("127.0.0.1")
    async with tls_door(nats_url, chain, exec_hello_sec=2.0) as (door, _), await Peer.connect(door) as peer:
        await peer.raw(b"\x16\x03\x01")
        await eventually(lambda: door.server.connections == 1 or _reasons(caplog) != [])
        assert await peer.ended(30.0) == []  # asyncio's own limit for a handshake is 60 s
        await eventually(lambda: door.server.connections == 0)
        await eventually(lambda: _reasons(caplog) == ["tls_error"])


async def test_client_certificates_and_the_names_on_them(
    nats_url: str, authority: Authority, stranger: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    """GRID-166: `--tls-ca` and EXEC_TLS_BIND_CN."""
    caplog.set_level(logging.INFO)
    chain = authority.chain("127.0.0.1")
    async with tls_door(nats_url, chain, authority.ca_file, exec_tls_bind_cn=True) as (door, _):
        anna = trusting(authority, authority.chain("anna"))
        async with await ClientPeer.connect(door, anna) as client, await WorkerPeer.connect(door, anna) as worker:
            await client.hello("anna")
            await worker.hello("anna")
        async with await ClientPeer.connect(door, anna) as client:
            await client.send(Type.HELLO_CLIENT, HelloClient(client_id="bert").to_payload())
            await client.error("FORBIDDEN")
            assert await client.ended() == []
        for context in (trusting(authority), trusting(authority, stranger.chain("anna"))):
            # With TLS 1.3 a client thinks that it is in before the door has looked at its certificate.
            with contextlib.suppress(ssl.SSLError, ConnectionError):
                async with await ClientPeer.connect(door, context) as client:
                    await client.send(Type.HELLO_CLIENT, HelloClient(client_id="anna").to_payload())
                    assert await client.ended() == []
        await eventually(lambda: _reasons(caplog).count("tls_error") == 2)
        assert "auth_failed" in _reasons(caplog)


@pytest.mark.parametrize("files", [("nothing", "nothing"), ("cert", "nothing"), ("cert", "another")])
async def test_certificates_that_cannot_be_used_stop_the_command(
    authority: Authority, tmp_path: Path, files: tuple[str, str]
) -> None:
    """GRID-190"""
    paths = {
        "cert": authority.chain("127.0.0.1"),
        "another": authority.chain("127.0.0.1"),
        "nothing": tmp_path / "nothing",
    }
    with pytest.raises(UsageError, match="example"):
        ServerTls(TlsFiles(paths[files[0]], paths[files[1]]))


# Where a door may listen ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.8.9.1", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("localhost.example", False),
        ("", False),
    ],
)
async def test_only_this_machines_addresses_are_open_to_everybody(host: str, loopback: bool) -> None:
    """GRID-165"""
    assert is_loopback(host) == loopback
    closed = {"has_keys": False, "has_client_certificates": False, "is_insecure": False}
    for reason in closed:
        check_exposure(host, **{**closed, reason: True}, what="the door")
    if loopback:
        check_exposure(host, **closed, what="the door")
    else:
        with pytest.raises(ExposureRefused, match="EXEC_AUTH=api_key"):
            check_exposure(host, **closed, what="the door")
