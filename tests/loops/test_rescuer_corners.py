"""What the look at quiet runs must not trip over, and what it must wait for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from pyoco_server.actions.beat import beat_run
from pyoco_server.actions.claim import FlowAttempt, claim_run
from pyoco_server.actions.rescue import rescue, snapshot_queue
from pyoco_server.actions.submit import submit
from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.flow_moves import accept
from pyoco_server.core.job import Job, decode_job
from pyoco_server.core.run import Caller
from pyoco_server.core.states import RunState
from pyoco_server.loops import rescuer as loop
from pyoco_server.loops.feeder import IndexFeeder
from pyoco_server.loops.rescuer import Rescuer
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.index.sqlite import SqliteIndex
from pyoco_server.ports.nats.link import Link
from pyoco_server.ports.queue import jetstream as queue_module
from pyoco_server.ports.queue.port import Delivery, Reply
from pyoco_server.ports.runs.port import Stored
from support.backends import ANNA, a_submission, dead_letters, jobs_left, opened_backend, recorded, run_now
from support.faulty_ports import Trouble, with_trouble
from support.waiting import eventually

pytestmark = pytest.mark.virtual_time

QUIET = 0.3


@pytest.fixture
async def backend(config: NatsBackendConfig) -> AsyncIterator[Backend]:
    quick = replace(
        config,
        abandon_after_sec=QUIET,
        worker_disconnect_timeout_sec=0.5,
        run_heartbeat_interval_sec=0.1,
        consumer_ack_wait_sec=0.3,
        ack_progress_interval_sec=0.1,
        consumer_max_deliver=1,
    )
    async with opened_backend(quick) as backend:
        yield backend


@pytest.fixture
def long_ago(backend: Backend) -> Backend:
    return replace(backend, clock=lambda: time.time() - 60)


Turn = Callable[[Backend], Awaitable[None]]


@pytest.fixture
async def turn(backend: Backend, tmp_path: Path) -> AsyncIterator[Turn]:
    """One look of a keeper that has just been started."""
    index = SqliteIndex(tmp_path / "index.sqlite")
    feeder = IndexFeeder(backend.runs, index)
    await feeder.start()

    async def look(backend: Backend) -> None:
        await backend.runs.find("x")
        await eventually(lambda: feeder.caught_up(60))
        assert await index.applied(await backend.runs.newest(), 60)
        await Rescuer(backend, index, feeder, submit_seconds=0.0).turn()

    yield look
    await feeder.stop()


async def letters(link: Link, backend: Backend) -> list[tuple[str, str]]:
    found = await dead_letters(link, backend.config)
    return [(letter["body"]["run_id"], letter["body"]["reason"]) for letter in found]


async def test_odd_tags_do_not_hide_a_lost_run_behind_them(
    link: Link, backend: Backend, long_ago: Backend, turn: Turn
) -> None:
    """A stranger's records, met first, and an honest run that is ended in the same turn."""
    odd = []
    for number, tag in enumerate(["x y", "x\r\nPUB injected 0\r\n\r\n", "x.y", ">", "*"]):
        run = accept(a_submission(), Caller(), backend.new_id(), time.time() - 600 + number)
        assert isinstance(await backend.runs.create(replace(run, tag=tag)), Stored)
        odd.append(run.run_id)
    honest, _ = await recorded(long_ago)
    await turn(backend)
    assert (await run_now(backend, honest.run.run_id)).reason == "abandoned"
    assert {(await run_now(backend, run_id)).reason for run_id in odd} == {"abandoned"}
    assert {run_id for run_id, _ in await letters(link, backend)} == {honest.run.run_id, *odd}


class TestALostSubmission:
    async def test_behind_an_older_job_that_nobody_takes_is_ended(
        self, link: Link, backend: Backend, long_ago: Backend, turn: Turn
    ) -> None:
        """FLOW-76: the tag has no worker, so the older job stays the oldest for ever."""
        waiting = await submit(long_ago, Caller(), a_submission())
        lost, _ = await recorded(long_ago)
        await turn(backend)
        assert (await run_now(backend, lost.run.run_id)).reason == "abandoned"
        assert (await run_now(backend, waiting.run.run_id)).status is RunState.PENDING
        assert len(await jobs_left(link, backend.config)) == 1

    @pytest.mark.parametrize(("count", "exact"), [(2, True), (3, False)])
    async def test_behind_too_many_is_left_alone(
        self, backend: Backend, long_ago: Backend, monkeypatch: pytest.MonkeyPatch, count: int, exact: bool
    ) -> None:
        monkeypatch.setattr(queue_module, "_WAITING_MAX", 3)
        for _ in range(count):
            await submit(long_ago, Caller(), a_submission())
        lost, _ = await recorded(long_ago)
        stock = await backend.queue.stock("default")
        assert (stock.waiting is not None) is exact
        ended = await rescue(backend, lost.run.run_id, QUIET, submit_seconds=0.0)
        assert (ended is not None) is exact

    async def test_is_not_ended_while_it_may_be_under_way(self, long_ago: Backend, backend: Backend) -> None:
        """However short `abandon_after_sec` is: its client may be about to hear that it was accepted."""
        before = time.time()
        stored, _ = await recorded(long_ago)
        assert await rescue(backend, stored.run.run_id, 0.0) is None
        later = replace(backend, clock=lambda: before + 39)
        assert await rescue(later, stored.run.run_id, 0.0) is None
        later = replace(backend, clock=lambda: time.time() + 41)
        early = await snapshot_queue(backend, "default")
        assert await rescue(later, stored.run.run_id, 0.0, early) is None  # what came since then is unknown
        ended = await rescue(later, stored.run.run_id, 0.0)
        assert ended is not None
        assert ended.reason == "abandoned"

    async def test_that_was_begun_need_not_wait_for_that(self, long_ago: Backend, backend: Backend) -> None:
        stored, job = await recorded(long_ago)
        assert isinstance(await claim_run(long_ago, job, ANNA, first_delivery=True), FlowAttempt)
        await asyncio.sleep(0.6)  # the record was written just now, and that counts as a sign of life
        assert await rescue(backend, stored.run.run_id, 0.0) is not None


class TestLettersAfterACrash:
    async def test_a_keeper_killed_between_the_end_and_the_letter_leaves_it_to_its_successor(
        self, link: Link, backend: Backend, long_ago: Backend, turn: Turn
    ) -> None:
        lost, _ = await recorded(long_ago)
        assert await rescue(backend, lost.run.run_id, QUIET, submit_seconds=0.0) is not None
        assert await letters(link, backend) == []
        await turn(backend)
        assert await letters(link, backend) == [(lost.run.run_id, "abandoned")]
        await turn(backend)  # and the next one
        assert await letters(link, backend) == [(lost.run.run_id, "abandoned")]

    async def test_only_those_of_the_last_minutes_are_written_again(
        self, link: Link, backend: Backend, long_ago: Backend, turn: Turn
    ) -> None:
        """The stream has forgotten their ids, so there would be two of each."""
        lost, _ = await recorded(replace(backend, clock=lambda: time.time() - 600))
        before = replace(backend, clock=lambda: time.time() - loop._DEAD_LETTERS_SECONDS - 5)
        assert await rescue(before, lost.run.run_id, QUIET, submit_seconds=-1000.0) is not None
        await turn(backend)
        assert await letters(link, backend) == []


class TestJobsThatWereGivenUp:
    async def given_up(self, backend: Backend, count: int) -> list[str]:
        """Jobs delivered once, which is as often as they may be; and one that moves the queue on past them."""
        hand: list[Delivery] = []
        run_ids = [(await submit(backend, Caller(), a_submission())).run.run_id for _ in range(count)]
        intake = await backend.queue.open_intake(["default"], hand.append)
        await intake.want(count)
        await eventually(lambda: len(hand) == count)
        await intake.want(0)

        async def are_passed_over() -> bool:
            await backend.queue.put(decode_job(hand[0].data.replace(run_ids[0].encode(), backend.new_id().encode())))
            taken = await intake.take(60)
            assert taken is not None
            await taken.answer(Reply.ACK)
            return await backend.queue.leftover("default") is not None

        await eventually(are_passed_over)
        await intake.close()
        assert [decode_job(delivery.data).run_id for delivery in hand] == run_ids
        return run_ids

    async def test_are_removed_behind_one_that_cannot_be_read_and_one_that_is_worked_on(
        self, link: Link, backend: Backend, turn: Turn
    ) -> None:
        broken, worked_on, *others = await self.given_up(backend, 5)
        found = await backend.runs.find(broken)
        assert isinstance(found, Stored)
        await link.store(f"$KV.{backend.config.runs_kv_bucket}.{broken}", b"not a record")
        job = Job(run_id=worked_on, flow_name="flow", tag="default", submitted_at=1.0)
        awake = replace(backend, clock=lambda: time.time() + 600)  # however long the look takes
        held = await claim_run(awake, job, ANNA, first_delivery=False)
        assert isinstance(held, FlowAttempt)
        lost, _ = await recorded(replace(backend, clock=lambda: time.time() - 60))  # something quiet of this tag
        await turn(backend)
        assert {(await run_now(backend, run_id)).reason for run_id in others} == {"max_deliver"}
        assert [each["body"]["run_id"] for each in await jobs_left(link, backend.config)] == [broken, worked_on]
        assert (await run_now(backend, lost.run.run_id)).reason == "abandoned"
        assert await beat_run(backend, held, None)
        assert (await run_now(backend, worked_on)).status is RunState.RUNNING


async def test_the_trouble_of_one_letter_does_not_end_the_look(
    link: Link, backend: Backend, long_ago: Backend, turn: Turn
) -> None:
    """FLOW-336"""
    lost = [(await recorded(long_ago))[0].run.run_id for _ in range(3)]
    await turn(with_trouble(backend, Trouble({"queue.bury": ["before"]})))
    assert {(await run_now(backend, run_id)).reason for run_id in lost} == {"abandoned"}
    assert len(await letters(link, backend)) == 2
    await turn(backend)
    assert sorted(await letters(link, backend)) == sorted((run_id, "abandoned") for run_id in lost)
