"""How a worker stops, and cancelled, fenced and dead-lettered runs."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import replace
from pathlib import Path

import pytest

from pyoco_server.actions.cancel import cancel
from pyoco_server.actions.claim import FlowAttempt, claim_run
from pyoco_server.actions.finish import Ended, finish
from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.job import decode_job
from pyoco_server.core.outcome import Completed
from pyoco_server.core.run import Caller, Run
from pyoco_server.core.states import RunState, WorkerState
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.nats.link import Link
from pyoco_server.ports.queue.port import Reply
from support.backends import (
    BERT,
    consumer_state,
    dead_letters,
    jobs_left,
    logged,
    run_now,
    submitted,
)
from support.waiting import eventually
from support.worker_teams import all_ended, backend, ended, helpers_on_path, none_left, running, slower, working

__all__ = ["backend", "helpers_on_path"]

pytestmark = pytest.mark.usefixtures("warm_hosts")


class TestACancelledRun:
    async def test_stops_when_its_task_looks_for_a_cancel(self, link: Link, backend: Backend) -> None:
        """FLOW-17, FLOW-179 to FLOW-183. How soon the work learns of it: `test_delivery_processor_corners.py`."""
        async with working(backend) as team:
            run_id = await submitted(backend, "watches_for_a_cancel", seconds=300)
            await running(backend, run_id, "watches_for_a_cancel")
            await cancel(backend, Caller(), run_id, "enough")
            run = await ended(backend, run_id)
            assert (run.status, run.error, run.cancel_reason) == (RunState.CANCELLED, None, "enough")
            assert run.task_records["watches_for_a_cancel"]["output"] == "stopped"
            assert (await ended(backend, await submitted(backend, "fine"))).status is RunState.COMPLETED
            assert team.executor.restarts == 0
            await eventually(lambda: none_left(link, backend.config))
        assert await dead_letters(link, backend.config) == []

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
                await cancel(strict, Caller(), run_id, None)
                run = await ended(backend, run_id)
                assert time.monotonic() - began > 0.4
                assert (await ended(backend, await submitted(backend, "fine"))).status is RunState.COMPLETED
                await eventually(lambda: none_left(link, backend.config))
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
            await eventually(lambda: none_left(link, backend.config))
        assert not note.exists()


class TestStopping:
    async def test_finishes_what_runs_and_takes_nothing_more(
        self, link: Link, backend: Backend, tmp_path: Path
    ) -> None:
        """FLOW-469, FLOW-198"""
        async with working(backend) as team:
            first = await submitted(backend, "waits_for", path=str(tmp_path / "go"))
            await running(backend, first)
            stopping = asyncio.create_task(team.worker.stop("sigterm", None))
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
                await team.worker.stop("sigterm", None)
        async with working(backend, slots=2):
            runs = await all_ended(backend, run_ids)
            await eventually(lambda: none_left(link, backend.config))
        assert {run.status for run in runs} == {RunState.COMPLETED}


class TestDeadLetters:
    @pytest.mark.steady_time
    async def test_of_a_run_that_took_too_long(self, link: Link, backend: Backend) -> None:
        async with working(slower(backend, run_timeout_sec=0.5)):
            run = await ended(backend, await submitted(backend, "sleeps", seconds=300))
            await eventually(lambda: none_left(link, backend.config))
        assert (run.status, run.reason) == (RunState.FAILED, "timeout")
        assert dict(run.tasks) == {"sleeps": "FAILED"}  # it had begun: a busy machine may take its time for that
        letter = (await dead_letters(link, backend.config))[-1]
        assert (letter["body"]["run_id"], letter["body"]["reason"]) == (run.run_id, "timeout")

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
            await eventually(lambda: none_left(link, backend.config))
        assert (run.status, run.reason) == (RunState.FAILED, "max_deliver")
        assert "3 times" in (run.error or "")
        [letter] = await dead_letters(link, backend.config)
        assert (letter["body"]["reason"], letter["body"]["num_delivered"]) == ("max_deliver", 3)
        assert (letter["body"]["run_id"], letter["body"]["worker_id"]) == (run_id, "w")


class TestAFencedWorker:
    @pytest.mark.steady_time
    async def test_stops_the_work_writes_nothing_and_answers_nothing(
        self, link: Link, backend: Backend, caplog: pytest.LogCaptureFixture
    ) -> None:
        """FLOW-311"""
        caplog.set_level(logging.WARNING)
        impatient = slower(backend, consumer_ack_wait_sec=3.0, ack_progress_interval_sec=1.5)
        tag = "for-1-s"
        async with working(impatient, tags=(tag,)) as team:
            run_id = await submitted(backend, "sleeps", tag, seconds=300)
            await running(backend, run_id, "sleeps")
            message = (await jobs_left(link, backend.config))[-1]
            later = replace(backend, clock=lambda: time.time() + 60)
            newer = await claim_run(later, decode_job(message["text"].encode()), BERT, first_delivery=False)
            assert isinstance(newer, FlowAttempt)
            await eventually(lambda: team.executor.restarts == 1)  # the host was killed
            assert (await ended_as(backend, newer)).worker_id == "bert"
            # Its delivery was neither acknowledged nor refused: it is redelivered, and the run has ended by then.
            assert run_id in [job["body"]["run_id"] for job in await jobs_left(link, backend.config)]
            await eventually(lambda: _is_gone(link, backend.config, run_id))
            state = await consumer_state(link, backend.config, tag)
            assert state["delivered"]["consumer_seq"] == 2
            assert (await ended(backend, await submitted(backend, "fine", tag))).status is RunState.COMPLETED
        assert [each for each in caplog.records if "stopping its execution" in each.message]
        assert (await run_now(backend, run_id)).worker_id == "bert"
        assert await dead_letters(link, backend.config) == []


async def _is_gone(link: Link, config: NatsBackendConfig, run_id: str) -> bool:
    return run_id not in [job["body"]["run_id"] for job in await jobs_left(link, config)]


async def ended_as(backend: Backend, held: FlowAttempt) -> Run:
    result = await finish(backend, held, Completed())
    assert isinstance(result, Ended)
    return result.run
