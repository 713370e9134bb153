"""Groups, routers and clients that go and come back."""

from __future__ import annotations

import asyncio

import pytest

from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.frames.codec import Frame, Type
from pyoco_server.core.frames.messages import HelloClient, JobRequest
from pyoco_server.core.programs.faults import Code
from pyoco_server.core.programs.report import ErrorCode
from pyoco_server.core.states import RunState
from pyoco_server.grid_client import GridClient
from support.grid.fake_door import QUICK, FakeDoor, Talk
from support.grid.peers import ClientPeer, a_job_id, grid_config
from support.grid.router_acts import connected, done
from support.grid.routers import OpenRouter, open_router
from support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_jobs_of_a_group_that_is_gone_go_elsewhere_after_the_grace(
    router: OpenRouter, g1: FakeDoor, g2: FakeDoor
) -> None:
    """GRID-135, GRID-129, GRID-130, GRID-141: the same JobId, one result; a group that returns is told to cancel."""
    g1.is_holding = g2.is_holding = True
    async with connected(router) as client:
        jobs = [(await client.accepted()).job_id for _ in range(10)]
        await eventually(lambda: len(g1.submits) == len(g2.submits) == 5)
        moved = list(g1.submitted)
        began = asyncio.get_running_loop().time()
        await g1.stop()
        await eventually(lambda: sorted(g2.submitted) == sorted(jobs))
        assert asyncio.get_running_loop().time() - began >= 0.5
        for job_id in jobs:
            route = await router.route(job_id)
            assert route is not None
            assert route.group == "g2"
        # It comes back: it is told, and what it says of them is dropped.
        await g1.start()
        await eventually(lambda: sorted(each.job_id for each in g1.cancels) == sorted(moved))
        assert g1.submitted == moved
        for job_id in jobs:
            await g2.finish(job_id)
        results = [await client.result() for _ in jobs]
        assert sorted(each.job_id for each in results) == sorted(jobs)
        assert {each.worker_id for each in results} == {"g2"}
        assert await client.is_silent(0.05)


async def test_a_job_never_goes_back_to_a_group_that_was_told_to_cancel_it(
    names: NatsBackendConfig, g1: FakeDoor, g2: FakeDoor
) -> None:
    """GRID-130, GRID-135: one group is unavailable for a while and then the other, as in an upgrade of both."""
    g1.is_holding = g2.is_holding = True

    async def say_cancelled(talk: Talk, frame: Frame) -> None:
        asked = Frame(Type.SUBMIT_JOB, g1.payloads[0], frame.msg_id)
        await g1.end(talk, asked, status=RunState.CANCELLED, error_code=ErrorCode.CANCELLED)

    async def know_it(talk: Talk, frame: Frame) -> None:
        await (say_cancelled if g1.submitted[-1] == moved else g1.accept)(talk, frame)

    grid = grid_config(clientx_grace_sec=0.1)
    async with (
        open_router(names, {"g1": g1.address, "g2": g2.address}, grid=grid) as router,
        connected(router) as client,
    ):
        moved, other = [(await client.accepted()).job_id for _ in range(2)]
        assert (g1.submitted, g2.submitted) == ([moved], [other])
        g1.on_cancel, g1.on_submit = say_cancelled, know_it
        await g1.stop()
        await eventually(lambda: moved in g2.submitted)
        await g1.start()
        await eventually(lambda: len(g1.cancels) == 1)
        await g2.stop()
        await eventually(lambda: other in g1.submitted)
        await g1.finish(other)
        assert (await client.result()).job_id == other
        g2.is_holding = False
        await g2.start()
        result = await client.result()
        assert (result.job_id, result.worker_id, result.status) == (moved, "g2", RunState.COMPLETED)
        assert g1.submitted == [moved, other]


async def test_a_group_that_is_back_in_time_keeps_its_jobs(
    names: NatsBackendConfig, g1: FakeDoor, g2: FakeDoor
) -> None:
    """GRID-129"""
    g1.is_holding = g2.is_holding = True
    grid = grid_config(clientx_grace_sec=60.0)
    async with (
        open_router(names, {"g1": g1.address, "g2": g2.address}, grid=grid) as router,
        connected(router) as client,
    ):
        jobs = [(await client.accepted()).job_id for _ in range(4)]
        await g1.stop()
        await g1.start()
        g1.is_holding = False
        await eventually(lambda: len(g1.submits) == 4)
        await g2.finish(g2.submitted[0])
        await g2.finish(g2.submitted[1])
        assert sorted([(await client.result()).job_id for _ in jobs]) == sorted(jobs)
        assert len(g2.submits) == 2
        assert not g1.cancels


async def test_a_job_that_a_rule_binds_to_a_group_waits_for_it(
    names: NatsBackendConfig, g1: FakeDoor, g2: FakeDoor
) -> None:
    """GRID-136: rules hold for a failover, too."""
    g1.is_holding = g2.is_holding = True
    async with (
        open_router(names, {"g1": g1.address, "g2": g2.address}, "exec=bound:g1") as router,
        connected(router) as client,
    ):
        bound = (await client.accepted(exec_name="bound")).job_id
        free = [(await client.accepted(exec_name="free")).job_id for _ in range(2)]
        await g1.stop()
        await eventually(lambda: set(free) <= set(g2.submitted))
        assert bound not in g2.submitted
        _, msg_id = await client.submit(exec_name="bound")
        frame, _ = await client.error("UNAVAILABLE")
        assert frame.corr_id == msg_id
        await g1.start()
        await eventually(lambda: g1.submitted.count(bound) == 2)


async def test_without_a_group_a_job_is_not_accepted_and_later_it_is(
    router: OpenRouter, g1: FakeDoor, g2: FakeDoor
) -> None:
    """GRID-49: and one that was placed is waited for where it is."""
    await g1.stop()
    await g2.stop()
    async with connected(router, "anna") as client:
        request, _ = await client.submit()
        _, error = await client.error("UNAVAILABLE")
        assert error.retry
        assert await router.route(request.job_id) is None
        await router.context.routes.place(request.job_id, "g2", 0.0)
        await client.submit(request)
        assert await client.is_silent(0.1)
        await g2.start()
        assert (await client.result()).worker_id == "g2"


async def test_a_job_that_a_router_with_other_groups_placed_is_taken_over(
    router: OpenRouter, g1: FakeDoor, g2: FakeDoor
) -> None:
    """GRID-135"""
    async with connected(router) as client:
        request = client.request()
        await router.context.routes.place(request.job_id, "elsewhere", 0.0)
        result = await done(client, request=request)
        route = await router.route(request.job_id)
        assert route is not None
        assert route.group == result.worker_id


async def test_a_group_that_refuses_a_client_is_left_out(names: NatsBackendConfig, g1: FakeDoor, g2: FakeDoor) -> None:
    """GRID-134, GRID-168: by its own ACL; a job that only it may have is refused with its words."""

    async def refuse(talk: Talk, frame: Frame) -> None:
        await talk.refuse(frame, Code.FORBIDDEN)

    g1.on_hello = refuse
    async with (
        open_router(names, {"g1": g1.address, "g2": g2.address}, "exec=bound:g1") as router,
        connected(router) as client,
    ):
        assert {(await done(client)).worker_id for _ in range(4)} == {"g2"}
        await client.submit(exec_name="bound")
        await client.error("FORBIDDEN")
        # Placed there by another router: no other group may have it, and that group never will.
        request = client.request("bound")
        await router.context.routes.place(request.job_id, "g1", 0.0)
        await client.submit(request)
        _, error = await client.error("FORBIDDEN")
        assert error.job_id == request.job_id


async def test_a_client_goes_on_at_another_router(names: NatsBackendConfig, g1: FakeDoor, g2: FakeDoor) -> None:
    """GRID-137: the first router says where the others are; nothing is kept in either."""
    g1.is_holding = g2.is_holding = True
    groups = {"g1": g1.address, "g2": g2.address}
    async with open_router(names, groups) as second:  # noqa: SIM117 - its address is needed for the first
        async with open_router(names, groups, peers=(second.address,)) as first:
            async with GridClient("127.0.0.1", first.port, "anna", settings=QUICK) as client:
                futures = [await client.submit(JobRequest(exec_name="calcA", job_id=a_job_id())) for _ in range(6)]
                await eventually(lambda: len(g1.submits) == len(g2.submits) == 3)
                placed_in = dict.fromkeys(g1.submitted, "g1") | dict.fromkeys(g2.submitted, "g2")
                first.server.close()
                for session in list(first.router.sessions):  # as a killed one leaves it
                    session.wire._writer.transport.abort()
                await eventually(lambda: len(g1.submits) == len(g2.submits) == 6)
                assert dict.fromkeys(g1.submitted, "g1") | dict.fromkeys(g2.submitted, "g2") == placed_in
                for job_id, name in placed_in.items():
                    await (g1 if name == "g1" else g2).finish(job_id)
                assert len({(await future).job_id for future in futures}) == 6
                assert client.stats().late_results == 0


async def test_a_router_that_closes_sends_its_clients_to_its_peers(
    names: NatsBackendConfig, g1: FakeDoor, g2: FakeDoor
) -> None:
    """GRID-41, GRID-45"""
    g1.is_holding = g2.is_holding = True
    groups = {"g1": g1.address, "g2": g2.address}
    async with open_router(names, groups, peers=("127.0.0.1:7",)) as router:  # noqa: SIM117 - clearer one by one
        async with connected(router) as client:
            await client.accepted()
            draining = asyncio.create_task(router.router.drain())
            message = await client.not_leader()
            assert (message.reason, message.leader) == ("draining", "127.0.0.1:7")
            assert await client.ended() == []
            await draining
            assert not router.router.sessions
            async with await ClientPeer.connect(router.port) as late:
                await late.send(Type.HELLO_CLIENT, HelloClient(client_id="late").to_payload())
                assert (await late.not_leader()).reason == "draining"
