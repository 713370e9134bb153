"""Which clients a router accepts, and what it does with invalid frames."""

from __future__ import annotations

import logging

import pytest

from pyoco_server.core.frames.codec import Type
from pyoco_server.core.frames.messages import HelloClient, HelloWorker
from pyoco_server.core.frames.subjects import submit_subject
from pyoco_server.doors.frames.router.peer import RouterPeer
from pyoco_server.doors.frames.router.placed import PlacedJob
from support.backends import fields_of
from support.grid.fake_door import FakeDoor
from support.grid.peers import ClientPeer, Peer
from support.grid.router_acts import connected, done, grant, granted
from support.grid.routers import OpenRouter
from support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_a_worker_is_sent_away(router: OpenRouter) -> None:
    """GRID-134"""
    async with await Peer.connect(router.port) as worker:
        hello = HelloWorker(worker_id="w1", patterns=("job.assign.*",), max_parallel=1)
        msg_id = await worker.send(Type.HELLO_WORKER, hello.to_payload())
        frame, _ = await worker.error("FORBIDDEN")
        assert frame.corr_id == msg_id
        assert await worker.ended() == []


@pytest.mark.parametrize(
    ("kind", "payload", "subject", "code"),
    [
        pytest.param(0x7F, b"", "", "UNKNOWN_TYPE", id="a type that nobody knows"),
        pytest.param(Type.CREDIT, b"\1\0\0\0", "", "BAD_STATE", id="a worker's frame"),
        pytest.param(Type.RESULT, b"{}", "", "BAD_STATE", id="a door's frame"),
        pytest.param(Type.SUBMIT_JOB, b"{}", "job.submit.計算", "BAD_EXEC_NAME", id="V6"),
        pytest.param(Type.SUBMIT_JOB, b"{", "job.submit.calcA", "BAD_JSON", id="no JSON"),
        pytest.param(Type.SUBMIT_JOB, b"{}", "job.submit", "BAD_SUBJECT", id="no program in the subject"),
        pytest.param(Type.CANCEL_JOB, b"{}", "", "BAD_SCHEMA", id="cancel nothing"),
        pytest.param(Type.OBJECT_GET, b"[]", "", "BAD_JSON", id="get nothing"),
    ],
)
async def test_bad_frames_are_answered_as_at_a_door(
    router: OpenRouter, kind: int, payload: bytes, subject: str, code: str
) -> None:
    """GRID-195, GRID-196: and the connection stays."""
    async with connected(router) as client:
        msg_id = await client.send(kind, payload, subject=subject)
        frame, _ = await client.error(code)
        assert frame.corr_id == msg_id
        await done(client)


async def test_jobs_that_cannot_be_are_refused_before_they_are_placed(
    router: OpenRouter, g1: FakeDoor, g2: FakeDoor
) -> None:
    """GRID-96, GRID-196"""
    async with connected(router, "anna") as client:
        for changes, code in (
            ({"client_id": "bert"}, "CLIENT_ID_MISMATCH"),
            ({"files": {"../x": b""}}, "BAD_FILE_NAME"),
            ({"args": ("x" * 20_000,)}, "BAD_SCHEMA"),
        ):
            request, msg_id = await client.submit(**changes)
            frame, error = await client.error(code)
            assert (frame.corr_id, error.job_id) == (msg_id, request.job_id)
            assert await router.route(request.job_id) is None
        request = client.request()
        await client.send(Type.SUBMIT_JOB, request.to_payload(), subject=submit_subject("other"))
        await client.error("BAD_SUBJECT")
    assert not g1.submits + g2.submits


async def test_a_tenth_error_is_the_last(router: OpenRouter) -> None:
    """GRID-35"""
    async with connected(router) as client:
        for _ in range(10):
            await client.send(0x7F)
        assert [frame.type for frame in await client.ended()] == [Type.ERROR] * 10


async def test_a_client_gets_to_the_groups_that_its_record_names(keyed: OpenRouter, g1: FakeDoor, g2: FakeDoor) -> None:
    """GRID-136, GRID-168: not the first group, only the second; programs by pattern; `max_cap`, also later."""
    client_id, key, key_id = await granted(keyed, groups=("g2",), execs=("calc*",), max_cap=6)
    async with await ClientPeer.connect(keyed.port) as client:
        assert (await client.hello(client_id, 100, token=key)).cap == 6
        assert {(await done(client)).worker_id for _ in range(3)} == {"g2"}
        await client.submit(exec_name="render")
        await client.error("FORBIDDEN")
        await grant(keyed, client_id, api_key_ids=(key_id,), execs=("*",), max_cap=2)
        assert {(await done(client, exec_name="render")).worker_id for _ in range(2)} == {"g1", "g2"}
        await eventually(lambda: [each.hellos[-1].desired_parallelism for each in (g1, g2)] == [1, 1])


async def _looked_at(peer: RouterPeer) -> None:
    """The router has tried again to place a job elsewhere."""
    tries, try_move = 0, peer._try_move

    async def counted(placed: PlacedJob) -> None:
        nonlocal tries
        await try_move(placed)
        tries += 1

    peer._try_move = counted  # type: ignore[method-assign]
    await eventually(lambda: tries > 0)
    peer._try_move = try_move  # type: ignore[method-assign]


async def test_a_failover_goes_only_where_the_client_may_go(keyed: OpenRouter, g1: FakeDoor, g2: FakeDoor) -> None:
    """GRID-136, GRID-168"""
    g1.is_holding = True
    client_id, key, key_id = await granted(keyed, groups=("g1",))
    async with await ClientPeer.connect(keyed.port) as client:
        await client.hello(client_id, token=key)
        job_id = (await client.accepted()).job_id
        await g1.stop()
        (peer,) = keyed.sides
        (placed_job,) = peer._placed
        await eventually(lambda: peer._is_away(placed_job.group, placed_job.since))
        await _looked_at(peer)
        assert not g2.submits
        await grant(keyed, client_id, api_key_ids=(key_id,), execs=("*",))
        assert (await client.result()).job_id == job_id
        assert g2.submitted == [job_id]


async def test_without_a_key_or_a_record_nobody_comes_in_and_who_loses_it_goes(
    keyed: OpenRouter, caplog: pytest.LogCaptureFixture
) -> None:
    """GRID-167, GRID-168"""
    caplog.set_level(logging.INFO)
    client_id, key, key_id = await granted(keyed)
    for name, token, code in ((client_id, None, "UNAUTHENTICATED"), ("nobody", key, "FORBIDDEN")):
        async with await Peer.connect(keyed.port) as peer:
            await peer.send(Type.HELLO_CLIENT, HelloClient(client_id=name, token=token).to_payload())
            await peer.error(code)
            assert await peer.ended() == []
    async with await ClientPeer.connect(keyed.port) as client:
        await client.hello(client_id, token=key)
        await keyed.backend.keys.revoke(key_id, keyed.backend.clock())
        assert await client.ended() == []

    def ends() -> list[str]:
        told = [fields_of(each) for each in caplog.records if each.getMessage() == "a connection ended"]
        return [each["reason"] for each in told]

    await eventually(lambda: len(ends()) == 3)
    assert ends() == ["auth_failed", "auth_failed", "key_revoked"]
