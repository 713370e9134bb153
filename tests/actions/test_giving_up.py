"""A job that the queue will never deliver again: its run ends, gets a dead letter, and the job is removed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from pyoco_server.actions.attempt import Standing
from pyoco_server.actions.beat import beat_run
from pyoco_server.actions.cancel import cancel
from pyoco_server.actions.claim import Busy, FlowAttempt, claim_run
from pyoco_server.actions.finish import Ended, finish
from pyoco_server.actions.give_up import give_up
from pyoco_server.actions.put_back import put_back_run
from pyoco_server.actions.rescue import end_cancelled, worked_on_seconds
from pyoco_server.actions.submit import submit
from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.flow_moves import claim
from pyoco_server.core.job import Job, job_of
from pyoco_server.core.outcome import Completed, DeadReason, Failed
from pyoco_server.core.run import Caller, Run
from pyoco_server.core.states import RunState
from pyoco_server.errors import Corrupt, Unavailable
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.nats.link import Link
from pyoco_server.ports.queue.port import Leftover
from pyoco_server.ports.runs.port import Stored
from support.backends import ANNA, Clock, a_submission, dead_letters, jobs_left, opened_backend, run_now
from support.faulty_ports import AFTER, BEFORE, Trouble, with_trouble

ASK = a_submission()


@pytest.fixture
def clock() -> Clock:
    """Ahead of the store's, with which a keeper compares it: what a test says decides, and not how long it takes."""
    return Clock(time.time() + 300)


@pytest.fixture
async def backend(config: NatsBackendConfig, clock: Clock) -> AsyncIterator[Backend]:
    quick = replace(config, worker_disconnect_timeout_sec=20.0, run_heartbeat_interval_sec=1.0)
    async with opened_backend(quick) as backend:
        yield replace(backend, clock=clock)


async def left_over(backend: Backend) -> tuple[Stored, Job, Leftover]:
    """A run whose job is not delivered any more."""
    stored = await submit(backend, Caller(), ASK)
    intake = await backend.queue.open_intake(["default"], lambda _: None)
    delivery = await intake.take(60)
    assert delivery is not None
    await intake.close()
    job = job_of(stored.run, ASK, stored.revision)
    return stored, job, Leftover("default", 1, delivery.data, delivery.subject)


async def letters(link: Link, backend: Backend) -> list[tuple[str, str]]:
    return [(each["body"]["run_id"], each["body"]["reason"]) for each in await dead_letters(link, backend.config)]


async def test_its_run_fails_a_letter_tells_of_it_and_it_goes(link: Link, backend: Backend) -> None:
    """DESIGN 9.8"""
    stored, _, leftover = await left_over(backend)
    assert await give_up(backend, leftover, 20) is None
    run = await run_now(backend, stored.run.run_id)
    assert (run.status, run.reason, run.ended_by) == (RunState.FAILED, "max_deliver", "keeper")
    [letter] = await dead_letters(link, backend.config)
    assert letter["body"]["num_delivered"] == 20
    assert letter["body"]["subject"] == f"{backend.config.work_subject_prefix}.default"
    assert letter["body"]["error"] == run.error
    assert await jobs_left(link, backend.config) == []


@pytest.mark.parametrize("fate", [BEFORE, AFTER])
@pytest.mark.parametrize("call", ["runs.find", "runs.replace", "queue.remove"])
async def test_after_a_crash_anywhere_the_next_try_makes_it_whole(
    link: Link, backend: Backend, call: str, fate: str
) -> None:
    stored, _, leftover = await left_over(backend)
    with pytest.raises(Unavailable):
        await give_up(with_trouble(backend, Trouble({call: [fate]})), leftover)
    assert await give_up(backend, leftover) is None
    assert (await run_now(backend, stored.run.run_id)).status is RunState.FAILED
    assert await letters(link, backend) == [(stored.run.run_id, "max_deliver")]
    assert await jobs_left(link, backend.config) == []


async def test_a_crash_between_the_end_and_the_letter_costs_no_letter(link: Link, backend: Backend) -> None:
    stored, _, leftover = await left_over(backend)
    trouble = Trouble()

    async def crash() -> None:
        raise RuntimeError("the keeper is killed")

    trouble.meanwhile["runs.replace"] = crash
    with pytest.raises(RuntimeError):
        await give_up(with_trouble(backend, trouble), leftover)
    assert await letters(link, backend) == []
    assert await give_up(backend, leftover) is None
    assert await letters(link, backend) == [(stored.run.run_id, "max_deliver")]


async def test_many_keepers_at_once_end_it_once(link: Link, backend: Backend) -> None:
    stored, _, leftover = await left_over(backend)
    assert set(await asyncio.gather(*(give_up(backend, leftover) for _ in range(8)))) == {None}
    assert await letters(link, backend) == [(stored.run.run_id, "max_deliver")]
    found = await backend.runs.find(stored.run.run_id)
    assert isinstance(found, Stored)
    assert found.revision == stored.revision + 1


async def test_a_worker_that_gave_it_up_and_died_before_its_ack_has_written_the_same_letter(
    link: Link, backend: Backend
) -> None:
    """One dead letter per run, whichever process writes it."""
    stored, job, leftover = await left_over(backend)
    held = await claim_run(backend, job, ANNA, first_delivery=True)
    assert isinstance(held, FlowAttempt)
    ended = await finish(backend, held, Failed(message="too often", why=DeadReason.MAX_DELIVER))
    assert isinstance(ended, Ended)
    await give_up(backend, leftover)
    await give_up(backend, leftover)
    assert await letters(link, backend) == [(stored.run.run_id, "max_deliver")]


class TestARunThatSomebodyWorksOn:
    async def test_is_left_alone_until_its_heartbeat_is_old(self, link: Link, backend: Backend, clock: Clock) -> None:
        stored, job, leftover = await left_over(backend)
        held = await claim_run(backend, job, ANNA, first_delivery=True)
        assert isinstance(held, FlowAttempt)
        clock.now += 19
        busy = await give_up(backend, leftover)
        assert isinstance(busy, Busy)
        assert 0.9 < busy.seconds < 3
        assert (await run_now(backend, stored.run.run_id)).status is RunState.RUNNING
        assert len(await jobs_left(link, backend.config)) == 1
        clock.now += 4
        assert await give_up(backend, leftover) is None
        assert (await run_now(backend, stored.run.run_id)).reason == "max_deliver"

    async def test_since_a_moment_ago_is_left_alone(self, backend: Backend) -> None:
        """It was PENDING when the keeper looked, and claimed when it wrote: the keeper looks again before it judges."""
        stored, job, leftover = await left_over(backend)
        trouble = Trouble()
        trouble.meanwhile["runs.find"] = lambda: claim_run(backend, job, ANNA, first_delivery=True)
        assert isinstance(await give_up(with_trouble(backend, trouble), leftover), Busy)
        assert (await run_now(backend, stored.run.run_id)).status is RunState.RUNNING

    async def test_no_more_because_it_was_handed_back_is_ended(self, backend: Backend) -> None:
        stored, job, leftover = await left_over(backend)
        held = await claim_run(backend, job, ANNA, first_delivery=True)
        assert isinstance(held, FlowAttempt)
        assert await put_back_run(backend, held)
        assert await give_up(backend, leftover) is None
        assert (await run_now(backend, stored.run.run_id)).reason == "max_deliver"


async def test_a_run_that_has_ended_stays_as_it_is_and_its_job_goes(link: Link, backend: Backend) -> None:
    """FLOW-19"""
    stored, job, leftover = await left_over(backend)
    held = await claim_run(backend, job, ANNA, first_delivery=True)
    assert isinstance(held, FlowAttempt)
    assert isinstance(await finish(backend, held, Completed()), Ended)
    assert await give_up(backend, leftover) is None
    assert (await run_now(backend, stored.run.run_id)).status is RunState.COMPLETED
    assert await letters(link, backend) == []
    assert await jobs_left(link, backend.config) == []


async def test_a_cancelled_run_is_cancelled_without_a_letter(link: Link, backend: Backend) -> None:
    """FLOW-20, FLOW-182"""
    stored, _, leftover = await left_over(backend)
    await cancel(backend, Caller(), stored.run.run_id, None)
    assert await give_up(backend, leftover) is None
    run = await run_now(backend, stored.run.run_id)
    assert (run.status, run.error, run.reason) == (RunState.CANCELLED, None, None)
    assert await letters(link, backend) == []
    assert await jobs_left(link, backend.config) == []


async def test_a_message_that_is_no_job_leaves_a_letter_and_goes(link: Link, backend: Backend) -> None:
    await link.store(f"{backend.config.work_subject_prefix}.gpu", b"\xff not a job")
    leftover = Leftover("gpu", 1, b"\xff not a job", f"{backend.config.work_subject_prefix}.gpu")
    for _ in range(2):
        assert await give_up(backend, leftover, 3) is None
    [letter] = await dead_letters(link, backend.config)
    assert (letter["body"]["reason"], letter["body"]["tag"], letter["body"]["num_delivered"]) == (
        "invalid_job",
        "gpu",
        3,
    )
    assert await jobs_left(link, backend.config) == []


async def test_a_record_that_cannot_be_read_is_left_for_an_operator(link: Link, backend: Backend) -> None:
    stored, _, leftover = await left_over(backend)
    await link.store(f"$KV.{backend.config.runs_kv_bucket}.{stored.run.run_id}", b"broken")
    with pytest.raises(Corrupt):
        await give_up(backend, leftover)
    assert len(await jobs_left(link, backend.config)) == 1


class TestACancelledRunThatNobodyWorksOn:
    async def test_ends_when_it_has_been_quiet(self, backend: Backend, clock: Clock) -> None:
        """FLOW-17"""
        stored = await submit(backend, Caller(), ASK)
        await cancel(backend, Caller(), stored.run.run_id, None)
        clock.now += 1.9
        assert await end_cancelled(backend, stored.run.run_id, 2.0) is None
        clock.now += 4
        ended = await end_cancelled(backend, stored.run.run_id, 2.0)
        assert ended is not None
        assert ended.status is RunState.CANCELLED
        assert await end_cancelled(backend, stored.run.run_id, 2.0) is None

    async def test_is_one_whose_worker_has_been_silent_for_too_long(self, backend: Backend, clock: Clock) -> None:
        stored = await submit(backend, Caller(), ASK)
        job = job_of(stored.run, ASK, stored.revision)
        assert isinstance(await claim_run(backend, job, ANNA, first_delivery=True), FlowAttempt)
        clock.now += 10
        await cancel(backend, Caller(), stored.run.run_id, None)
        clock.now += 9.9  # its heartbeat is 19.9 s old, and a worker counts as gone after 20
        assert await end_cancelled(backend, stored.run.run_id, 2.0) is None
        clock.now += 4
        ended = await end_cancelled(backend, stored.run.run_id, 2.0)
        assert ended is not None
        assert (ended.status, ended.attempt, ended.ended_by) == (RunState.CANCELLED, 1, "keeper")

    async def test_fences_a_worker_that_was_merely_cut_off(self, backend: Backend, clock: Clock) -> None:
        """FLOW-311, FLOW-19"""
        stored = await submit(backend, Caller(), ASK)
        held = await claim_run(backend, job_of(stored.run, ASK, stored.revision), ANNA, first_delivery=True)
        assert isinstance(held, FlowAttempt)
        await cancel(backend, Caller(), stored.run.run_id, None)
        clock.now += 60
        ended = await end_cancelled(backend, stored.run.run_id, 2.0)
        assert await beat_run(backend, held, None) is Standing.FENCED  # its pulse kills the work
        await finish(backend, held, Completed())
        assert await run_now(backend, stored.run.run_id) == ended

    async def test_is_never_one_that_was_not_cancelled(self, backend: Backend, clock: Clock) -> None:
        stored = await submit(backend, Caller(), ASK)
        clock.now += 3600
        assert await end_cancelled(backend, stored.run.run_id, 2.0) is None
        assert await end_cancelled(backend, backend.new_id(), 2.0) is None


@pytest.mark.parametrize(
    ("disconnect", "heartbeat", "seconds"),
    [(20.0, 1.0, 20.0), (1.0, 1.0, 8.0), (20.0, 10.0, 35.0)],
)
def test_a_keeper_is_as_patient_as_the_more_patient_of_two_rules(
    disconnect: float, heartbeat: float, seconds: float
) -> None:
    config = NatsBackendConfig(worker_disconnect_timeout_sec=disconnect, run_heartbeat_interval_sec=heartbeat)
    run = Run(run_id="r", flow_name="f", tag="t", submitted_at=0.0, updated_at=0.0, heartbeat_at=0.0)
    assert worked_on_seconds(run, 100.0, config) <= 0  # without an owner
    assert worked_on_seconds(claim(run, ANNA, "a", 100.0), 100.0, config) == seconds
