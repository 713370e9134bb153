"""Every state a run can be left in, one test for each row of the table in `loops/rescuer.py`.

The keepers are real and look more often than usual; the workers are hands that take a job and do what a row says.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pyoco_server.actions.cancel import cancel
from pyoco_server.actions.claim import Busy, claim_run
from pyoco_server.actions.finish import Ended, finish
from pyoco_server.actions.put_back import put_back_run
from pyoco_server.core.job import decode_job
from pyoco_server.core.outcome import Completed
from pyoco_server.core.run import Caller, Run
from pyoco_server.core.states import RunState
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.nats.link import Link
from pyoco_server.ports.queue.port import Reply
from pyoco_server.ports.runs.port import Stored
from support.backends import (
    BERT,
    a_submission,
    a_world,
    dead_letters,
    jobs_left,
    recorded,
    run_now,
)
from support.keepers import keeping
from support.stuck_runs import (
    ACK_WAIT,
    Worker,
    backend,
    claimed,
    ended,
    letters_of,
    living,
    none_left,
    stays,
    submitted,
    timers,
)
from support.waiting import eventually

__all__ = ["backend"]

pytestmark = pytest.mark.virtual_time


def patiently() -> dict[str, Any]:
    """For who looks at deliveries: on a busy machine, there may be more of them than anybody asked for."""
    return timers(1.0) | {"consumer_max_deliver": 20}


@pytest.fixture
def long_ago(backend: Backend) -> Backend:
    """The same world, as somebody sees it who did everything a minute ago."""
    return replace(backend, clock=lambda: time.time() - 60)


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
        """The oldest job of the tag is being processed for days; later jobs must not count as waiting."""
        async with a_world(link, nats_url, **timers(1.0)) as backend, Worker(backend) as worker:
            long_ago = replace(backend, clock=lambda: time.time() - 60)
            await submitted(long_ago)
            held = await claimed(backend, await worker.took())
            lost, _ = await recorded(long_ago)
            async with living(backend, worker.hand[0], held), keeping(backend, tmp_path):
                assert (await ended(backend, lost.run.run_id)).reason == "abandoned"
                assert (await run_now(backend, held.run.run_id)).status is RunState.RUNNING


async def _has_letters(link: Link, backend: Backend, count: int) -> bool:
    return len(await dead_letters(link, backend.config)) == count


class TestARunningRun:
    async def test_of_a_living_worker_is_left_alone_with_and_without_a_job(
        self, link: Link, nats_url: str, tmp_path: Path
    ) -> None:
        async with (
            a_world(link, nats_url, **timers(1.0)) as backend,
            Worker(backend) as worker,
            keeping(backend, tmp_path),
        ):
            run_id = await submitted(backend)
            delivery = await worker.took()
            held = await claimed(backend, delivery)
            async with living(backend, delivery, held):
                await stays(backend, run_id, RunState.RUNNING, 1.5)
                await delivery.answer(Reply.ACK)  # its job is gone: the queue was purged
                await eventually(lambda: none_left(link, backend.config))
                await stays(backend, run_id, RunState.RUNNING, 1.5)
            assert isinstance(await finish(backend, held, Completed()), Ended)

    async def test_of_a_dead_worker_is_delivered_again(self, link: Link, nats_url: str, tmp_path: Path) -> None:
        """FLOW-18: served or not, the keeper leaves it to the queue."""
        async with a_world(link, nats_url, **patiently()) as backend, keeping(backend, tmp_path):
            long_ago = replace(backend, clock=lambda: time.time() - 60)
            run_id = await submitted(long_ago)
            async with Worker(backend) as worker:
                await claimed(long_ago, await worker.took())
            await stays(backend, run_id, RunState.RUNNING)  # no worker serves the tag
            async with Worker(backend) as other:
                again = await claimed(backend, await other.took(), BERT)
                assert (again.run.attempt, again.run.worker_id) == (2, "bert")

    async def test_that_a_dead_worker_had_claimed_ahead_is_delivered_again_too(self, link: Link, nats_url: str) -> None:
        """Only the worker that it was delivered to may answer it: it waits for its ack timer, no longer."""
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
        async with a_world(link, nats_url, **timers(1.0)) as backend:
            run_id = await submitted(backend)
            async with keeping(backend, tmp_path), Worker(backend) as worker:
                held = await claimed(backend, await worker.took())
                async with living(backend, None, held):
                    await worker.took(2)
                    await eventually(lambda: _has_advisories(link, backend, 1))
                    await stays(backend, run_id, RunState.RUNNING, 1.5)
                assert isinstance(await finish(backend, held, Completed()), Ended)
                await worker.hand[-1].answer(Reply.ACK)
                await eventually(lambda: none_left(link, backend.config))
            assert (await run_now(backend, run_id)).status is RunState.COMPLETED
            assert await letters_of(link, backend) == []

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
                assert await put_back_run(long_ago, await claimed(long_ago, delivery))
                await delivery.answer(Reply.LATER)
            async with keeping(backend, tmp_path):
                await stays(backend, run_id, RunState.PENDING)
                async with Worker(backend) as other:
                    assert (await claimed(backend, await other.took(), BERT)).run.attempt == 2


async def _has_advisories(link: Link, backend: Backend, count: int) -> bool:
    info = await link.api(f"STREAM.INFO.{backend.config.advisory_stream}", {}, dict[str, Any])
    return bool(info["state"]["last_seq"] == count)


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
    """Work is claimed by compare-and-set; a record has one end for every reader."""
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
