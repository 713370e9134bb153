"""Attempts and workers without a heartbeat at a door."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import pytest_asyncio

from pyoco_server.core.frames.codec import Frame, Type
from pyoco_server.core.frames.messages import AssignJob, JobResult
from pyoco_server.doors.frames import acks
from support.backends import fields_of
from support.grid.door_scenes import a_worker, client, door, exec_name
from support.grid.peers import (
    ClientPeer,
    OpenDoor,
    a_job_id,
    grid_config,
    open_door,
)
from support.waiting import eventually

__all__ = ["client", "door", "exec_name"]

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module")
async def strict_door(nats_url: str) -> AsyncIterator[OpenDoor]:
    """A silent attempt is given up soon."""
    async with open_door(nats_url, grid_config(exec_ack_timeout_sec=2.0, exec_run_heartbeat_sec=0.5)) as opened:
        yield opened


# Signs of life ------------------------------------------------------------------------------------------------------


async def test_an_attempt_without_a_sign_of_life_is_tried_again(strict_door: OpenDoor, exec_name: str) -> None:
    """GRID-78, GRID-79: the connection is open, and other attempts on it are alive."""
    async with (
        await a_worker(strict_door, exec_name, credit=2) as worker,
        await ClientPeer.connect(strict_door) as client,
    ):
        await client.hello()
        await client.accepted(exec_name=exec_name)
        await client.accepted(exec_name=exec_name)
        alive, silent = await worker.assigned(), await worker.assigned()
        await worker.credit(1)
        for _ in range(400):
            await worker.beat(alive)
            if not await worker.is_silent(0.2):
                break
        again = await worker.assigned()
        assert (again.job_id, again.attempt) == (silent.job_id, 2)
        assert await worker.settled(alive) == "recorded"
        assert await worker.settled(silent) == "stale"
        assert await worker.settled(again) == "recorded"


async def test_a_report_that_is_passed_over_lives_with_its_worker_until_it_comes_again(
    strict_door: OpenDoor, exec_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GRID-78, GRID-109: the worker no longer lists what it has reported."""
    async with await a_worker(strict_door, exec_name) as worker, await ClientPeer.connect(strict_door) as client:
        await client.hello()
        await client.accepted(exec_name=exec_name)
        job = await worker.assigned()
        with monkeypatch.context() as patch:
            patch.setattr(acks, "_AT_ONCE", 0)
            await worker.ack(job)
            for _ in range(15):  # longer than an attempt may be silent
                await worker.beat()
                assert await worker.is_silent(0.2)
        assert strict_door.door.context.in_flight.get(job.run_id) is not None
        assert await worker.settled(job) == "recorded"
        assert (await client.result()).attempt == 1


async def test_reports_that_are_passed_over_do_not_pile_up(
    door: OpenDoor, exec_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GRID-195: the next frame is not read before this one has been."""
    read, at_once, most = acks._read, 0, 0

    async def slowly(frame: Frame) -> JobResult:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(0.01)
        at_once -= 1
        return await read(frame)

    monkeypatch.setattr(acks, "_AT_ONCE", 0)
    monkeypatch.setattr(acks, "_read", slowly)
    job = AssignJob(job_id=a_job_id(), client_id="c", exec_name="x", timeout_sec=1, run_id="r", attempt=1, token="t")
    async with await a_worker(door, exec_name) as worker:
        for _ in range(5):
            await worker.ack(job)
        await worker.send(Type.CREDIT, b"")  # answered when all of them have been
        await worker.error("BAD_CREDIT")
    assert most == 1


async def test_a_worker_that_falls_silent_is_gone(nats_url: str, caplog: pytest.LogCaptureFixture) -> None:
    """GRID-33, GRID-81; a heartbeat comes after silence of the door's own."""
    caplog.set_level(logging.INFO)
    grid = grid_config(exec_idle_sec=120.0, exec_heartbeat_sec=0.1, exec_worker_down_delay_sec=0.1)
    async with open_door(nats_url, grid) as door, await ClientPeer.connect(door) as client:
        await client.hello()
        worker = await a_worker(door, "calcA")
        ack = await client.accepted()
        job = await worker.assigned()
        wire = door.door.context.workers[worker.worker_id].session.wire
        assert wire._timers.idle == 120.0
        wire._timers = replace(wire._timers, idle=0.5)  # for this one, and from its next frame on
        await worker.beat(job)
        await worker.ended()

        async def is_lost() -> bool:
            return bool((await door.run(ack.run_id)).program.lost == 1)

        await eventually(is_lost)
        ended = [fields_of(each)["reason"] for each in caplog.records if each.getMessage() == "a connection ended"]
        assert ended == ["idle_timeout"]
        await worker.close()


async def test_heartbeats_of_a_door_come_after_its_own_silence(nats_url: str) -> None:
    """GRID-33"""
    async with (
        open_door(nats_url, grid_config(exec_heartbeat_sec=0.05)) as door,
        await ClientPeer.connect(door) as peer,
    ):
        assert (await peer.hello()).heartbeat_sec == 0.05
        for _ in range(600):
            assert await peer.is_silent(0.1)
            if peer.heartbeats >= 2:
                break
        assert peer.heartbeats >= 2
