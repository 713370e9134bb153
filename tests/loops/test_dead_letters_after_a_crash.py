"""A process is killed between the end of a run and its dead letter: the next one writes it, and only once."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from pyoco_server.actions.claim import FlowAttempt, claim_run
from pyoco_server.actions.finish import Ended, finish
from pyoco_server.actions.give_up import give_up
from pyoco_server.actions.rescue import rescue
from pyoco_server.actions.submit import submit
from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.job import Job, encode_job
from pyoco_server.core.outcome import Completed, DeadReason, Failed
from pyoco_server.core.run import Caller
from pyoco_server.core.states import RunState
from pyoco_server.errors import SnapshotTooLargeError, Unavailable
from pyoco_server.loops.delivery_processor import DeliveryProcessor
from pyoco_server.loops.pulse import Pulse
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.nats.link import Link
from pyoco_server.ports.queue.port import Leftover, Reply
from support.backends import (
    ANNA,
    BERT,
    a_submission,
    dead_letters,
    jobs_left,
    opened_backend,
    recorded,
    run_now,
)
from support.faulty_ports import AFTER, BEFORE, UNHEARD, Trouble, with_trouble
from support.flow_workers import terms

pytestmark = pytest.mark.virtual_time


class Hand:
    """A delivery that remembers what it was answered with."""

    def __init__(self, data: bytes, count: int = 1) -> None:
        self.data, self.subject, self.tag, self.count = data, "work.default", "default", count
        self.answers: list[Reply] = []

    async def answer(self, reply: Reply, delay_seconds: float = 0.0) -> None:
        self.answers.append(reply)

    async def hold(self) -> None:
        """Its timer stands still."""


@pytest.fixture
async def backend(config: NatsBackendConfig) -> AsyncIterator[Backend]:
    quick = replace(config, run_heartbeat_interval_sec=0.1, worker_disconnect_timeout_sec=0.2)
    async with opened_backend(quick) as backend:
        yield backend


async def delivered(backend: Backend, data: bytes, count: int = 2) -> Hand:
    """To a worker that could not execute anything."""
    hand = Hand(data, count)
    nobody: Any = None
    await DeliveryProcessor(backend, nobody, BERT, Pulse(), terms()).work(hand, lambda: None)
    return hand


async def letters(link: Link, backend: Backend) -> list[tuple[str, str]]:
    found = await dead_letters(link, backend.config)
    return [(letter["body"]["run_id"], letter["body"]["reason"]) for letter in found]


async def ended(backend: Backend, outcome: Any) -> tuple[FlowAttempt, Job]:
    """A worker was killed right after it had written the end."""
    _, job = await recorded(backend)
    held = await claim_run(backend, job, ANNA, first_delivery=True)
    assert isinstance(held, FlowAttempt)
    assert isinstance(await finish(backend, held, outcome), Ended)
    return held, job


class TestAJobWhoseRunHasEnded:
    @pytest.mark.parametrize("reason", [DeadReason.EXECUTION_ERROR, DeadReason.TIMEOUT, DeadReason.FLOW_NOT_FOUND])
    async def test_brings_the_letter_that_is_missing_and_only_one(
        self, link: Link, backend: Backend, reason: DeadReason
    ) -> None:
        """FLOW-309, FLOW-331"""
        _, job = await ended(backend, Failed(message="broken", why=reason))
        assert await letters(link, backend) == []
        for count in (2, 3):
            assert (await delivered(backend, encode_job(job), count)).answers == [Reply.ACK]
        assert await letters(link, backend) == [(job.run_id, reason)]
        [letter] = await dead_letters(link, backend.config)
        assert (letter["body"]["error"], letter["body"]["num_delivered"]) == ("broken", 2)

    async def test_brings_none_if_it_ended_well(self, link: Link, backend: Backend) -> None:
        _, job = await ended(backend, Completed())
        assert (await delivered(backend, encode_job(job))).answers == [Reply.ACK]
        assert await letters(link, backend) == []

    async def test_brings_none_that_nobody_wants(self, link: Link, backend: Backend) -> None:
        """FLOW-335"""
        silent = replace(backend, config=replace(backend.config, dlq_publish_execution_error=False))
        _, job = await ended(silent, Failed(message="broken"))
        assert (await delivered(silent, encode_job(job))).answers == [Reply.ACK]
        assert await letters(link, backend) == []

    async def test_is_dropped_though_the_letter_cannot_be_written(self, link: Link, backend: Backend) -> None:
        """FLOW-336"""
        _, job = await ended(backend, Failed(message="broken"))
        hand = await delivered(with_trouble(backend, Trouble({"queue.bury": [UNHEARD]})), encode_job(job))
        assert hand.answers == [Reply.ACK]

    async def test_of_a_strangers_reason_brings_none(self, link: Link, backend: Backend) -> None:
        held, job = await ended(backend, Failed(message="broken"))
        found = await backend.runs.find(held.run.run_id)
        record = {**json.loads(json.dumps(vars(await run_now(backend, job.run_id)), default=dict)), "reason": "odd"}
        record.pop("extra")
        subject = f"$KV.{backend.config.runs_kv_bucket}.{job.run_id}"
        await link.store(subject, json.dumps(record).encode())
        assert found.revision
        assert (await delivered(backend, encode_job(job))).answers == [Reply.ACK]
        assert await letters(link, backend) == []


async def test_a_worker_whose_run_a_keeper_has_ended_writes_no_second_letter(link: Link, backend: Backend) -> None:
    """It was taken for dead, and comes back with an outcome."""
    long_ago = replace(backend, clock=lambda: time.time() - 60)
    _, job = await recorded(long_ago)
    held = await claim_run(long_ago, job, ANNA, first_delivery=True)
    assert isinstance(held, FlowAttempt)
    later = replace(backend, clock=lambda: time.time() + 10)
    run = await rescue(later, job.run_id, 1.0)
    assert run is not None
    assert run.attempt_id == held.attempt_id
    result = await finish(backend, held, Failed(message="too late"))
    assert isinstance(result, Ended)
    assert (result.run.reason, result.run.error) == ("abandoned", run.error)
    leftover = Leftover("default", 1, encode_job(job), "work.default")
    await give_up(backend, leftover)  # whichever process writes it
    await delivered(backend, encode_job(job))
    assert await letters(link, backend) == [(job.run_id, "abandoned")]


async def taken(backend: Backend, data: bytes) -> Leftover:
    intake = await backend.queue.open_intake(["default"], lambda _: None)
    delivery = await intake.take(60)
    assert delivery is not None
    await intake.close()
    assert delivery.data == data
    return Leftover("default", 1, delivery.data, delivery.subject)


class TestAJobThatIsGivenUp:
    @pytest.mark.parametrize("fate", [BEFORE, UNHEARD])
    async def test_stays_until_its_letter_is_written(self, link: Link, backend: Backend, fate: str) -> None:
        stored = await submit(backend, Caller(), a_submission())
        [job] = await jobs_left(link, backend.config)
        leftover = await taken(backend, job["text"].encode())
        with pytest.raises(Unavailable):
            await give_up(with_trouble(backend, Trouble({"queue.bury": [fate]})), leftover)
        assert len(await jobs_left(link, backend.config)) == 1
        assert await give_up(backend, leftover) is None
        assert await letters(link, backend) == [(stored.run.run_id, "max_deliver")]
        assert await jobs_left(link, backend.config) == []

    async def test_with_a_letter_whose_answer_was_lost_brings_one(self, link: Link, backend: Backend) -> None:
        stored = await submit(backend, Caller(), a_submission())
        [job] = await jobs_left(link, backend.config)
        leftover = await taken(backend, job["text"].encode())
        with pytest.raises(Unavailable):
            await give_up(with_trouble(backend, Trouble({"queue.bury": [AFTER]})), leftover)
        assert await give_up(backend, leftover) is None
        assert await letters(link, backend) == [(stored.run.run_id, "max_deliver")]

    async def test_without_a_record_leaves_a_letter(self, link: Link, backend: Backend) -> None:
        """FLOW-310: a foreign producer wrote none, and nothing else is left of it."""
        job = Job(
            run_id=backend.new_id(),
            flow_name="theirs",
            tag="default",
            submitted_at=time.time(),
            tags=("x",),
            tenant_id="acme",
            params={"word": "s3cret"},
        )
        await backend.queue.put(job)
        leftover = await taken(backend, encode_job(job))
        assert await give_up(backend, leftover, 7) is None
        [letter] = await dead_letters(link, backend.config)
        body = letter["body"]
        assert (body["run_id"], body["reason"], body["num_delivered"]) == (job.run_id, "max_deliver", 7)
        assert (body["flow_name"], body["tenant_id"], body["tags"]) == ("theirs", "acme", ["x"])
        assert body["error"]
        assert "s3cret" not in letter["text"]
        assert await jobs_left(link, backend.config) == []

    async def test_of_a_submission_that_was_withdrawn_leaves_none(self, link: Link, backend: Backend) -> None:
        stored, job = await recorded(backend)
        await backend.queue.put(job)
        assert await backend.runs.withdraw(stored.run.run_id, stored.revision)
        assert await give_up(backend, await taken(backend, encode_job(job))) is None
        assert await letters(link, backend) == []
        assert await jobs_left(link, backend.config) == []

    async def test_of_a_run_long_forgotten_leaves_none(self, link: Link, backend: Backend) -> None:
        job = Job(run_id=backend.new_id(), flow_name="f", tag="default", submitted_at=1.0, revision=3)
        await backend.queue.put(job)
        assert await give_up(backend, await taken(backend, encode_job(job))) is None
        assert await letters(link, backend) == []

    async def test_that_nobody_can_read_leaves_a_letter_of_the_run_it_names(self, link: Link, backend: Backend) -> None:
        """FLOW-316"""
        run_id = backend.new_id()
        data = json.dumps({"run_id": run_id, "flow_name": ""}).encode()
        await link.store(f"{backend.config.work_subject_prefix}.default", data)
        assert await give_up(backend, await taken(backend, data)) is None
        assert await letters(link, backend) == [(run_id, "invalid_job")]


async def test_a_foreign_job_too_large_to_be_recorded_leaves_a_letter(link: Link, backend: Backend) -> None:
    """FLOW-310: there is no record for it."""
    job = Job(run_id=backend.new_id(), flow_name="theirs", tag="default", submitted_at=time.time())
    runs: Any = _Full(backend.runs)
    hand = await delivered(replace(backend, runs=runs), encode_job(job), 1)
    assert hand.answers == [Reply.ACK]
    assert await letters(link, backend) == [(job.run_id, "execution_error")]


class _Full:
    def __init__(self, runs: object) -> None:
        self._runs = runs

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runs, name)

    async def create(self, run: object) -> None:
        raise SnapshotTooLargeError("no room")


async def test_an_invalid_job_met_twice_leaves_one_letter(link: Link, backend: Backend) -> None:
    """FLOW-316: a worker was killed before its answer."""
    stored, _ = await recorded(backend)
    data = json.dumps({"run_id": stored.run.run_id, "flow_name": ""}).encode()
    for count in (1, 2):
        assert (await delivered(backend, data, count)).answers == [Reply.DROP]
    await give_up(backend, Leftover("default", 1, data, "work.default"))  # its answers got lost, to the last
    [letter] = await dead_letters(link, backend.config)
    assert (letter["body"]["run_id"], letter["body"]["flow_name"]) == (stored.run.run_id, "flow")
    assert (await run_now(backend, stored.run.run_id)).status is RunState.FAILED
