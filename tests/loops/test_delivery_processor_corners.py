"""What a worker says to the queue, and when it says nothing: corners that need a queue or an executor that obeys."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest

from pyoco_server.actions.cancel import cancel
from pyoco_server.actions.claim import FlowAttempt, claim_run
from pyoco_server.actions.submit import submit
from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.job import Job, encode_job, job_of
from pyoco_server.core.outcome import Cancelled, Completed, Failed, Outcome, Progress
from pyoco_server.core.run import Caller
from pyoco_server.core.states import RunState
from pyoco_server.core.wheel_sync import Environment
from pyoco_server.executors.port import Work
from pyoco_server.loops import flow_lane as flow_lane_module
from pyoco_server.loops.delivery_processor import DeliveryProcessor
from pyoco_server.loops.flow_lane import FlowLane
from pyoco_server.loops.pulse import Pulse
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.nats.link import Link
from pyoco_server.ports.nats.puller import JetStreamDelivery
from pyoco_server.ports.queue.port import Reply
from support.backends import ANNA, BERT, a_submission, has_ended, jobs_left, opened_backend, run_now, submitted
from support.flow_workers import a_flow_lane, a_worker, terms, worker_with
from support.waiting import eventually

pytestmark = pytest.mark.virtual_time


class Hand:
    """A delivery that remembers what it was answered with."""

    def __init__(self, job: Job, count: int = 1) -> None:
        self.data, self.subject, self.tag, self.count = encode_job(job), f"work.{job.tag}", job.tag, count
        self.answers: list[tuple[Reply, float]] = []

    async def answer(self, reply: Reply, delay_seconds: float = 0.0) -> None:
        self.answers.append((reply, delay_seconds))

    async def hold(self) -> None:
        """Its timer stands still."""


class Puppet:
    """An executor that ends a run when the test says so, and not because it is killed."""

    restarts = 0
    is_able = True

    def __init__(self, outcome: Outcome | None = None) -> None:
        self.begun: list[str] = []
        self.killed = 0
        self.ends: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        if outcome is not None:
            self.ends.set_result(outcome)

    async def start(self) -> None:
        """It is ready."""

    async def stop(self) -> None:
        """Nothing of it is left."""

    async def renew(self, environment: Environment) -> None:
        """It has no use for wheels."""

    @property
    def offered(self) -> None:
        return None

    @property
    def paths_in_use(self) -> frozenset[str]:
        return frozenset()

    async def begin(self, work: Work, when_free: Callable[[], None]) -> Puppet:
        self.begun.append(work.job.run_id)
        return self

    async def outcome(self) -> Outcome:
        return await asyncio.shield(self.ends)

    async def progress(self) -> Progress | None:
        return None

    def ask_cancel(self) -> None:
        """It does not listen."""

    def kill(self) -> bool:
        self.killed += 1
        return True


@pytest.fixture
async def backend(config: NatsBackendConfig) -> AsyncIterator[Backend]:
    async with opened_backend(replace(config, run_heartbeat_interval_sec=0.5)) as backend:
        yield backend


def crew_of(backend: Backend, executor: Any, max_deliver: int = 20) -> DeliveryProcessor:
    return DeliveryProcessor(backend, executor, ANNA, Pulse(), terms(max_deliver))


async def a_job(backend: Backend) -> Job:
    ask = a_submission()
    stored = await submit(backend, Caller(), ask)
    return job_of(stored.run, ask, stored.revision)


class TestAJobThatSomebodyElseWorksOn:
    @pytest.mark.parametrize(
        ("heartbeat", "age", "least", "most"),
        [(0.5, 0.0, 6.5, 7.0), (0.5, 4.0, 2.5, 3.0), (10.0, 0.0, 15.0, 15.0)],
        ids=["just now", "a while ago", "with rare heartbeats"],
    )
    async def test_is_put_off_until_the_other_would_count_as_dead(
        self, backend: Backend, heartbeat: float, age: float, least: float, most: float
    ) -> None:
        """So that a dead worker's run is taken over as soon as may be, and a job's deliveries are not used up."""
        job = await a_job(backend)
        now = time.time()
        held = await claim_run(replace(backend, clock=lambda: now - age), job, BERT, first_delivery=True)
        assert isinstance(held, FlowAttempt)
        config = replace(backend.config, run_heartbeat_interval_sec=heartbeat)
        slow = replace(backend, config=config, clock=lambda: now)
        hand, puppet = Hand(job, 2), Puppet(Completed())
        await crew_of(slow, puppet).work(hand, lambda: None)
        [(reply, delay)] = hand.answers
        assert reply is Reply.LATER
        assert least - 0.2 <= delay <= most
        assert puppet.begun == []


class TestTheLastDeliveries:
    @pytest.mark.parametrize(
        ("max_deliver", "count", "tries"),
        [
            (20, 17, True),
            (20, 18, False),  # were this worker to fall over now, two more could still end the run
            (20, 20, False),
            (6, 3, True),
            (6, 4, False),
            (5, 4, True),
            (5, 5, False),
            (2, 1, True),
            (2, 2, False),
            (1, 1, True),
            (0, 1000, True),  # no limit
        ],
    )
    async def test_are_not_tried_but_ended(self, backend: Backend, max_deliver: int, count: int, tries: bool) -> None:
        """DESIGN 9.8, FLOW-328"""
        job = await a_job(backend)
        hand, puppet = Hand(job, count), Puppet(Completed())
        await crew_of(backend, puppet, max_deliver).work(hand, lambda: None)
        run = await run_now(backend, job.run_id)
        assert puppet.begun == ([job.run_id] if tries else [])
        assert (run.status, run.reason) == ((RunState.COMPLETED, None) if tries else (RunState.FAILED, "max_deliver"))
        assert hand.answers == [(Reply.ACK, 0.0)]

    async def test_of_a_run_somebody_cancelled_cancel_it(self, backend: Backend) -> None:
        """FLOW-20"""
        job = await a_job(backend)
        await cancel(backend, Caller(), job.run_id, None)
        hand = Hand(job, 20)
        await crew_of(backend, Puppet()).work(hand, lambda: None)
        assert (await run_now(backend, job.run_id)).status is RunState.CANCELLED
        assert hand.answers == [(Reply.ACK, 0.0)]


@pytest.mark.parametrize("moment", [0.0, 0.1, 0.3, 0.49])
async def test_a_cancelled_run_is_told_within_two_heartbeat_intervals(backend: Backend, moment: float) -> None:
    """FLOW-17, FLOW-180: whenever between two heartbeats the cancel comes."""

    class Obedient(Puppet):
        def ask_cancel(self) -> None:
            if not self.ends.done():
                self.ends.set_result(Cancelled())

    executor = Obedient()
    worker = a_worker(backend, executor)
    await worker.start()
    run_id = await submitted(backend, "flow")
    await eventually(lambda: executor.begun == [run_id])
    await asyncio.sleep(moment)
    asked_at = time.monotonic()
    await cancel(backend, Caller(), run_id, None)
    await executor.ends
    assert time.monotonic() - asked_at <= 2 * backend.config.run_heartbeat_interval_sec
    await eventually(lambda: has_ended(backend, run_id, RunState.CANCELLED))
    await worker.stop("test", 0.1)


class TestWhatADrainLeavesBehind:
    """A host that outlives its kill must not end a run that may be another's by now, nor answer for its job."""

    @pytest.fixture
    def answers(self, monkeypatch: pytest.MonkeyPatch) -> list[Reply]:
        """What the queue heard."""
        heard: list[Reply] = []
        answer = JetStreamDelivery.answer

        async def note(self: JetStreamDelivery, reply: Reply, delay_seconds: float = 0.0) -> None:
            heard.append(reply)
            await answer(self, reply, delay_seconds)

        monkeypatch.setattr(JetStreamDelivery, "answer", note)
        monkeypatch.setattr(flow_lane_module, "_KILLED_SECONDS", 0.2)
        return heard

    async def left(self, backend: Backend, puppet: Puppet, **meanwhile: Any) -> tuple[FlowLane, str]:
        lane = a_flow_lane(backend, puppet)
        worker = worker_with(backend, lane)
        await worker.start()
        run_id = await submitted(backend, "flow")
        await eventually(lambda: puppet.begun == [run_id])
        if meanwhile.get("cancel"):
            await cancel(backend, Caller(), run_id, None)
        await worker.stop("sigterm", 0.1)
        assert puppet.killed >= 1
        return lane, run_id

    async def test_says_nothing_of_a_run_that_was_handed_back(
        self, link: Link, backend: Backend, answers: list[Reply]
    ) -> None:
        puppet = Puppet()
        lane, run_id = await self.left(backend, puppet)
        assert (await run_now(backend, run_id)).attempt_id is None  # anybody may claim it
        job = Job(run_id=run_id, flow_name="flow", tag="default", submitted_at=1.0)
        again = await claim_run(backend, job, BERT, first_delivery=False)
        assert isinstance(again, FlowAttempt)
        puppet.ends.set_result(Failed(message="killed"))
        await eventually(lambda: not lane._tasks)
        assert await run_now(backend, run_id) == again.run
        assert set(answers) <= {Reply.NOTHING}
        assert len(await jobs_left(link, backend.config)) == 1

    async def test_leaves_a_cancelled_run_to_others(self, link: Link, backend: Backend, answers: list[Reply]) -> None:
        puppet = Puppet()
        lane, run_id = await self.left(backend, puppet, cancel=True)
        puppet.ends.set_result(Completed())
        await eventually(lambda: not lane._tasks)
        assert (await run_now(backend, run_id)).status is RunState.CANCELLING
        assert set(answers) <= {Reply.NOTHING}


async def test_a_worker_that_can_run_nothing_asks_for_nothing(backend: Backend) -> None:
    """Its hosts do not start for a while, say: what it took and gave back would be ended as delivered too often."""
    puppet = Puppet(Completed())
    puppet.is_able = False
    lane = a_flow_lane(backend, puppet)
    worker = worker_with(backend, lane)
    await worker.start()
    intake = lane._intake
    assert intake is not None
    want, wanted = intake.want, list[int]()

    async def seen(count: int) -> None:
        wanted.append(count)
        await want(count)

    intake.want = seen  # type: ignore[method-assign]
    run_id = await submitted(backend, "flow")
    await eventually(lambda: len(wanted) >= 2)
    assert set(wanted) == {0}
    puppet.is_able = True
    await eventually(lambda: has_ended(backend, run_id, RunState.COMPLETED))
    assert (await run_now(backend, run_id)).attempt == 1
    await worker.stop("test", 0.1)


async def test_a_worker_whose_asking_failed_asks_again(backend: Backend, caplog: pytest.LogCaptureFixture) -> None:
    """A defect in there must not leave a worker that lives, beats and takes nothing."""
    puppet = Puppet(Completed())
    lane = a_flow_lane(backend, puppet)
    worker = worker_with(backend, lane)
    await worker.start()
    intake = lane._intake
    assert intake is not None
    want, asked = intake.want, 0

    async def fail_once(count: int) -> None:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise RuntimeError("a defect")
        await want(count)

    intake.want = fail_once  # type: ignore[method-assign]
    run_ids = [await submitted(backend, "flow") for _ in range(3)]
    for run_id in run_ids:
        await eventually(lambda run_id=run_id: has_ended(backend, run_id, RunState.COMPLETED))  # type: ignore[misc]
    assert "requesting jobs failed" in caplog.text
    await worker.stop("test", 0.1)
