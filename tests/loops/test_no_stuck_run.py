"""Every state a run can be left in, one test for each row of the table in `loops/rescuer.py`.

The keepers are real and look more often than usual; the workers are hands that take a job and do what a row says.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pyoco_server.actions.beat import beat_run, give_back
from pyoco_server.actions.cancel import cancel
from pyoco_server.actions.claim import Busy, Held, Spent, claim_run
from pyoco_server.actions.finish import Ended, finish
from pyoco_server.actions.submit import submit
from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.job import decode_job
from pyoco_server.core.outcome import Completed
from pyoco_server.core.run import Caller, Owner, Run
from pyoco_server.core.states import RunState
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.nats.link import Link
from pyoco_server.ports.queue.port import Delivery, Intake, Reply
from pyoco_server.ports.runs.port import Stored
from support.backends import (
    ANNA,
    BERT,
    a_submission,
    dead_letters,
    has_ended,
    jobs_left,
    opened_backend,
    recorded,
    run_now,
)
from support.keepers import keeping
from support.unhurried import a_world, unhurried
from support.waiting import eventually

ACK_WAIT = 0.5
#: After so much silence a worker counts as dead.
SILENCE = 1.0


def timers(scale: float) -> dict[str, Any]:
    """Short enough to wait for. Claims fence after 5 s and three heartbeats, as everywhere."""
    return {
        "consumer_ack_wait_sec": ACK_WAIT * scale,
        "consumer_max_deliver": 2,
        "ack_progress_interval_sec": 0.1 * scale,
        "run_heartbeat_interval_sec": 0.1 * scale,
        "worker_disconnect_timeout_sec": SILENCE * scale,
        "abandon_after_sec": 0.5 * scale,
    }


@pytest.fixture
async def backend(config: NatsBackendConfig) -> AsyncIterator[Backend]:
    async with opened_backend(replace(config, **timers(1.0))) as backend:
        yield backend


def patiently() -> dict[str, Any]:
    """For who looks at deliveries: on a busy machine, there may be more of them than anybody asked for."""
    return timers(1.0) | {"consumer_max_deliver": 20}


@pytest.fixture
def long_ago(backend: Backend) -> Backend:
    """The same world, as somebody sees it who did everything a minute ago."""
    return replace(backend, clock=lambda: time.time() - 60)


class Worker:
    """Serves the tag for as long as it is open, and does what it is told with what it gets."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.hand: list[Delivery] = []
        self._intake: Intake | None = None

    async def __aenter__(self) -> Worker:
        self._intake = await self._backend.queue.open_intake(["default"], self.hand.append)
        await self._intake.want(1)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._intake is not None
        await self._intake.close()

    async def took(self, count: int = 1) -> Delivery:
        """Returns once it was given so many deliveries; it answers for none of them. It goes on asking."""
        assert self._intake is not None
        while len(self.hand) < count:
            await eventually(lambda: bool(self.hand))
            await self._intake.want(1)
            await self._intake.tick()
            await asyncio.sleep(0.02)
        await self._intake.want(1)
        return self.hand[count - 1]


async def claimed(backend: Backend, delivery: Delivery, owner: Owner = ANNA) -> Held:
    held = await claim_run(backend, decode_job(delivery.data), owner, first_delivery=delivery.count == 1)
    assert isinstance(held, Held), held
    return held


async def submitted(backend: Backend) -> str:
    return (await submit(backend, Caller(), a_submission())).run.run_id


async def ended(backend: Backend, run_id: str, seconds: float = 40.0) -> Run:
    await eventually(lambda: has_ended(backend, run_id), seconds)
    return await run_now(backend, run_id)


async def none_left(link: Link, config: NatsBackendConfig) -> bool:
    return await jobs_left(link, config) == []


async def stays(backend: Backend, run_id: str, status: RunState, seconds: float = 1.5) -> None:
    """Nobody touches it, though the keepers have looked several times."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        assert (await run_now(backend, run_id)).status is status
        await asyncio.sleep(0.05)


async def letters_of(link: Link, backend: Backend) -> list[tuple[str, str, Any]]:
    letters = [letter["body"] for letter in await dead_letters(link, backend.config)]
    return [(letter["run_id"], letter["reason"], letter.get("num_delivered")) for letter in letters]


class TestAPendingRun:
    async def test_whose_job_waits_is_left_alone(self, backend: Backend, long_ago: Backend, tmp_path: Path) -> None:
        """Unserved: it waits for as long as it takes, and the first worker gets it."""
        run_id = await submitted(long_ago)
        async with keeping(backend, tmp_path):
            await stays(backend, run_id, RunState.PENDING)
            async with Worker(backend) as worker:
                assert decode_job((await worker.took()).data).run_id == run_id

    @pytest.mark.parametrize("served", [True, False])
    async def test_whose_job_is_given_up_fails_within_seconds(
        self, link: Link, backend: Backend, tmp_path: Path, served: bool
    ) -> None:
        """DESIGN 9.8, FLOW-295: with no other traffic on the tag, whether or not a worker asks for more."""
        run_id = await submitted(backend)
        async with keeping(backend, tmp_path):
            async with Worker(backend) as worker:
                await worker.took(2)
                last = time.monotonic()
                if served:
                    run = await ended(backend, run_id)
            if not served:
                run = await ended(backend, run_id)
            assert time.monotonic() - last < ACK_WAIT + 60.0
            await eventually(lambda: none_left(link, backend.config))
        assert (run.status, run.reason, run.attempt) == (RunState.FAILED, "max_deliver", 0)
        assert await letters_of(link, backend) == [(run_id, "max_deliver", 2)]

    async def test_without_a_job_fails(self, link: Link, backend: Backend, long_ago: Backend, tmp_path: Path) -> None:
        """FLOW-76"""
        stored, _ = await recorded(long_ago)
        async with keeping(backend, tmp_path):
            run = await ended(backend, stored.run.run_id)
            await eventually(lambda: _has_letters(link, backend, 1))
        assert (run.status, run.reason) == (RunState.FAILED, "abandoned")

    async def test_without_a_job_fails_though_a_long_run_of_its_tag_goes_on(
        self, link: Link, nats_url: str, tmp_path: Path
    ) -> None:
        """The oldest job of the tag is in somebody's hand for days; what came after it must not count as waiting."""

        async def scene(scale: float) -> None:
            async with a_world(link, nats_url, **timers(scale)) as backend, Worker(backend) as worker:
                long_ago = replace(backend, clock=lambda: time.time() - 60)
                await submitted(long_ago)
                held = await claimed(backend, await worker.took())
                lost, _ = await recorded(long_ago)
                async with living(backend, worker.hand[0], held), keeping(backend, tmp_path / f"{scale}"):
                    assert (await ended(backend, lost.run.run_id)).reason == "abandoned"
                    assert (await run_now(backend, held.run.run_id)).status is RunState.RUNNING

        await unhurried(scene)


@contextlib.asynccontextmanager
async def living(backend: Backend, delivery: Delivery | None, held: Held) -> AsyncIterator[None]:
    """Its worker gives signs of life, and holds its job if it has one."""

    async def live() -> None:
        while True:
            if delivery is not None:
                await delivery.hold()
            await beat_run(backend, held, None)
            await asyncio.sleep(0.05)

    life = asyncio.create_task(live())
    try:
        yield
    finally:
        life.cancel()


async def _has_letters(link: Link, backend: Backend, count: int) -> bool:
    return len(await dead_letters(link, backend.config)) == count


class TestARunningRun:
    async def test_of_a_living_worker_is_left_alone_with_and_without_a_job(
        self, link: Link, nats_url: str, tmp_path: Path
    ) -> None:
        async def scene(scale: float) -> None:
            async with (
                a_world(link, nats_url, **timers(scale)) as backend,
                Worker(backend) as worker,
                keeping(backend, tmp_path / f"{scale}"),
            ):
                run_id = await submitted(backend)
                delivery = await worker.took()
                held = await claimed(backend, delivery)
                async with living(backend, delivery, held):
                    await stays(backend, run_id, RunState.RUNNING, 1.5 * scale)
                    await delivery.answer(Reply.ACK)  # its job is gone: somebody has purged the queue
                    await eventually(lambda: none_left(link, backend.config))
                    await stays(backend, run_id, RunState.RUNNING, 1.5 * scale)
                assert isinstance(await finish(backend, held, Completed()), Ended)

        await unhurried(scene)

    async def test_of_a_dead_worker_is_delivered_again(self, link: Link, nats_url: str, tmp_path: Path) -> None:
        """FLOW-18: served or not, the keeper leaves it to the queue."""
        async with a_world(link, nats_url, **patiently()) as backend, keeping(backend, tmp_path):
            long_ago = replace(backend, clock=lambda: time.time() - 60)
            run_id = await submitted(long_ago)
            async with Worker(backend) as worker:
                await claimed(long_ago, await worker.took())
            await stays(backend, run_id, RunState.RUNNING)  # nobody serves the tag
            async with Worker(backend) as other:
                again = await claimed(backend, await other.took(), BERT)
                assert (again.run.attempt, again.run.worker_id) == (2, "bert")

    async def test_that_a_dead_worker_had_claimed_ahead_is_delivered_again_too(self, link: Link, nats_url: str) -> None:
        """Nobody but the worker it was delivered to may answer for it: it waits for its ack timer, no longer."""
        async with a_world(link, nats_url, **patiently()) as backend:
            await submitted(backend)
            async with Worker(backend) as dead:
                await claimed(replace(backend, clock=lambda: time.time() - 60), await dead.took())
                began = time.monotonic()
            async with Worker(backend) as worker:
                assert (await claimed(backend, await worker.took(), BERT)).run.attempt == 2
                assert time.monotonic() - began < ACK_WAIT + 60

    @pytest.mark.parametrize("served", [True, False])
    async def test_of_a_dead_worker_whose_job_is_given_up_fails(
        self, link: Link, backend: Backend, long_ago: Backend, tmp_path: Path, served: bool
    ) -> None:
        run_id = await submitted(backend)
        async with keeping(backend, tmp_path):
            async with Worker(backend) as worker:
                await claimed(long_ago, await worker.took())
                await worker.took(2)
                if served:
                    await ended(backend, run_id)
            run = await ended(backend, run_id)
            await eventually(lambda: none_left(link, backend.config))
        assert (run.status, run.reason, run.attempt) == (RunState.FAILED, "max_deliver", 1)
        assert await letters_of(link, backend) == [(run_id, "max_deliver", 2)]

    async def test_of_a_living_worker_whose_job_is_given_up_is_waited_for(
        self, link: Link, nats_url: str, tmp_path: Path
    ) -> None:
        """Its ack comes too late to count, so the job would stay for ever: it goes when the run has ended."""

        async def scene(scale: float) -> None:
            async with a_world(link, nats_url, **timers(scale)) as backend:
                run_id = await submitted(backend)
                async with keeping(backend, tmp_path / f"{scale}"), Worker(backend) as worker:
                    held = await claimed(backend, await worker.took())
                    async with living(backend, None, held):
                        await worker.took(2)
                        await eventually(lambda: _has_advisories(link, backend, 1))
                        await stays(backend, run_id, RunState.RUNNING, 1.5 * scale)
                    assert isinstance(await finish(backend, held, Completed()), Ended)
                    await worker.hand[-1].answer(Reply.ACK)
                    await eventually(lambda: none_left(link, backend.config))
                assert (await run_now(backend, run_id)).status is RunState.COMPLETED
                assert await letters_of(link, backend) == []

        await unhurried(scene)

    async def test_of_a_dead_worker_without_a_job_fails(
        self, link: Link, backend: Backend, long_ago: Backend, tmp_path: Path
    ) -> None:
        run_id = await submitted(long_ago)
        async with Worker(backend) as worker:
            delivery = await worker.took()
            await claimed(long_ago, delivery)
            await delivery.answer(Reply.ACK)
        await eventually(lambda: none_left(link, backend.config))
        async with keeping(backend, tmp_path):
            run = await ended(backend, run_id)
        assert (run.status, run.reason) == (RunState.FAILED, "abandoned")

    async def test_that_was_handed_back_waits_for_the_next_worker(
        self, link: Link, nats_url: str, tmp_path: Path
    ) -> None:
        async with a_world(link, nats_url, **patiently()) as backend:
            long_ago = replace(backend, clock=lambda: time.time() - 60)
            run_id = await submitted(long_ago)
            async with Worker(backend) as worker:
                delivery = await worker.took()
                assert await give_back(long_ago, await claimed(long_ago, delivery))
                await delivery.answer(Reply.LATER)
            async with keeping(backend, tmp_path):
                await stays(backend, run_id, RunState.RUNNING)
                async with Worker(backend) as other:
                    assert (await claimed(backend, await other.took(), BERT)).run.attempt == 2


async def _has_advisories(link: Link, backend: Backend, count: int) -> bool:
    info = await link.api(f"STREAM.INFO.{backend.config.advisory_stream}", {}, dict[str, Any])
    return bool(info["state"]["last_seq"] == count)


class TestACancelledRun:
    @pytest.fixture
    async def backend(self, backend: Backend) -> Backend:
        """What ends it is not the look at abandoned runs: that one comes much later."""
        return replace(backend, config=replace(backend.config, abandon_after_sec=600.0))

    @pytest.mark.parametrize("job", ["waits", "is gone"])
    async def test_that_nobody_has_begun_ends_soon(
        self, link: Link, backend: Backend, tmp_path: Path, job: str
    ) -> None:
        """FLOW-17, FLOW-184, and no stuck run: no worker serves its tag."""
        run_id = await submitted(backend) if job == "waits" else (await recorded(backend))[0].run.run_id
        async with keeping(backend, tmp_path):
            asked = await cancel(backend, Caller(), run_id, "enough")
            assert asked.run.status is RunState.CANCELLING
            run = await ended(backend, run_id)
        assert (run.status, run.error, run.reason, run.attempt) == (RunState.CANCELLED, None, None, 0)
        assert run.cancel_reason == "enough"
        assert await letters_of(link, backend) == []  # FLOW-182
        if job == "waits":
            async with Worker(backend) as worker:
                taken = decode_job((await worker.took()).data)
                assert isinstance(await claim_run(backend, taken, ANNA, first_delivery=True), Spent)

    async def test_of_a_living_worker_is_left_to_it(self, link: Link, nats_url: str, tmp_path: Path) -> None:
        async def scene(scale: float) -> None:
            settings = timers(scale) | {"abandon_after_sec": 600.0}
            async with (
                a_world(link, nats_url, **settings) as backend,
                Worker(backend) as worker,
                keeping(backend, tmp_path / f"{scale}"),
            ):
                run_id = await submitted(backend)
                held = await claimed(backend, await worker.took())
                async with living(backend, worker.hand[0], held):
                    await cancel(backend, Caller(), run_id, None)
                    await stays(backend, run_id, RunState.CANCELLING, 1.5 * scale)

        await unhurried(scene)

    @pytest.mark.parametrize("job", ["in hand", "gone"])
    async def test_of_a_dead_worker_ends_though_nobody_serves_the_tag(
        self, link: Link, backend: Backend, tmp_path: Path, job: str
    ) -> None:
        run_id = await submitted(backend)
        async with Worker(backend) as worker:
            delivery = await worker.took()
            await claimed(replace(backend, clock=lambda: time.time() - 4), delivery)
            if job == "gone":
                await delivery.answer(Reply.ACK)
                await eventually(lambda: none_left(link, backend.config))
        await cancel(backend, Caller(), run_id, None)
        async with keeping(backend, tmp_path):
            run = await ended(backend, run_id)
        assert (run.status, run.attempt, run.reason) == (RunState.CANCELLED, 1, None)
        assert await letters_of(link, backend) == []

    async def test_is_not_ended_before_its_worker_has_been_silent_for_long_enough(
        self, backend: Backend, tmp_path: Path
    ) -> None:
        patient = replace(backend, config=replace(backend.config, worker_disconnect_timeout_sec=900.0))
        run_id = await submitted(backend)
        async with Worker(backend) as worker:
            await claimed(replace(backend, clock=lambda: time.time() - 15), await worker.took())
        await cancel(backend, Caller(), run_id, None)
        async with keeping(patient, tmp_path):
            await stays(backend, run_id, RunState.CANCELLING)
        async with keeping(backend, tmp_path):
            assert (await ended(backend, run_id)).status is RunState.CANCELLED

    async def test_whose_job_is_given_up_is_cancelled_and_leaves_no_letter(
        self, link: Link, backend: Backend, tmp_path: Path
    ) -> None:
        """FLOW-20, FLOW-182"""
        run_id = await submitted(backend)
        async with Worker(backend) as worker:
            await worker.took(2)
        await cancel(backend, Caller(), run_id, None)
        async with keeping(backend, tmp_path, quiet_seconds=900):  # what ends it is not the look at cancelled runs
            run = await ended(backend, run_id)
            await eventually(lambda: none_left(link, backend.config))
        assert (run.status, run.error) == (RunState.CANCELLED, None)
        assert await letters_of(link, backend) == []


async def test_a_job_delivered_while_its_worker_lives_is_put_off(backend: Backend) -> None:
    """FLOW-311: two executions must not overlap. It counts as alive for 5 s and three heartbeats."""
    calm = replace(backend, config=replace(backend.config, run_heartbeat_interval_sec=300.0))
    await submitted(backend)
    async with Worker(backend) as worker:
        held = await claimed(backend, await worker.took())
        again = await worker.took(2)
        now = backend.clock()
        busy = await claim_run(replace(calm, clock=lambda: now), decode_job(again.data), BERT, first_delivery=False)
    assert isinstance(busy, Busy)
    assert busy.seconds == pytest.approx(held.run.heartbeat_at + 905 - now)


async def test_three_keepers_at_once_end_each_run_once_and_write_one_letter_each(
    link: Link, backend: Backend, long_ago: Backend, tmp_path: Path
) -> None:
    """Work is claimed by compare-and-set; a record has one end whoever looks at it."""
    given_up = [await submitted(backend) for _ in range(6)]
    async with Worker(backend) as worker:
        await worker.took(12)
    lost = [(await recorded(long_ago, a_submission(tag="other")))[0].run.run_id for _ in range(6)]
    cancelled = [await submitted(long_ago) for _ in range(6)]
    for run_id in cancelled:
        await cancel(backend, Caller(), run_id, None)
    ends: dict[str, list[Stored]] = {}
    runs = backend.runs

    class Counting:
        """Every end that was really written."""

        def __getattr__(self, name: str) -> Any:
            return getattr(runs, name)

        async def replace(self, run: Run, revision: int) -> Any:
            written = await runs.replace(run, revision)
            if isinstance(written, Stored) and written.run.is_terminal:
                ends.setdefault(run.run_id, []).append(written)
            return written

    async with keeping(replace(backend, runs=Counting()), tmp_path, count=3):
        for run_id in given_up + lost + cancelled:
            await ended(backend, run_id)
        await eventually(lambda: _has_letters(link, backend, 12))
        await eventually(lambda: _has_jobs(link, backend, len(cancelled)))
    assert {run_id: len(written) for run_id, written in ends.items()} == dict.fromkeys(given_up + lost + cancelled, 1)
    reasons = {run_id: reason for run_id, reason, _ in await letters_of(link, backend)}
    assert reasons == dict.fromkeys(given_up, "max_deliver") | dict.fromkeys(lost, "abandoned")
    assert {(await run_now(backend, run_id)).status for run_id in cancelled} == {RunState.CANCELLED}


async def _has_jobs(link: Link, backend: Backend, count: int) -> bool:
    return len(await jobs_left(link, backend.config)) == count
