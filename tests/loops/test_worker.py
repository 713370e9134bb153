"""The worker with real hosts on a real NATS: what it takes, what it shows while it works, and how it stops."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from pyoco_server import wiring
from pyoco_server.actions.cancel import cancel
from pyoco_server.actions.claim import Held, claim_run
from pyoco_server.actions.finish import Ended, finish
from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.job import Job, decode_job
from pyoco_server.core.outcome import Completed
from pyoco_server.core.run import Caller, Owner, Run
from pyoco_server.core.states import RunState, WorkerState
from pyoco_server.core.worker_record import WorkerRecord
from pyoco_server.loops.worker import Badge, Worker
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.nats.link import Link
from pyoco_server.ports.queue.jetstream import JetStreamQueue
from pyoco_server.ports.queue.port import Reply
from pyoco_server.ports.registry.port import Registry
from pyoco_server.ports.runs.port import Stored
from support.backends import (
    BERT,
    consumer_state,
    dead_letters,
    fields_of,
    has_ended,
    jobs_left,
    logged,
    opened_backend,
    run_now,
    submitted,
)
from support.faulty_ports import BEFORE, Trouble, with_trouble
from support.unhurried import unhurried
from support.waiting import eventually

pytestmark = pytest.mark.usefixtures("warm_hosts")

TESTS = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def _naughty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(TESTS))


@pytest.fixture
async def backend(config: NatsBackendConfig) -> AsyncIterator[Backend]:
    """The gateway's view, with timers short enough to wait for."""
    quick = replace(config, run_heartbeat_interval_sec=0.2, worker_heartbeat_interval_sec=0.4)
    async with opened_backend(quick) as backend:
        yield backend


def slower(backend: Backend, **settings: Any) -> Backend:
    """The same world, seen by somebody with other settings."""
    config = replace(backend.config, **settings)
    assert isinstance(backend.queue, JetStreamQueue)
    return replace(backend, config=config, queue=JetStreamQueue(backend.queue._link, config))


@dataclass
class Team:
    """One worker and what it runs on."""

    worker: Worker
    backend: Backend
    executor: Any

    async def registered(self) -> WorkerRecord:
        found = await self.backend.registry.find("w")
        assert found is not None
        return found


@contextlib.asynccontextmanager
async def working(
    backend: Backend, slots: int = 1, worker_id: str = "w", tags: tuple[str, ...] = ("default",)
) -> AsyncIterator[Team]:
    executor = wiring.host_executor(backend.config, "support.naughty:resolve", slots)
    badge = Badge(backend, Owner(worker_id, backend.new_id()), tags, slots, wiring.versions())
    worker = Worker(backend, executor, badge, tags, slots)
    await worker.start()
    try:
        yield Team(worker, backend, executor)
    finally:
        await worker.stop("test", 0.1)


async def ended(backend: Backend, run_id: str, seconds: float = 40.0) -> Run:
    await eventually(lambda: has_ended(backend, run_id), seconds)
    return await run_now(backend, run_id)


async def all_ended(backend: Backend, run_ids: list[str], seconds: float = 40.0) -> list[Run]:
    return [await ended(backend, run_id, seconds) for run_id in run_ids]


async def running(backend: Backend, run_id: str, task: str | None = None) -> Run:
    """Returns once the run executes, and its record shows the task RUNNING if one is named."""

    async def is_so() -> bool:
        run = await run_now(backend, run_id)
        assert not run.is_terminal, run
        return run.status is RunState.RUNNING and (task is None or run.tasks.get(task) == "RUNNING")

    await eventually(is_so)
    return await run_now(backend, run_id)


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
            await eventually(lambda: _none_left(link, backend.config))
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
        """Poison costs its own run, a dead letter, and nobody else."""
        flows = ["leaves", "fine", "crashes", "fine", "is_killed", "fine", "fails", "fine"]
        async with working(backend) as team:
            runs = await all_ended(backend, [await submitted(backend, flow) for flow in flows])
            assert [run.status for run in runs] == [RunState.FAILED, RunState.COMPLETED] * 4
            assert team.executor.restarts == 3
            await eventually(lambda: _none_left(link, backend.config))
        reasons = [letter["body"]["reason"] for letter in await dead_letters(link, backend.config)]
        assert sorted(reasons) == ["execution_error", "host_killed", "host_killed", "host_killed"]


async def _none_left(link: Link, config: NatsBackendConfig) -> bool:
    return await jobs_left(link, config) == []


class TestWhileARunGoesOn:
    async def test_it_is_not_delivered_again_however_long_it_takes(self, link: Link, backend: Backend) -> None:
        """FLOW-312, FLOW-313, FLOW-556"""

        async def scene(scale: float) -> None:
            impatient = slower(backend, consumer_ack_wait_sec=scale, ack_progress_interval_sec=scale / 2)
            tag = f"for-{scale:.0f}-s"
            async with working(impatient, slots=3, tags=(tag,)):
                run_ids = []
                for _ in range(3):  # at different moments of the ticker
                    run_ids.append(await submitted(backend, "sleeps", tag, seconds=3 * scale))
                    await asyncio.sleep(0.17 * scale)
                runs = await all_ended(backend, run_ids)
                assert [(run.status, run.attempt) for run in runs] == [(RunState.COMPLETED, 1)] * 3
                state = await consumer_state(link, backend.config, tag)
            assert state["num_redelivered"] == 0
            assert state["delivered"]["consumer_seq"] == 3

        await unhurried(scene)

    @pytest.mark.parametrize("flow", ["sleeps", "spins", "holds_the_interpreter"])
    async def test_its_heartbeat_goes_on_whatever_the_task_does(self, backend: Backend, flow: str) -> None:
        """FLOW-208, FLOW-374"""

        async def scene(scale: float) -> None:
            patient = slower(backend, run_heartbeat_interval_sec=0.5 * scale, run_timeout_sec=2.5 * scale)
            params: dict[str, Any] = {"seconds": 2.4 * scale} if flow != "spins" else {}
            async with working(patient):
                run_id = await submitted(backend, flow, **params)
                await running(backend, run_id)
                beats = []
                while not (run := await run_now(backend, run_id)).is_terminal:
                    beats.append(run.heartbeat_at)
                    assert time.time() - run.heartbeat_at < 2.0 * scale
                    await asyncio.sleep(0.02)
            assert len(set(beats)) >= 4

        await unhurried(scene)

    async def test_its_progress_is_seen_within_two_intervals(self, backend: Backend) -> None:
        """FLOW-375"""

        async def scene(scale: float) -> None:
            async with working(slower(backend, run_heartbeat_interval_sec=0.2 * scale)):
                run_id = await submitted(backend, "steps", pause=0.8 * scale)
                await running(backend, run_id, "first")
                await eventually(lambda: _is_second(backend, run_id))
                late = time.time() - (await run_now(backend, run_id)).task_records["second"]["started_at"]
                run = await ended(backend, run_id)
            assert late < (2 * 0.2 + 0.2) * scale
            assert dict(run.tasks) == {"first": "SUCCEEDED", "second": "SUCCEEDED"}
            assert run.task_records["second"]["output"] == "first second"

        await unhurried(scene)

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

        async def scene(scale: float) -> None:
            registry, tag = Hanging(backend.registry), f"for-{scale:.0f}-s"
            impatient = slower(backend, consumer_ack_wait_sec=scale, ack_progress_interval_sec=scale / 2)
            async with working(replace(impatient, registry=registry), tags=(tag,)):
                registry.hangs = True
                run_id = await submitted(backend, "sleeps", tag, seconds=2.5 * scale)
                await running(backend, run_id)
                while not (run := await run_now(backend, run_id)).is_terminal:
                    assert time.time() - run.heartbeat_at < 2.0 * scale
                    await asyncio.sleep(0.05)
                registry.hangs = False
                registry.may_go_on.set()
            assert (run.status, run.attempt) == (RunState.COMPLETED, 1)

        await unhurried(scene)

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


class TestACancelledRun:
    async def test_is_asked_to_stop_within_two_intervals(self, link: Link, backend: Backend) -> None:
        """FLOW-17, FLOW-179 to FLOW-183"""

        async def scene(scale: float) -> None:
            async with working(slower(backend, run_heartbeat_interval_sec=0.2 * scale)) as team:
                run_id = await submitted(backend, "watches_for_a_cancel", seconds=300)
                await running(backend, run_id, "watches_for_a_cancel")
                began = time.monotonic()
                await cancel(backend, Caller(), run_id, "enough")
                run = await ended(backend, run_id)
                assert time.monotonic() - began < (2 * 0.2 + 0.3) * scale
                assert (run.status, run.error, run.cancel_reason) == (RunState.CANCELLED, None, "enough")
                assert run.task_records["watches_for_a_cancel"]["output"] == "stopped"
                assert (await ended(backend, await submitted(backend, "fine"))).status is RunState.COMPLETED
                assert team.executor.restarts == 0
                await eventually(lambda: _none_left(link, backend.config))
            assert await dead_letters(link, backend.config) == []

        await unhurried(scene)

    async def test_that_does_not_stop_is_killed_after_the_grace_period(
        self, link: Link, backend: Backend, caplog: pytest.LogCaptureFixture
    ) -> None:
        """DESIGN 9.3, FLOW-185, FLOW-23"""
        strict = slower(backend, cancel_grace_period_sec=0.5)
        with caplog.at_level(logging.WARNING):
            async with working(strict):
                run_id = await submitted(backend, "spins")
                await running(backend, run_id, "spins")
                began = time.monotonic()
                await cancel(backend, Caller(), run_id, None)
                run = await ended(backend, run_id)
                assert time.monotonic() - began > 0.4
                assert (await ended(backend, await submitted(backend, "fine"))).status is RunState.COMPLETED
                await eventually(lambda: _none_left(link, backend.config))
        assert run.status is RunState.CANCELLED
        assert (run.error or "").startswith("ERR-PYOCO-0021")
        assert dict(run.tasks) == {"spins": "CANCELLED"}
        [told] = logged(caplog.records, 21)
        assert (told["run_id"], told["grace_seconds"]) == (run_id, 0.5)
        assert await dead_letters(link, backend.config) == []

    async def test_that_waits_in_the_queue_never_starts(self, link: Link, backend: Backend, tmp_path: Path) -> None:
        """FLOW-184"""
        note = tmp_path / "spans"
        run_id = await submitted(backend, "marks", path=str(note))
        await cancel(backend, Caller(), run_id, None)
        async with working(backend):
            assert (await ended(backend, run_id)).status is RunState.CANCELLED
            await eventually(lambda: _none_left(link, backend.config))
        assert not note.exists()


class TestStopping:
    async def test_finishes_what_runs_and_takes_nothing_more(
        self, link: Link, backend: Backend, tmp_path: Path
    ) -> None:
        """FLOW-469, FLOW-198"""
        async with working(backend) as team:
            first = await submitted(backend, "waits_for", path=str(tmp_path / "go"))
            await running(backend, first)
            stopping = asyncio.create_task(team.worker.stop("sigterm", 0.0))
            await asyncio.sleep(0.1)
            second = await submitted(backend, "fine")
            (tmp_path / "go").touch()
            await stopping
            assert (await run_now(backend, first)).status is RunState.COMPLETED
            assert (await run_now(backend, second)).status is RunState.PENDING
            assert len(await jobs_left(link, backend.config)) == 1
            record = await team.registered()
        assert (record.state, record.stop_reason, record.current_run_id) == (
            WorkerState.STOPPED_GRACEFUL,
            "sigterm",
            None,
        )
        assert record.stopped_at is not None
        assert record.last_run_status == "COMPLETED"

    async def test_hands_back_what_does_not_finish_in_time_and_another_worker_takes_it_at_once(
        self, backend: Backend, tmp_path: Path
    ) -> None:
        """DESIGN 6: neither after the ack timer, nor when the heartbeat of the first attempt counts as stale"""
        calm = slower(backend, consumer_ack_wait_sec=900.0, run_heartbeat_interval_sec=300.0)
        notes = [tmp_path / name for name in "ab"]
        async with working(calm, slots=2) as team:
            run_ids = [await submitted(backend, "sleeps_the_first_time", path=str(each), seconds=300) for each in notes]
            await eventually(lambda: all(each.exists() for each in notes))
            async with working(calm, slots=2, worker_id="other"):
                await team.worker.stop("sigterm", 0.2)
                runs = await all_ended(backend, run_ids)
        assert [(run.status, run.attempt, run.worker_id) for run in runs] == [(RunState.COMPLETED, 2, "other")] * 2

    async def test_during_a_cancel_ends_the_run_as_cancelled(self, backend: Backend) -> None:
        """FLOW-20"""
        async with working(backend) as team:
            run_id = await submitted(backend, "spins")
            await running(backend, run_id, "spins")
            await cancel(backend, Caller(), run_id, None)
            await team.worker.stop("sigterm", 0.1)
        assert (await run_now(backend, run_id)).status is RunState.CANCELLED

    async def test_again_and_again_loses_no_job(self, link: Link, backend: Backend) -> None:
        run_ids = [await submitted(backend, "fine") for _ in range(60)]
        for _ in range(4):
            async with working(backend, slots=2) as team:
                await asyncio.sleep(0.02)
                await team.worker.stop("sigterm", 0.0)
        async with working(backend, slots=2):
            runs = await all_ended(backend, run_ids)
            await eventually(lambda: _none_left(link, backend.config))
        assert {run.status for run in runs} == {RunState.COMPLETED}


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
                    await first.worker._pulse.stop()  # type: ignore[union-attr]  # its ticker would take the record back
                    await second.worker._pulse.announce()  # type: ignore[union-attr]
                    await first.worker.stop("sigterm", 0.0)
                    record = await second.registered()
                    assert (record.state, record.instance_id) == (WorkerState.IDLE, newer.instance_id)
            assert "another live worker" in caplog.text


async def _is(team: Team, state: WorkerState, run_id: str | None) -> bool:
    record = await team.registered()
    return (record.state, record.current_run_id) == (state, run_id)


async def _seen_after(team: Team, moment: float) -> bool:
    record = await team.registered()
    return record.last_seen_at > moment and record.last_heartbeat_at > moment


class TestDeadLetters:
    async def test_of_a_run_that_took_too_long(self, link: Link, backend: Backend) -> None:

        async def scene(scale: float) -> None:
            async with working(slower(backend, run_timeout_sec=0.5 * scale)):
                run = await ended(backend, await submitted(backend, "sleeps", seconds=300))
                await eventually(lambda: _none_left(link, backend.config))
            assert (run.status, run.reason) == (RunState.FAILED, "timeout")
            assert dict(run.tasks) == {"sleeps": "FAILED"}  # it had begun: a busy machine may take its time for that
            letter = (await dead_letters(link, backend.config))[-1]
            assert (letter["body"]["run_id"], letter["body"]["reason"]) == (run.run_id, "timeout")

        await unhurried(scene)

    async def test_of_a_job_that_was_delivered_as_often_as_it_may_be(self, link: Link, backend: Backend) -> None:
        """DESIGN 9.8, FLOW-328"""
        short = slower(backend, consumer_max_deliver=3)
        run_id = await submitted(backend, "marks", path="/nowhere/at/all")
        intake = await short.queue.open_intake(["default"], lambda _: None)
        for count in (1, 2):  # two workers that fell over
            delivery = await intake.take(60)
            assert delivery is not None
            assert delivery.count == count
            await delivery.answer(Reply.LATER)
        await intake.close()
        async with working(short):
            run = await ended(backend, run_id)
            await eventually(lambda: _none_left(link, backend.config))
        assert (run.status, run.reason) == (RunState.FAILED, "max_deliver")
        assert "3 times" in (run.error or "")
        [letter] = await dead_letters(link, backend.config)
        assert (letter["body"]["reason"], letter["body"]["num_delivered"]) == ("max_deliver", 3)
        assert (letter["body"]["run_id"], letter["body"]["worker_id"]) == (run_id, "w")


class TestAFencedWorker:
    async def test_stops_the_work_writes_nothing_and_answers_nothing(
        self, link: Link, backend: Backend, caplog: pytest.LogCaptureFixture
    ) -> None:
        """FLOW-311"""

        async def scene(scale: float) -> None:
            impatient = slower(backend, consumer_ack_wait_sec=3.0 * scale, ack_progress_interval_sec=1.5 * scale)
            tag = f"for-{scale:.0f}-s"
            async with working(impatient, tags=(tag,)) as team:
                run_id = await submitted(backend, "sleeps", tag, seconds=300)
                await running(backend, run_id, "sleeps")
                message = (await jobs_left(link, backend.config))[-1]
                later = replace(backend, clock=lambda: time.time() + 60)
                newer = await claim_run(later, decode_job(message["text"].encode()), BERT, first_delivery=False)
                assert isinstance(newer, Held)
                await eventually(lambda: team.executor.restarts == 1)  # the host was killed
                assert (await ended_as(backend, newer)).worker_id == "bert"
                # Its delivery was neither acknowledged nor refused: it comes again, and finds the run ended.
                assert run_id in [job["body"]["run_id"] for job in await jobs_left(link, backend.config)]
                await eventually(lambda: _is_gone(link, backend.config, run_id))
                state = await consumer_state(link, backend.config, tag)
                assert state["delivered"]["consumer_seq"] == 2
                assert (await ended(backend, await submitted(backend, "fine", tag))).status is RunState.COMPLETED
            assert [each for each in caplog.records if "its work is stopped" in each.message]
            assert (await run_now(backend, run_id)).worker_id == "bert"

        with caplog.at_level(logging.WARNING):
            await unhurried(scene)
        assert await dead_letters(link, backend.config) == []


async def _is_gone(link: Link, config: NatsBackendConfig, run_id: str) -> bool:
    return run_id not in [job["body"]["run_id"] for job in await jobs_left(link, config)]


async def ended_as(backend: Backend, held: Held) -> Run:
    result = await finish(backend, held, Completed())
    assert isinstance(result, Ended)
    return result.run


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
