"""A run that no worker will ever take is ended; one that merely waits is left alone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from pyoco_server.actions.cancel import cancel
from pyoco_server.actions.claim import FlowAttempt, Spent, claim_run
from pyoco_server.actions.rescue import may_wait, rescue
from pyoco_server.actions.submit import submit
from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.flow_moves import accept
from pyoco_server.core.job import job_of
from pyoco_server.core.run import Caller, Owner, Submission
from pyoco_server.core.states import RunState
from pyoco_server.errors import Corrupt
from pyoco_server.loops.feeder import IndexFeeder
from pyoco_server.loops.rescuer import Rescuer
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.index.sqlite import SqliteIndex
from pyoco_server.ports.nats.link import Link
from pyoco_server.ports.queue.port import Reply
from pyoco_server.ports.runs.port import Stored
from pyoco_server.wiring import backend as wiring
from support.backends import jobs_left
from support.waiting import eventually

ASK = Submission(flow_name="f", tag="default", tags=("default",), params={})
QUIET = 60.0


async def recorded(backend: Backend, seconds_ago: float, tag: str = "default") -> Stored:
    """What a gateway leaves behind that dies between the record and the job."""
    run = accept(replace(ASK, tag=tag), Caller(), backend.new_id(), backend.clock() - seconds_ago)
    stored = await backend.runs.create(run)
    assert isinstance(stored, Stored)
    return stored


@pytest.mark.parametrize(
    ("attempt", "oldest", "waits"),
    [
        (0, None, False),
        (0, 999.0, True),
        (0, 1039.0, True),  # a job may be stored that much later than its record
        (0, 1041.0, False),
        (1, 999.0, True),
        (1, 1001.0, False),  # a claimed run had its job before its record was written
    ],
)
def test_a_job_waits_only_where_jobs_are_as_old(attempt: int, oldest: float | None, waits: bool) -> None:
    run = replace(accept(ASK, Caller(), "id", 5.0), attempt=attempt)
    assert may_wait(Stored(run, 1, stored_at=1000.0), oldest) is waits


class TestRescue:
    @pytest.fixture
    async def backend(self, config: NatsBackendConfig) -> AsyncIterator[Backend]:
        async with wiring.open_backend(config, "tests") as backend:
            yield backend

    async def test_a_record_without_a_job_fails(self, backend: Backend) -> None:
        """FLOW-76: the orphan of a submission that was cut short."""
        stored = await recorded(backend, 100)
        ended = await rescue(backend, stored.run.run_id, QUIET, submit_seconds=0.0)
        assert ended is not None
        assert (ended.status, ended.reason, ended.ended_by) == (RunState.FAILED, "abandoned", "keeper")
        assert await rescue(backend, stored.run.run_id, QUIET, submit_seconds=0.0) is None

    async def test_a_run_of_a_kind_that_comes_later_is_left_alone(self, backend: Backend) -> None:
        """FLOW-76: a newer gateway beside this keeper has its job in a queue of its own."""
        stored = await recorded(backend, 100)
        newer = await backend.runs.replace(replace(stored.run, kind="later"), stored.revision)
        assert isinstance(newer, Stored)
        assert await rescue(backend, stored.run.run_id, QUIET, submit_seconds=0.0) is None

    async def test_a_cancelled_record_without_a_job_is_cancelled(self, backend: Backend) -> None:
        """FLOW-20: the only end of a cancelled run."""
        stored = await recorded(backend, 200)
        earlier = replace(backend, clock=lambda: stored.run.submitted_at + 1)
        asked = await cancel(earlier, Caller(), stored.run.run_id, None)
        assert asked.run.status is RunState.CANCELLING
        assert await rescue(backend, stored.run.run_id, QUIET) is None
        ended = await rescue(backend, stored.run.run_id, 0.0)
        assert ended is not None
        assert ended.status is RunState.CANCELLED

    async def test_a_run_cancelled_before_it_began_need_not_wait_for_its_job(self, backend: Backend) -> None:
        """FLOW-17, FLOW-184: its tag may have no worker, and a worker that takes the job later finds it ended."""
        stored = await submit(replace(backend, clock=lambda: backend.clock() - 200), Caller(), ASK)
        earlier = replace(backend, clock=lambda: stored.run.submitted_at + 1)
        await cancel(earlier, Caller(), stored.run.run_id, None)
        assert await rescue(backend, stored.run.run_id, QUIET) is None
        ended = await rescue(backend, stored.run.run_id, 0.0)
        assert ended is not None
        assert ended.status is RunState.CANCELLED
        job = job_of(stored.run, ASK, stored.revision)
        assert isinstance(await claim_run(backend, job, Owner("w", "i"), first_delivery=True), Spent)

    async def test_a_young_record_is_left_alone(self, backend: Backend) -> None:
        young = (await recorded(backend, 10)).run.run_id
        assert await rescue(backend, young, QUIET, submit_seconds=0.0) is None

    async def test_a_run_whose_job_waits_is_left_alone(self, backend: Backend) -> None:
        stored = await recorded(backend, 100)
        await backend.queue.put(job_of(stored.run, ASK, stored.revision))
        assert await rescue(backend, stored.run.run_id, QUIET, submit_seconds=0.0) is None

    async def test_nobodys_clock_but_the_stores_is_trusted(self, backend: Backend) -> None:
        """A gateway an hour behind has submitted it; its job waits all the same."""
        stored = await recorded(backend, 3600)
        await backend.queue.put(job_of(stored.run, ASK, stored.revision))
        assert await rescue(backend, stored.run.run_id, QUIET, submit_seconds=0.0) is None

    async def test_a_run_under_way_is_left_alone(self, backend: Backend) -> None:
        """Without a job in the queue and without a worker in the registry: only its last write protects it."""
        stored = await recorded(backend, 100)
        run_id = stored.run.run_id
        held = await claim_run(backend, job_of(stored.run, ASK, stored.revision), Owner("w", "i"), first_delivery=True)
        assert isinstance(held, FlowAttempt)
        assert await rescue(backend, run_id, 0.0) is None  # its worker may be alive

        def later(seconds: float) -> Backend:
            return replace(backend, clock=lambda: held.run.heartbeat_at + seconds)

        assert await rescue(later(QUIET - 1), run_id, QUIET) is None
        ended = await rescue(later(QUIET + 1), run_id, QUIET)
        assert ended is not None
        assert ended.reason == "abandoned"

    async def test_the_keeper_finds_it_and_buries_a_letter(self, backend: Backend, tmp_path: Path) -> None:
        lost, waiting = await recorded(backend, 1000, "other"), await submit(backend, Caller(), ASK)
        index = SqliteIndex(tmp_path / "index.sqlite")
        feeder = IndexFeeder(backend.runs, index)
        rescuer = Rescuer(backend, index, feeder, every_seconds=0.1, submit_seconds=0.0)
        await feeder.start()
        await rescuer.start()

        async def ended() -> bool:
            found = await backend.runs.find(lost.run.run_id)
            return isinstance(found, Stored) and found.run.status is RunState.FAILED

        await eventually(ended)
        await rescuer.stop()
        await feeder.stop()
        found = await backend.runs.find(waiting.run.run_id)
        assert isinstance(found, Stored)
        assert found.run.status is RunState.PENDING

    async def test_one_unreadable_thing_does_not_stop_the_keeper(
        self, backend: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        lost = await recorded(backend, 1000)

        async def unreadable(tag: str, after: int = 0) -> None:
            raise Corrupt(tag)

        monkeypatch.setattr(backend.queue, "leftover", unreadable)
        index = SqliteIndex(tmp_path / "index.sqlite")
        feeder = IndexFeeder(backend.runs, index)
        await feeder.start()
        assert await feeder.caught_up(60)
        await Rescuer(backend, index, feeder, submit_seconds=0.0).turn()
        await feeder.stop()
        found = await backend.runs.find(lost.run.run_id)
        assert isinstance(found, Stored)
        assert found.run.status is RunState.FAILED

    async def test_a_job_that_was_delivered_too_often_is_ended_and_removed(
        self, link: Link, config: NatsBackendConfig, tmp_path: Path
    ) -> None:
        """DESIGN 9.8: what the queue will never deliver again has an owner, too."""
        settings = replace(config, consumer_max_deliver=1, consumer_ack_wait_sec=0.3, ack_progress_interval_sec=0.1)
        async with wiring.open_backend(replace(settings, abandon_after_sec=0.2), "tests") as backend:
            intake = await backend.queue.open_intake(["default"], lambda _: None)
            stuck = await submit(backend, Caller(), ASK)
            assert await intake.take(60) is not None  # and never answered
            index = SqliteIndex(tmp_path / "index.sqlite")
            feeder = IndexFeeder(backend.runs, index)
            rescuer = Rescuer(backend, index, feeder, every_seconds=0.1)
            await feeder.start()
            await rescuer.start()

            async def cleared() -> bool:
                await submit(backend, Caller(), ASK)  # the queue continues, and sees that the first is not redelivered
                taken = await intake.take(60)
                assert taken is not None
                await taken.answer(Reply.ACK)
                return await jobs_left(link, backend.config) == []

            await eventually(cleared)
            await rescuer.stop()
            await feeder.stop()
            await intake.close()
            found = await backend.runs.find(stuck.run.run_id)
            assert isinstance(found, Stored)
            assert (found.run.status, found.run.reason) == (RunState.FAILED, "max_deliver")
