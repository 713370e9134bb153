"""A router takes a job to one group, and its result back."""

from __future__ import annotations

import secrets
from dataclasses import replace

import pytest

from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.frames.codec import Frame, Type
from pyoco_server.core.frames.messages import HelloClient, JobResult
from pyoco_server.core.programs.faults import Code
from pyoco_server.core.states import RunState
from support.grid.fake_door import FakeDoor, Talk, reference_to
from support.grid.peers import ClientPeer, WorkerPeer, a_job_id, open_second_door
from support.grid.peers import open_door as open_real_door
from support.grid.router_acts import connected, done
from support.grid.routers import OpenRouter, open_router
from support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_a_job_is_acknowledged_and_its_result_comes_back(router: OpenRouter, g1: FakeDoor, g2: FakeDoor) -> None:
    """GRID-134, GRID-49"""
    async with connected(router) as client:
        request, msg_id = await client.submit(args=("a", "b"))
        ack = await client.next(Type.SUBMIT_ACK)
        result = await client.next(Type.RESULT)
        assert ack.corr_id == result.corr_id == msg_id
        assert result.subject == "job.result.calcA"
        assert JobResult.read(result.payload).stdout == "a b"
        assert g1.submitted + g2.submitted == [request.job_id]
        route = await router.route(request.job_id)
        assert route is not None
        assert route.group == JobResult.read(result.payload).worker_id


async def test_groups_hear_the_clients_own_id_and_key_and_a_part_of_its_cap(
    router: OpenRouter, g1: FakeDoor, g2: FakeDoor
) -> None:
    """GRID-134, GRID-136: 7 over 2 is 4 and 3; a repeated Hello changes both."""
    async with await ClientPeer.connect(router.port) as client:
        ack = await client.hello("anna", 7, token="a key")
        assert ack.cap == 7
        hellos = [g1.hellos[-1], g2.hellos[-1]]
        assert {(each.client_id, each.token) for each in hellos} == {("anna", "a key")}
        assert [each.desired_parallelism for each in hellos] == [4, 3]
        assert (await client.hello("anna", 2, token="a key")).cap == 2
        await eventually(lambda: [each.hellos[-1].desired_parallelism for each in (g1, g2)] == [1, 1])
        assert len(g1.hellos) == len(g2.hellos) == 2
        await client.send(Type.HELLO_CLIENT, HelloClient(client_id="bert").to_payload())
        await client.error("BAD_STATE")


async def test_jobs_take_turns_between_the_groups(router: OpenRouter, g1: FakeDoor, g2: FakeDoor) -> None:
    """GRID-136: rr"""
    async with connected(router) as client:
        workers = [(await done(client)).worker_id for _ in range(6)]
    assert set(workers[:2]) == {"g1", "g2"}
    assert workers == workers[:2] * 3


async def test_the_group_with_the_fewest_unfinished_jobs_is_next(
    names: NatsBackendConfig, g1: FakeDoor, g2: FakeDoor
) -> None:
    """GRID-136: least"""
    g1.is_holding = True
    async with (
        open_router(names, {"g1": g1.address, "g2": g2.address}, policy="least") as router,
        connected(router) as client,
    ):
        for _ in range(7):
            await client.accepted()
        # One is held in g1; each of the others found g2 empty.
        await eventually(lambda: len(g2.submits) == 6)
        assert len(g1.submits) == 1


async def test_rules_come_before_the_policy_and_deny_is_forbidden(
    names: NatsBackendConfig, g1: FakeDoor, g2: FakeDoor
) -> None:
    """GRID-136"""
    rules = ("exec=secret:deny", "client=root:g1", "exec=render*:g2")
    async with open_router(names, {"g1": g1.address, "g2": g2.address}, *rules) as router:
        async with connected(router, "anna") as client:
            assert {(await done(client, exec_name="renderA")).worker_id for _ in range(3)} == {"g2"}
            request, msg_id = await client.submit(exec_name="secret")
            frame, error = await client.error("FORBIDDEN")
            assert (frame.corr_id, error.job_id, error.retry) == (msg_id, request.job_id, False)
            assert await router.route(request.job_id) is None
        async with connected(router, "root") as client:
            assert (await done(client, exec_name="renderA")).worker_id == "g1"
    assert "secret" not in {each.exec_name for each in [*g1.submits, *g2.submits]}


async def test_a_job_that_is_submitted_many_times_goes_to_one_group(
    names: NatsBackendConfig, router: OpenRouter, g1: FakeDoor, g2: FakeDoor
) -> None:
    """GRID-135, GRID-50: on one connection, on two, and at two routers; every SubmitJob is answered."""
    g1.is_holding = g2.is_holding = True
    async with (
        open_router(names, {"g2": g2.address, "g1": g1.address}) as other,
        connected(router, "anna") as one,
        connected(router, "anna") as two,
        connected(other, "anna") as three,
    ):
        request = one.request()
        asked = {client: [(await client.submit(request))[1] for _ in range(10)] for client in (one, two, three)}
        for client, msg_ids in asked.items():
            acks = [await client.next_of(Type.SUBMIT_ACK) for _ in msg_ids]
            assert sorted(each.corr_id for each in acks) == sorted(msg_ids)
        held = [each for each in (g1, g2) if each.submits]
        assert len(held) == 1
        await held[0].finish(request.job_id)
        for client, msg_ids in asked.items():
            frame = await client.next_of(Type.RESULT)
            assert frame.corr_id in msg_ids
            assert await client.is_silent(0.05)


async def test_a_repeat_after_the_end_gets_the_result_again(router: OpenRouter, g1: FakeDoor, g2: FakeDoor) -> None:
    """GRID-135: the same group is asked."""
    async with connected(router, "anna") as client:
        request = client.request()
        first = await done(client, request=request)
        for _ in range(3):
            assert (await done(client, request=request)).worker_id == first.worker_id
    assert not (g1.submits and g2.submits)


async def test_another_content_under_the_same_id_is_a_conflict(router: OpenRouter, g1: FakeDoor, g2: FakeDoor) -> None:
    """GRID-48: on the same connection the router knows; elsewhere the group does."""
    g1.is_holding = g2.is_holding = True
    async with connected(router, "anna") as client:
        ack = await client.accepted(args=("1",))
        request, msg_id = await client.submit(job_id=ack.job_id, args=("2",))
        frame, error = await client.error("JOB_ID_CONFLICT")
        assert (frame.corr_id, error.job_id) == (msg_id, request.job_id)
        # What the group says no to is passed on, once, and the job is forgotten.
        for door in (g1, g2):
            door.on_submit = lambda talk, frame: talk.refuse(frame, Code.JOB_ID_CONFLICT)
        _, msg_id = await client.submit()
        frame, _ = await client.error("JOB_ID_CONFLICT")
        assert frame.corr_id == msg_id
        assert sum(len(peer._placed) for peer in router.sides) == 1


async def test_what_a_group_refuses_for_now_is_asked_for_again(router: OpenRouter, g1: FakeDoor, g2: FakeDoor) -> None:
    """GRID-122: the client need not know."""
    refusals = []

    async def full(talk: Talk, frame: Frame) -> None:
        refusals.append(frame)
        await (talk.refuse(frame, Code.QUEUE_FULL, 10) if len(refusals) < 3 else talk.door.accept(talk, frame))

    g1.on_submit = g2.on_submit = full
    async with connected(router) as client:
        await done(client)
    assert len({frame.payload for frame in refusals}) == 1


async def test_a_job_is_cancelled_on_its_own_connection_and_on_another(
    names: NatsBackendConfig, router: OpenRouter, g1: FakeDoor, g2: FakeDoor
) -> None:
    """GRID-163"""
    g1.is_holding = g2.is_holding = True
    async with (
        open_router(names, {"g1": g1.address, "g2": g2.address}) as other,
        connected(router, "anna") as one,
        connected(other, "anna") as two,
    ):
        ack = await one.accepted()
        await one.cancel(ack.job_id)
        assert (await one.result()).status is RunState.CANCELLED
        ack = await one.accepted()

        async def obey(talk: Talk, frame: Frame) -> None:
            asked = next(each.asked[ack.job_id] for each in talk.door.talks if ack.job_id in each.asked)
            await talk.door.end(talk, asked, status=RunState.CANCELLED)

        g1.on_cancel = g2.on_cancel = obey
        msg_id = await two.cancel(ack.job_id)
        frame = await two.next_of(Type.RESULT)
        assert (frame.corr_id, JobResult.read(frame.payload).status) == (msg_id, RunState.CANCELLED)


async def test_nobody_cancels_what_is_not_theirs(router: OpenRouter, g1: FakeDoor, g2: FakeDoor) -> None:
    """GRID-163, GRID-169"""
    g1.is_holding = g2.is_holding = True
    async with connected(router, "anna") as anna, connected(router, "bert") as bert:
        ack = await anna.accepted()
        for job_id in (a_job_id(), ack.job_id):
            msg_id = await bert.cancel(job_id)
            frame, error = await bert.error("NOT_FOUND")
            assert (frame.corr_id, error.job_id) == (msg_id, job_id)
        assert sum(len(peer._placed) for peer in router.sides) == 1
        assert await anna.is_silent(0.05)


async def test_a_job_that_is_submitted_while_its_cancel_is_under_way_is_cancelled(
    router: OpenRouter, g1: FakeDoor, g2: FakeDoor
) -> None:
    """GRID-163"""
    g1.is_holding = g2.is_holding = True
    async with connected(router, "anna") as one, connected(router, "anna") as two:
        request = one.request()
        await one.accepted(request)
        heard = []

        async def silent(talk: Talk, frame: Frame) -> None:
            heard.append(frame)

        g1.on_cancel = g2.on_cancel = silent
        await two.cancel(request.job_id)
        await eventually(lambda: len(heard) == 1)
        g1.on_cancel, g2.on_cancel = g1.obey, g2.obey
        _, msg_id = await two.submit(request)
        assert (await two.next_of(Type.SUBMIT_ACK)).corr_id == msg_id
        assert (await two.result()).status is RunState.CANCELLED


async def test_the_way_of_a_job_through_a_router_and_a_real_door(nats_url: str, names: NatsBackendConfig) -> None:
    """GRID-134, GRID-49, GRID-146: SubmitAck means stored; a repeat says so; the output passes through."""
    async with (
        open_real_door(nats_url, config=names) as door,
        open_second_door(door) as second,
        open_router(names, {"g1": f"127.0.0.1:{door.port}|127.0.0.1:{second.port}"}) as router,
        connected(router) as client,
        await WorkerPeer.connect(second) as worker,
    ):
        request = client.request()
        ack = await client.accepted(request)
        assert (await door.run(ack.run_id)).program.client_id == client.client_id
        assert (await client.accepted(request)).duplicate
        await worker.hello(credit=1)
        job = await worker.assigned()
        data = secrets.token_bytes(300_000)
        name = await worker.stored(job, "output.zip", data)
        assert await worker.settled(job, output_ref=replace(reference_to(data), object=name)) == "recorded"
        result = await client.result()
        assert (result.job_id, result.status) == (request.job_id, RunState.COMPLETED)
        assert await client.fetched(request.job_id, "output.zip") == data
        await client.submit(job_id=request.job_id, args=("other",))
        await client.error("JOB_ID_CONFLICT")
