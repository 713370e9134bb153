"""The worker with real hosts on a real NATS: what it takes, what it shows while it works, and how it stops."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pyoco_server.core.job import Job
from pyoco_server.core.states import RunState, WorkerState
from pyoco_server.core.worker_record import WorkerRecord
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.nats.link import Link
from pyoco_server.ports.registry.port import Registry
from pyoco_server.ports.runs.port import Stored
from support.backends import (
    consumer_state,
    dead_letters,
    fields_of,
    opened_backend,
    run_now,
    submitted,
)
from support.faulty_ports import BEFORE, Trouble, with_trouble
from support.waiting import eventually
from support.worker_teams import Team, all_ended, backend, ended, helpers_on_path, none_left, running, slower, working

__all__ = ["backend", "helpers_on_path"]

pytestmark = pytest.mark.usefixtures("warm_hosts")


def most_at_once(note: Path) -> int:
    spans = [tuple(map(float, line.split()[:2])) for line in note.read_text().splitlines()]
    return max(sum(1 for began, end in spans if began <= moment < end) for moment, _ in spans)


class TestTaking:
    async def test_runs_as_many_at_once_as_it_has_slots_and_never_more(self, backend: Backend, tmp_path: Path) -> None:
        """DESIGN 9.2"""
        note = tmp_path / "spans"
        # Short ones first: they tempt a worker to take more than it has room for.
        shorts = [await submitted(backend, "fine") for _ in range(40)]
        longs = [await submitted(backend, "marks", path=str(note), seconds=0.3) for _ in range(8)]
        async with working(backend, slots=2):
            runs = await all_ended(backend, shorts + longs)
        assert {run.status for run in runs} == {RunState.COMPLETED}
        assert most_at_once(note) == 2

    async def test_drains_short_runs_each_once(self, link: Link, backend: Backend) -> None:
        """FLOW-307"""
        async with working(backend, slots=2):
            run_ids = [await submitted(backend, "fine", n=n) for n in range(150)]
            runs = await all_ended(backend, run_ids)
            assert [run.task_records["fine"]["output"] for run in runs] == [n + 1 for n in range(150)]
            assert {run.attempt for run in runs} == {1}
            await eventually(lambda: none_left(link, backend.config))
        assert await dead_letters(link, backend.config) == []

    async def test_serves_all_its_tags_and_starves_none(self, backend: Backend) -> None:
        """FLOW-293, FLOW-294"""
        many = [await submitted(backend, "sleeps", "a", seconds=0.02) for _ in range(40)]
        few = [await submitted(backend, "fine", "b") for _ in range(3)]
        other = await submitted(backend, "fine", "c")
        async with working(backend, tags=("a", "b")):
            few_ended = [run.end_time or 0 for run in await all_ended(backend, few)]
            many_ended = sorted(run.end_time or 0 for run in await all_ended(backend, many))
        assert max(few_ended) < many_ended[len(many) // 2]
        assert (await run_now(backend, other)).status is RunState.PENDING

    async def test_leaves_to_an_idle_worker_what_it_cannot_begin(self, backend: Backend) -> None:
        async with working(backend) as busy:
            await all_ended(backend, [await submitted(backend, "fine") for _ in range(40)])  # it is used to short runs
            long = await submitted(backend, "sleeps", seconds=300)
            await running(backend, long)
            async with working(replace(busy.backend), worker_id="idle"):
                runs = await all_ended(backend, [await submitted(backend, "fine") for _ in range(6)])
            assert {run.worker_id for run in runs} == {"idle"}
            assert (await run_now(backend, long)).status is RunState.RUNNING

    async def test_goes_on_after_runs_that_take_their_host_with_them(self, link: Link, backend: Backend) -> None:
        """A poison job costs its own run and a dead letter, and affects no other run."""
        flows = ["leaves", "fine", "crashes", "fine", "is_killed", "fine", "fails", "fine"]
        async with working(backend) as team:
            runs = await all_ended(backend, [await submitted(backend, flow) for flow in flows])
            assert [run.status for run in runs] == [RunState.FAILED, RunState.COMPLETED] * 4
            assert team.executor.restarts == 3
            await eventually(lambda: none_left(link, backend.config))
        reasons = [letter["body"]["reason"] for letter in await dead_letters(link, backend.config)]
        assert sorted(reasons) == ["execution_error", "host_killed", "host_killed", "host_killed"]


class TestWhileARunGoesOn:
    @pytest.mark.steady_time
    async def test_it_is_not_delivered_again_however_long_it_takes(self, link: Link, backend: Backend) -> None:
        """FLOW-312, FLOW-313, FLOW-556"""
        impatient = slower(backend, consumer_ack_wait_sec=1.0, ack_progress_interval_sec=0.5)
        tag = "for-1-s"
        async with working(impatient, slots=3, tags=(tag,)):
            run_ids = []
            for _ in range(3):  # at different moments of the ticker
                run_ids.append(await submitted(backend, "sleeps", tag, seconds=3))
                await asyncio.sleep(0.17)
            runs = await all_ended(backend, run_ids)
            assert [(run.status, run.attempt) for run in runs] == [(RunState.COMPLETED, 1)] * 3
            state = await consumer_state(link, backend.config, tag)
        assert state["num_redelivered"] == 0
        assert state["delivered"]["consumer_seq"] == 3

    @pytest.mark.parametrize("flow", ["sleeps", "spins", "holds_the_interpreter"])
    async def test_its_heartbeat_goes_on_whatever_the_task_does(self, backend: Backend, flow: str) -> None:
        """FLOW-208, FLOW-374"""
        patient = slower(backend, run_heartbeat_interval_sec=0.1, run_timeout_sec=600.0)
        params: dict[str, Any] = {"seconds": 500} if flow != "spins" else {}
        beats: set[float | None] = set()

        async def beats_on() -> bool:
            run = await run_now(backend, run_id)
            assert not run.is_terminal
            beats.add(run.heartbeat_at)
            return len(beats) >= 4

        async with working(patient):
            run_id = await submitted(backend, flow, **params)
            await running(backend, run_id)
            await eventually(beats_on)

    async def test_its_progress_is_seen_while_it_runs(self, backend: Backend, tmp_path: Path) -> None:
        """FLOW-375"""
        async with working(slower(backend, run_heartbeat_interval_sec=0.2)):
            run_id = await submitted(backend, "steps", gate=str(tmp_path / "go"))
            await eventually(lambda: _is_second(backend, run_id))  # which ends after the gate is open
            (tmp_path / "go").touch()
            run = await ended(backend, run_id)
        assert dict(run.tasks) == {"first": "SUCCEEDED", "second": "SUCCEEDED"}
        assert run.task_records["second"]["output"] == "first second"

    @pytest.mark.steady_time
    async def test_the_registry_does_not_hold_it_up(self, backend: Backend) -> None:
        """FLOW-201, FLOW-208: registry writes that hang or fail cost neither heartbeat nor run."""

        class Hanging:
            def __init__(self, real: Registry) -> None:
                self._real = real
                self.hangs, self.may_go_on = False, asyncio.Event()

            def __getattr__(self, name: str) -> Any:
                return getattr(self._real, name)

            async def announce(self, record: WorkerRecord) -> WorkerRecord:
                if self.hangs:
                    await self.may_go_on.wait()
                return await self._real.announce(record)

        registry, tag = Hanging(backend.registry), "for-1-s"
        impatient = slower(backend, consumer_ack_wait_sec=1.0, ack_progress_interval_sec=0.5)
        async with working(replace(impatient, registry=registry), tags=(tag,)):
            registry.hangs = True
            run_id = await submitted(backend, "sleeps", tag, seconds=2.5)
            await running(backend, run_id)
            while not (run := await run_now(backend, run_id)).is_terminal:
                assert time.time() - run.heartbeat_at < 2.0
                await asyncio.sleep(0.05)
            registry.hangs = False
            registry.may_go_on.set()
        assert (run.status, run.attempt) == (RunState.COMPLETED, 1)

    async def test_a_registry_that_cannot_be_written_fails_no_run(self, backend: Backend) -> None:
        """FLOW-201"""
        trouble = Trouble()
        async with working(with_trouble(backend, trouble, "registry")):
            trouble.plan["registry.announce"] = [BEFORE] * 1000
            trouble.plan["registry.retire"] = [BEFORE]
            assert (await ended(backend, await submitted(backend, "fine"))).status is RunState.COMPLETED


async def _is_second(backend: Backend, run_id: str) -> bool:
    """Its first task is over, and the second is known, ended or not."""
    return dict((await run_now(backend, run_id)).tasks).get("second") in ("RUNNING", "SUCCEEDED")


class TestTheRegistry:
    async def test_knows_what_the_worker_does(self, backend: Backend, tmp_path: Path) -> None:
        """FLOW-195, FLOW-196, FLOW-197, FLOW-353"""
        async with working(backend, slots=2, tags=("default", "gpu")) as team:
            idle = await team.registered()
            assert (idle.state, idle.tags, idle.slots) == (WorkerState.IDLE, ("default", "gpu"), 2)
            assert (idle.stopped_at, idle.stop_reason, idle.current_run_id) == (None, None, None)
            assert "pyoco-server" in idle.versions
            run_id = await submitted(backend, "waits_for", path=str(tmp_path / "go"))
            await eventually(lambda: _is(team, WorkerState.RUNNING, run_id))
            seen = (await team.registered()).last_seen_at
            await eventually(lambda: _seen_after(team, seen + 0.3))  # FLOW-196: also while a run executes
            (tmp_path / "go").touch()
            await ended(backend, run_id)
            await eventually(lambda: _is(team, WorkerState.IDLE, None))
            after = await team.registered()
            assert (after.last_run_status, after.instance_id) == ("COMPLETED", idle.instance_id)
            failed = await submitted(backend, "leaves")
            await ended(backend, failed)

            async def tells() -> bool:
                record = await team.registered()
                return (record.last_run_status, record.host_restarts) == ("FAILED", 1)

            await eventually(tells)

    async def test_tells_of_a_run_as_soon_as_it_starts(self, backend: Backend) -> None:
        """FLOW-197: not only with the next heartbeat of the worker."""
        calm = slower(backend, worker_heartbeat_interval_sec=900.0)
        async with working(calm) as team:
            run_id = await submitted(backend, "sleeps", seconds=300)
            await eventually(lambda: _is(team, WorkerState.RUNNING, run_id))

    async def test_keeps_the_record_of_a_newer_worker_with_the_same_name(
        self, backend: Backend, caplog: pytest.LogCaptureFixture
    ) -> None:
        """FLOW-200"""
        async with opened_backend(backend.config) as other, working(backend) as first:
            with caplog.at_level(logging.WARNING):
                async with working(other) as second:
                    newer = await second.registered()
                    await first.worker.registration.stop()  # it would take the record back
                    await second.worker.registration.write()
                    await first.worker.stop("sigterm", None)
                    record = await second.registered()
                    assert (record.state, record.instance_id) == (WorkerState.IDLE, newer.instance_id)
            assert "another live worker" in caplog.text


async def _is(team: Team, state: WorkerState, run_id: str | None) -> bool:
    record = await team.registered()
    return (record.state, record.current_run_id) == (state, run_id)


async def _seen_after(team: Team, moment: float) -> bool:
    record = await team.registered()
    return record.last_seen_at > moment and record.last_heartbeat_at > moment


async def test_a_foreign_job_without_record_or_revision_runs(backend: Backend) -> None:
    """FLOW-310"""
    job = Job(run_id=backend.new_id(), flow_name="fine", tag="default", submitted_at=5.0, params={"n": 41})
    await backend.queue.put(job)
    async with working(backend):

        async def is_there() -> bool:
            return isinstance(await backend.runs.find(job.run_id), Stored)

        await eventually(is_there)
        run = await ended(backend, job.run_id)
    assert run.task_records["fine"]["output"] == 42
    assert (run.submitted_at, run.params) == (5.0, {"n": 41})


async def test_a_worker_does_not_log_what_a_run_was_given(backend: Backend, caplog: pytest.LogCaptureFixture) -> None:
    """DESIGN 7, FLOW-531"""
    with caplog.at_level(logging.DEBUG):
        async with working(backend):
            await ended(backend, await submitted(backend, "fine", n=1, word="a-secret-param"))
    assert all("a-secret-param" not in f"{each.message} {fields_of(each)}" for each in caplog.records)


async def test_a_run_nobody_has_room_for_is_left_in_the_queue_unclaimed(backend: Backend) -> None:
    """Credits: a busy worker asks for nothing."""
    async with working(backend):
        await running(backend, await submitted(backend, "sleeps", seconds=300))
        waiting = await submitted(backend, "fine")
        await asyncio.sleep(0.5)
        run = await run_now(backend, waiting)
        assert (run.status, run.attempt) == (RunState.PENDING, 0)
