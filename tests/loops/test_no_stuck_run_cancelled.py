"""Every state a cancelled run can be left in (see the table in `loops/rescuer.py`)."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from pyoco_server.actions.cancel import cancel
from pyoco_server.actions.claim import Spent, claim_run
from pyoco_server.core.job import decode_job
from pyoco_server.core.run import Caller
from pyoco_server.core.states import RunState
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.nats.link import Link
from pyoco_server.ports.queue.port import Reply
from support.backends import (
    ANNA,
    a_world,
    recorded,
)
from support.keepers import keeping
from support.stuck_runs import Worker, backend, claimed, ended, letters_of, living, none_left, stays, submitted, timers
from support.waiting import eventually

__all__ = ["backend"]

pytestmark = pytest.mark.virtual_time


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
        settings = timers(1.0) | {"abandon_after_sec": 600.0}
        async with (
            a_world(link, nats_url, **settings) as backend,
            Worker(backend) as worker,
            keeping(backend, tmp_path),
        ):
            run_id = await submitted(backend)
            held = await claimed(backend, await worker.took())
            async with living(backend, worker.hand[0], held):
                await cancel(backend, Caller(), run_id, None)
                await stays(backend, run_id, RunState.CANCELLING, 1.5)

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
