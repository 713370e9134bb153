"""Routers that are killed again and again in front of two groups, one of which is lost."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from pyoco_server.config import GridConfig, NatsBackendConfig
from pyoco_server.core.programs.names import run_id_of
from pyoco_server.core.states import RunState
from pyoco_server.doors.cli.grid.stage import HOST
from pyoco_server.grid_client import GridClient, LinkSettings, Pace
from pyoco_server.ports.routes.port import Route
from pyoco_server.ports.runs.port import Stored
from pyoco_server.wiring import backend as wiring
from support.grid.processes import Grid, GridProcess, grid
from support.proofs.nodes import Nodes
from support.proofs.report import Findings, proof
from support.proofs.sizes import size
from support.proofs.stage import GROUP, SHORT_LEASES, Scene, restart, scene, submit_all
from support.servers import free_port, quick_folder
from support.waiting import eventually

#: It knocks again within a second: routers come back sooner than its usual pace would find out.
_IMPATIENT = Pace(sleep=lambda seconds: asyncio.sleep(min(seconds, 1.0)))


#: Of each client's jobs, so many end when they are told to: some of them are in either group.
_GATED = 4


async def test_routers_that_are_killed_and_a_lost_group_cost_no_job(tmp_path: Path) -> None:
    """P33: GRID-135, GRID-137, GRID-136"""
    await killed_routers(
        tmp_path, jobs=size(30, 300), every=size(1.5, 3.0), seconds=size(5.0, 60.0), grace=size(2.0, 10.0)
    )


@dataclass
class Routers:
    """Two of them, on a NATS of their own: where jobs are outlives each group."""

    nodes: Nodes
    processes: Grid
    all: list[GridProcess]

    async def routes(self, job_ids: list[str]) -> dict[str, Route]:
        config = GridConfig.read(self.processes.variables)
        async with wiring.open_backend(self.processes.config, "proof", grid=config) as backend:
            assert backend.programs is not None
            found = {job_id: await backend.programs.routes.find(job_id) for job_id in job_ids}
        return {job_id: route for job_id, route in found.items() if route is not None}


async def killed_routers(folder: Path, *, jobs: int, every: float, seconds: float, grace: float) -> None:
    with proof("P33", "routers are killed, and a group is lost", jobs=jobs, grace_seconds=grace) as found:
        async with contextlib.AsyncExitStack() as stack:
            groups = {name: await stack.enter_async_context(_group(folder / name)) for name in ("g1", "g2")}
            routers = await stack.enter_async_context(_routers(folder / "routers", groups, grace))
            first = routers.all[0]
            client = GridClient(
                first.host, first.port, "anna", desired=8, settings=LinkSettings(pace=_IMPATIENT)
            )  # of the second it hears from the first
            await stack.enter_async_context(client)
            asks = [groups["g1"].job(f"{found.chance.uniform(0.2, size(0.8, 2.0)):.2f}") for _ in range(jobs)]
            asks[:0] = [groups["g1"].job(exec_name="gated") for _ in range(_GATED)]
            killing = asyncio.create_task(_kill_routers(routers.all, found, every, seconds))
            submitting = asyncio.create_task(submit_all(client, asks, over=seconds / 2))
            await eventually(lambda: client.stats().groups[0].results >= jobs // 6, 120)
            await eventually(lambda: bool(groups["g2"].marks.running()))  # those that wait for its gate are there
            killed_at = time.time()
            _kill(groups["g2"])
            groups["g1"].open_gate()
            async with asyncio.timeout(600):
                futures = await submitting
                results = await asyncio.gather(*futures.values())
            await killing
            assert [result.job_id for result in results] == [ask.job_id for ask in asks]
            assert {result.status for result in results} == {RunState.COMPLETED}
            await _bring_back(groups["g2"])
            moved = await _assert_placed(routers, groups, [*futures], killed_at, grace)
            found.note(
                moved=moved, reconnects=client.stats().groups[0].reconnects, late_results=client.stats().late_results
            )
            assert moved >= 1


async def _assert_placed(
    routers: Routers, groups: dict[str, Scene], job_ids: list[str], killed_at: float, grace: float
) -> int:
    """One group for each JobId; two for those that were moved, after the grace, from the lost one. How many were."""
    routes = await routers.routes(job_ids)
    assert set(routes) == set(job_ids)
    places = {name: await _known(group, job_ids) for name, group in groups.items()}
    for job_id, route in routes.items():
        known = {name for name, known in places.items() if job_id in known}
        was_moved = route.group == "g1" and route.at >= killed_at + grace - 0.5
        assert route.group in known
        assert known == {route.group} or (was_moved and known == {"g1", "g2"}), (job_id, route, known)
    return len(places["g1"] & places["g2"])


async def _known(group: Scene, job_ids: list[str]) -> set[str]:
    async with group.backend() as backend:
        found = {job_id: await backend.runs.find(run_id_of(job_id, GROUP)) for job_id in job_ids}
    return {job_id for job_id, run in found.items() if isinstance(run, Stored)}


async def _kill_routers(routers: list[GridProcess], found: Findings, every: float, seconds: float) -> None:
    ends, kills = time.monotonic() + seconds, 0
    while time.monotonic() < ends:
        await asyncio.sleep(every)
        router = found.chance.choice(routers)
        router.kill()
        kills += 1
        await restart(router)
    found.note(routers_killed=kills)


def _group(folder: Path) -> contextlib.AbstractAsyncContextManager[Scene]:
    folder.mkdir()
    return scene(folder, workers=1, env=size(SHORT_LEASES, {}))


@contextlib.asynccontextmanager
async def _routers(folder: Path, groups: dict[str, Scene], grace: float) -> AsyncIterator[Routers]:
    folder.mkdir()
    ports = [free_port() for _ in range(2)]
    backends = [part for name, group in groups.items() for part in ("--backend", f"{name}={group.addresses[0]}")]
    with contextlib.ExitStack() as stack:
        nodes = Nodes(stack.enter_context(quick_folder()))
        stack.callback(nodes.kill)
        await nodes.start()
        config = NatsBackendConfig(nats_url=nodes.url)
        variables = {"CLIENTX_GRACE_SEC": f"{grace:g}", "EXEC_QUEUE_MAX_BYTES": str(64 * 2**20)}
        processes = stack.enter_context(grid(nodes.url, folder, config, "routers", **variables))
        started = []
        for port, other in zip(ports, reversed(ports), strict=True):
            started.append(processes.start("router", port, "--peers", f"{HOST}:{other}", *backends))
        yield Routers(nodes, processes, started)


def _kill(group: Scene) -> None:
    for process in [*group.doors, *group.workers]:
        process.kill()
    group.nodes.kill()


async def _bring_back(group: Scene) -> None:
    await group.nodes.start()
    for process in [*group.doors, *group.workers]:
        await restart(process)
