"""A client of three groups, each on a NATS of its own: one of them is lost, and comes back."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from pathlib import Path

import pytest

from pyoco_server.core.programs.names import run_id_of
from pyoco_server.core.states import RunState
from pyoco_server.grid_client import GridMultiClient, LinkSettings, Pace, Spread
from pyoco_server.ports.runs.port import Stored
from support.proofs.report import proof
from support.proofs.sizes import size
from support.proofs.stage import GROUP, SHORT_LEASES, Scene, restart, scene, submit_all
from support.waiting import eventually

#: For the small form: it knocks once a second at the group that is gone.
_IMPATIENT = Pace(sleep=lambda seconds: asyncio.sleep(min(seconds, 1.0)))


#: Of all jobs, so many end when they are told to: some of them are in each group.
_GATED = 6


async def test_a_group_that_is_lost_costs_no_job_and_gives_no_result_twice(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """P18: GRID-129, GRID-130, GRID-132"""
    await lost_group(tmp_path, caplog, jobs=size(30, 300), grace=size(1.0, 10.0), longest=size(0.8, 3.0))


async def lost_group(
    folder: Path, caplog: pytest.LogCaptureFixture, *, jobs: int, grace: float, longest: float
) -> None:
    caplog.set_level(logging.WARNING, "pyoco_server.client")
    with proof("P18", "a group is lost", jobs=jobs, groups=3, grace_seconds=grace) as found:
        async with contextlib.AsyncExitStack() as stack:
            groups = [await stack.enter_async_context(_group(folder / name)) for name in ("one", "two", "three")]
            client = GridMultiClient(
                "clientX",
                [each.addresses[0] for each in groups],
                desired_total=12,
                spread=Spread(grace_seconds=grace),
                settings=LinkSettings(pace=size(_IMPATIENT, Pace())),
            )
            await stack.enter_async_context(client)
            await eventually(lambda: all(each.state == "live" for each in client.stats().groups))
            asks = [groups[0].job(exec_name="gated") for _ in range(_GATED)]
            asks += [groups[0].job(f"{found.chance.uniform(0.2, longest):.2f}") for _ in range(jobs)]
            futures = await submit_all(client, asks)
            # In the middle: some of its jobs have their results, some run, some wait.
            await eventually(lambda: client.stats().groups[1].results >= jobs // 15)
            await eventually(lambda: bool(groups[1].marks.running()))
            killed_at = time.time()
            _kill(groups[1])
            for each in (groups[0], groups[2]):  # there, not in the one that is lost: what was left there is cancelled
                each.open_gate()
            await eventually(lambda: client.stats().failovers > 0)
            moved_after = time.time() - killed_at
            moved = client.stats().failovers
            await _bring_back(groups[1])
            async with asyncio.timeout(600):
                results = await asyncio.gather(*futures.values())
            await eventually(lambda: client.stats().late_results >= 1, 120)
            await _assert_told(client, groups, killed_at, grace, moved)
            assert [result.job_id for result in results] == list(futures)
            assert {result.status for result in results} == {RunState.COMPLETED}
            late = client.stats().late_results
            found.note(moved=moved, moved_after=round(moved_after, 1), late_results=late)
            assert moved_after >= grace
            assert caplog.text.count("dropped late result of job") == late


def _group(folder: Path) -> contextlib.AbstractAsyncContextManager[Scene]:
    folder.mkdir()
    return scene(folder, workers=1, env=size(SHORT_LEASES, {}))


def _kill(group: Scene) -> None:
    for process in [*group.doors, *group.workers]:
        process.kill()
    group.nodes.kill()


async def _bring_back(group: Scene) -> None:
    await group.nodes.start()
    for process in [*group.doors, *group.workers]:
        await restart(process)


async def _assert_told(
    client: GridMultiClient, groups: list[Scene], killed_at: float, grace: float, moved: int
) -> None:
    """Where each job was: those that are in two groups were in the lost one, moved after the grace and not before, and
    cancelled there when it came back."""
    places = {name: await _runs(group) for name, group in zip(("one", "two", "three"), groups, strict=True)}
    job_ids = set().union(*places.values())
    twice = {job_id for job_id in job_ids if sum(job_id in runs for runs in places.values()) > 1}
    assert twice <= set(places["two"])
    assert len(twice) <= moved
    for job_id in twice:
        others = [runs[job_id] for name, runs in places.items() if name != "two" and job_id in runs]
        assert len(others) == 1
        assert others[0][1] >= killed_at + grace - 0.2

    # Of what was moved, everything is at an end there: cancelled, unless it had ended before it was heard of.
    async def is_over() -> bool:
        runs = await _runs(groups[1])
        return all(runs[job_id][0] in (RunState.CANCELLED, RunState.COMPLETED) for job_id in twice)

    await eventually(is_over, 120)
    runs = await _runs(groups[1])
    assert any(runs[job_id][0] is RunState.CANCELLED for job_id in twice)


async def _runs(group: Scene) -> dict[str, tuple[RunState, float]]:
    """Status and time of acceptance, by JobId."""
    found = {}
    async with group.backend() as backend, group.programs() as programs:
        events = await programs.events.recent(job_id=None, event=None, group=GROUP, limit=10_000)
        for event in events:
            if event.event.value == "enqueue" and event.job_id is not None:
                stored = await backend.runs.find(run_id_of(event.job_id, GROUP))
                assert isinstance(stored, Stored)
                found[event.job_id] = stored.run.status, event.ts
    return found
