"""One end for each job: by the current attempt, whichever process reports it; everything else is dropped."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from pyoco_server.actions.attempt import Standing
from pyoco_server.actions.programs.attempt import ProgramAttempt
from pyoco_server.actions.programs.beat import beat
from pyoco_server.actions.programs.cancel import cancel_job
from pyoco_server.actions.programs.claim import claim_job, free_slot
from pyoco_server.actions.programs.finish import Output, Settlement, finish_job, finish_reported
from pyoco_server.actions.programs.put_back import Why, put_back
from pyoco_server.actions.programs.reach import programs_of
from pyoco_server.actions.programs.reattach import reattach
from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.programs.moves import program_of
from pyoco_server.core.programs.report import ErrorCode, Report
from pyoco_server.core.states import RunState
from pyoco_server.errors import NotOfThisKind, RunNotFound, Unavailable
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.nats.link import Link
from pyoco_server.ports.queue.port import Reply
from pyoco_server.ports.wakeups.port import Wakeup
from support.backends import Clock, dead_letters
from support.faulty_ports import AFTER, BEFORE, Trouble
from support.grid.acts import (
    BROKEN,
    DONE,
    FAILED,
    STOPPED,
    again,
    begun,
    claimed,
    exact,
    in_hand,
    job_submitted,
    run_of,
    slot_of,
    troubled,
)
from support.grid.program_stage import a_store
from support.grid.story import assert_exact
from support.servers import unique
from support.waiting import eventually


class TestFinishing:
    async def test_a_result_costs_one_write_one_event_and_the_answer(self, grid: Backend) -> None:
        """GRID-54"""
        _, attempt = await begun(grid)
        trouble = Trouble()
        assert await finish_job(troubled(grid, trouble), attempt, DONE, ()) is Settlement.RECORDED
        assert trouble.calls == ["runs.replace", "programs.events.record"]
        run = await exact(grid, attempt)
        assert (run.status, program_of(run).exit_code, program_of(run).stdout_tail) == ("COMPLETED", 0, "done\n")

    async def test_a_failure_is_a_letter_first_and_then_the_message_goes(
        self, grid: Backend, link: Link, config: NatsBackendConfig
    ) -> None:
        """GRID-82, GRID-85, GRID-86"""
        run = (await job_submitted(grid, args=("x",))).run
        attempt = await claimed(grid, run)
        trouble = Trouble()
        assert await finish_job(troubled(grid, trouble), attempt, FAILED, ()) is Settlement.RECORDED
        assert trouble.calls == ["runs.replace", "queue.bury", "runs.replace", "programs.events.record"]
        letters = [letter["body"] for letter in await dead_letters(link, config)]
        ended = await exact(grid, attempt, letters=letters)
        assert letters[0] | {"timestamp": 0, "subject": "", "job": {}} == {
            "timestamp": 0,
            "reason": "execution_error",
            "error": "exit code 3",
            "tag": "exec",
            "run_id": run.run_id,
            "flow_name": "exec:calcA",
            "tags": ["exec", "calcA"],
            "worker_id": "w1",
            "num_delivered": 1,
            "subject": "",
            "kind": "exec",
            "job_id": program_of(run).job_id,
            "group": program_of(run).group,
            "exec_name": "calcA",
            "client_id": "clientA",
            "attempt": 1,
            "lost": 0,
            "exit_code": 3,
            "error_code": "EXIT_NONZERO",
            "job": {},
        }
        assert letters[0]["job"]["args"] == ["x"]
        assert "revision" not in letters[0]["job"]
        assert (ended.reason, program_of(ended).dlq_done) == ("execution_error", True)

    async def test_without_its_letter_the_message_stays_and_the_next_delivery_writes_it(
        self, grid: Backend, link: Link, config: NatsBackendConfig
    ) -> None:
        """GRID-53, GRID-86: tried until it works"""
        run = (await job_submitted(grid)).run
        delivery = in_hand(run)
        attempt = await claim_job(grid, delivery, await slot_of(grid, run), worker_id="w1", holder="me")
        assert isinstance(attempt, ProgramAttempt)
        broken = troubled(grid, Trouble({"queue.bury": [BEFORE] * 3}))
        assert await finish_job(broken, attempt, FAILED, ()) is Settlement.RECORDED
        assert delivery.answers == []
        assert await dead_letters(link, config) == []
        _, redelivered = await again(grid, run)
        assert redelivered.answers == [(Reply.ACK, 0.0)]
        await programs_of(grid).queue.remove(attempt.job)
        letters = [letter["body"] for letter in await dead_letters(link, config)]
        assert letters[0]["job"] == program_of(run).job
        await exact(grid, attempt, letters=letters)

    async def test_an_answer_that_got_lost_is_found_when_it_is_said_again(self, grid: Backend) -> None:
        """GRID-11"""
        _, attempt = await begun(grid)
        broken = troubled(grid, Trouble({"runs.replace": [AFTER]}))
        with pytest.raises(Unavailable):
            await finish_job(broken, attempt, DONE, ())
        assert not attempt.closed
        assert await finish_job(grid, attempt, DONE, ()) is Settlement.RECORDED
        await exact(grid, attempt)

    async def test_a_heartbeat_that_came_between_costs_a_read(self, grid: Backend) -> None:
        """GRID-54: only other fields moved"""
        _, attempt = await begun(grid)
        mine = replace(attempt, lock=asyncio.Lock())
        assert await beat(grid, mine) is Standing.OURS
        assert await finish_job(grid, attempt, DONE, ()) is Settlement.RECORDED

    async def test_a_fault_of_the_worker_is_tried_again(self, grid: Backend) -> None:
        """GRID-54, GRID-79"""
        run = (await job_submitted(grid)).run
        delivery = in_hand(run)
        attempt = await claim_job(grid, delivery, await slot_of(grid, run), worker_id="w1", holder="me")
        assert isinstance(attempt, ProgramAttempt)
        assert await finish_job(grid, attempt, BROKEN, ()) is Settlement.PUT_BACK
        now = await run_of(grid, run.run_id)
        assert (now.status, program_of(now).lost, now.attempt_id) == (RunState.PENDING, 0, attempt.attempt_id)
        ((reply, delay),) = delivery.answers
        assert reply is Reply.LATER
        assert 0.8 <= delay <= 1.2

    async def test_stopped_though_nobody_asked_is_tried_again(self, grid: Backend) -> None:
        """GRID-54"""
        run, attempt = await begun(grid)
        assert await finish_job(grid, attempt, STOPPED, ()) is Settlement.PUT_BACK
        assert (await run_of(grid, run.run_id)).status is RunState.PENDING

    async def test_stopped_because_somebody_asked_this_process_not_knowing_it(self, grid: Backend) -> None:
        """GRID-54, GRID-160"""
        run, attempt = await begun(grid)
        await cancel_job(grid, run.run_id, None, None)
        assert attempt.run.status is RunState.RUNNING
        assert await finish_job(grid, attempt, STOPPED, ()) is Settlement.RECORDED
        assert (await exact(grid, attempt)).status is RunState.CANCELLED

    async def test_what_was_printed_at_length_is_an_object_besides(self, grid: Backend) -> None:
        """GRID-145"""
        _, attempt = await begun(grid)
        report = replace(DONE, stdout=b"x" * 8193, stderr=b"y" * 8192)
        await finish_job(grid, attempt, report, (Output("output.zip", 3, "-", lambda: _pieces(b"zip")),))
        run = await exact(grid, attempt)
        program = program_of(run)
        assert [(each.name, each.object, each.size) for each in program.artifacts] == [
            ("output.zip", f"{run.run_id}/a1/output.zip", 3),
            ("stdout.txt", f"{run.run_id}/a1/stdout.txt", 8193),
        ]
        assert (len(program.stdout_tail or ""), len(program.stderr_tail or "")) == (8192, 8192)

    async def test_its_lease_is_renewed_while_what_it_left_is_being_stored(self, grid: Backend, clock: Clock) -> None:
        """GRID-56: that may take longer than a lease; a process that found it stale would run the program again."""
        run, attempt = await begun(grid)
        is_storing, may_end = asyncio.Event(), asyncio.Event()

        async def slowly() -> AsyncIterator[bytes]:
            is_storing.set()
            await may_end.wait()
            yield b"zip"

        finishing = asyncio.create_task(finish_job(grid, attempt, DONE, (Output("output.zip", 3, "-", slowly),)))
        await is_storing.wait()
        clock.now += 15
        async with asyncio.timeout(5):
            assert await beat(grid, attempt) is Standing.OURS
        assert (await run_of(grid, run.run_id)).heartbeat_at == clock.now
        # Its result is being recorded: a put back waits for that.
        giving_back = asyncio.create_task(put_back(grid, attempt, Why.WORKER_DOWN))
        await asyncio.sleep(0)
        may_end.set()
        assert await finishing is Settlement.RECORDED
        await giving_back
        assert (await exact(grid, attempt)).status is RunState.COMPLETED

    async def test_an_end_that_is_too_large_for_its_record_has_shorter_tails(self, config: NatsBackendConfig) -> None:
        """GRID-153"""
        async with a_store(replace(config, max_run_snapshot_bytes=8192), unique("g")) as grid:
            _, attempt = await begun(grid)
            await finish_job(grid, attempt, replace(DONE, stdout=b"x" * 8000, stderr=b"\0" * 900), ())
            run = await exact(grid, attempt)
            assert (run.status, len(program_of(run).stdout_tail or "")) == (RunState.COMPLETED, 1024)

    async def test_everybody_is_told_at_once(self, grid: Backend) -> None:
        """GRID-51"""
        run, attempt = await begun(grid)
        heard: list[tuple[Wakeup, str]] = []
        listening = await programs_of(grid).wakeups.listen(program_of(run).group, lambda *said: heard.append(said))
        await finish_job(grid, attempt, DONE, ())
        await eventually(lambda: (Wakeup.DONE, run.run_id) in heard)
        await listening.close()


async def _pieces(data: bytes) -> AsyncIterator[bytes]:
    yield data


class TestStale:
    async def test_a_newer_attempt_makes_an_older_word_worthless(self, grid: Backend, clock: Clock) -> None:
        """GRID-10, GRID-54: dropped, not acknowledged, not put back"""
        run = (await job_submitted(grid)).run
        delivery = in_hand(run)
        old = await claim_job(grid, delivery, await slot_of(grid, run), worker_id="w1", holder="a")
        assert isinstance(old, ProgramAttempt)
        clock.now += 21
        new, _ = await again(grid, run, "b")
        assert isinstance(new, ProgramAttempt)
        for report in (DONE, FAILED, BROKEN):
            assert await finish_job(grid, replace(old, lock=asyncio.Lock()), report, ()) is Settlement.STALE
        assert delivery.answers == []
        assert await beat(grid, old) is Standing.FENCED
        assert old.closed
        await put_back(grid, replace(old, lock=asyncio.Lock(), closed=False), Why.WORKER_DOWN)
        assert delivery.answers == []
        assert await run_of(grid, run.run_id) == new.run
        events = await programs_of(grid).events.recent(
            job_id=program_of(run).job_id, event="stale_result", group=None, limit=9
        )
        assert len(events) == 1

    async def test_an_end_is_final(self, grid: Backend) -> None:
        """GRID-47"""
        run, attempt = await begun(grid)
        await finish_job(grid, attempt, DONE, ())
        ended = await run_of(grid, run.run_id)
        assert await finish_reported(grid, run.run_id, attempt.attempt_id, "w1", FAILED, ()) is Settlement.STALE
        assert await finish_reported(grid, run.run_id, attempt.attempt_id, "w1", DONE, ()) is Settlement.RECORDED
        assert await finish_reported(grid, run.run_id, "another token", "w1", DONE, ()) is Settlement.STALE
        assert (await cancel_job(grid, run.run_id, None, None)).run == ended
        assert await reattach(grid, run.run_id, attempt.attempt_id, worker_id="w1", holder="b") is None
        assert await run_of(grid, run.run_id) == ended

    async def test_a_result_for_nobody_is_dropped(self, grid: Backend) -> None:
        unknown = "00000000-0000-4000-8000-00000000abcd"
        assert await finish_reported(grid, unknown, "t", "w1", DONE, ()) is Settlement.STALE

    async def test_a_result_of_one_that_was_put_back_still_counts(self, grid: Backend) -> None:
        """GRID-55"""
        run, attempt = await begun(grid)
        assert attempt.slot is not None
        await put_back(grid, attempt, Why.WORKER_DOWN)
        await free_slot(grid, attempt.slot)
        assert await finish_reported(grid, run.run_id, attempt.attempt_id, "w1", DONE, ()) is Settlement.RECORDED
        ended = (await assert_exact(grid, [run.run_id]))[0]
        assert (ended.status, ended.worker_id, program_of(ended).lost) == (RunState.COMPLETED, "w1", 0)

    async def test_so_it_does_for_who_was_told_to_put_it_back(self, grid: Backend) -> None:
        """GRID-55: the same process, over the same connection"""
        run, attempt = await begun(grid)
        await put_back(grid, attempt, Why.ACK_TIMEOUT)
        assert await finish_job(grid, attempt, DONE, ()) is Settlement.RECORDED
        assert (await exact(grid, attempt)).run_id == run.run_id

    async def test_a_broken_one_that_was_put_back_already_is_left_waiting(self, grid: Backend) -> None:
        run, attempt = await begun(grid)
        await put_back(grid, attempt, Why.ACK_TIMEOUT)
        waiting = await run_of(grid, run.run_id)
        assert await finish_reported(grid, run.run_id, attempt.attempt_id, "w1", BROKEN, ()) is Settlement.PUT_BACK
        assert await run_of(grid, run.run_id) == waiting

    async def test_a_result_may_come_by_another_door_and_frees_the_slot(self, config: NatsBackendConfig) -> None:
        """GRID-27, GRID-54"""
        group = unique("g")
        async with a_store(config, group) as one, a_store(config, group) as other:
            run, attempt = await begun(one)
            await eventually(lambda: bool(programs_of(other).slots.held(group, "clientA")))
            assert await finish_reported(other, run.run_id, attempt.attempt_id, "w1", DONE, ()) is Settlement.RECORDED
            await assert_exact(one, [run.run_id])
            assert await beat(one, attempt) is Standing.FENCED


class TestPuttingBack:
    async def test_the_last_failure_ends_the_job(self, grid: Backend, link: Link, config: NatsBackendConfig) -> None:
        """GRID-79, GRID-80, GRID-86, GRID-87"""
        limits = replace(programs_of(grid).config, exec_max_attempts=1)
        grid = replace(grid, programs=replace(programs_of(grid), config=limits))
        _, attempt = await begun(grid)
        await put_back(grid, attempt, Why.ACK_TIMEOUT)
        letters = [letter["body"] for letter in await dead_letters(link, config)]
        ended = await exact(grid, attempt, letters=letters)
        assert (ended.status, ended.reason, program_of(ended).error_code) == ("FAILED", "max_attempts", "MAX_ATTEMPTS")

    async def test_one_that_somebody_wants_stopped_ends_cancelled(self, grid: Backend) -> None:
        """GRID-160"""
        run, attempt = await begun(grid)
        await cancel_job(grid, run.run_id, "k1", "no more")
        await put_back(grid, attempt, Why.WORKER_DOWN)
        ended = await exact(grid, attempt)
        assert (ended.status, ended.cancel_requested_by, ended.cancel_reason) == (RunState.CANCELLED, "k1", "no more")

    async def test_what_cannot_be_written_is_still_ours(self, grid: Backend) -> None:
        run, attempt = await begun(grid)
        broken = troubled(grid, Trouble({"runs.replace": [BEFORE]}))
        with pytest.raises(Unavailable):
            await put_back(broken, attempt, Why.WORKER_DOWN)
        assert not attempt.closed
        assert await beat(grid, attempt) is Standing.OURS
        await put_back(grid, attempt, Why.WORKER_DOWN)
        assert (await run_of(grid, run.run_id)).status is RunState.PENDING


class TestCancelling:
    async def test_a_waiting_one_ends_at_once_and_its_message_goes(self, grid: Backend) -> None:
        """GRID-159"""
        run = (await job_submitted(grid)).run
        stored = await cancel_job(grid, run.run_id, "k1", "no more")
        assert (stored.run.status, stored.run.attempt) == (RunState.CANCELLED, 0)
        ended = (await assert_exact(grid, [run.run_id]))[0]
        assert (ended.cancel_requested_by, ended.cancel_reason) == ("k1", "no more")

    async def test_a_running_one_is_marked_and_its_holder_hears_of_it(self, grid: Backend) -> None:
        """GRID-160"""
        run, attempt = await begun(grid)
        heard: list[tuple[Wakeup, str]] = []
        listening = await programs_of(grid).wakeups.listen(program_of(run).group, lambda *said: heard.append(said))
        asked = await cancel_job(grid, run.run_id, "k1", None)
        assert asked.run.status is RunState.CANCELLING
        await eventually(lambda: (Wakeup.CANCEL, run.run_id) in heard)
        await listening.close()
        assert await beat(grid, attempt) is Standing.CANCEL_REQUESTED
        assert (await cancel_job(grid, run.run_id, "k2", "again")).run.cancel_requested_by == "k1"
        await finish_job(grid, attempt, STOPPED, ())
        assert (await exact(grid, attempt)).status is RunState.CANCELLED

    async def test_a_program_that_was_faster_keeps_its_end(self, grid: Backend) -> None:
        """GRID-161"""
        run, attempt = await begun(grid)
        await cancel_job(grid, run.run_id, None, None)
        assert await finish_job(grid, attempt, DONE, ()) is Settlement.RECORDED
        assert (await exact(grid, attempt)).status is RunState.COMPLETED

    async def test_a_claim_and_a_cancel_at_once_end_in_one_of_two_ways(self, config: NatsBackendConfig) -> None:
        """GRID-47, GRID-159, GRID-160"""
        group = unique("g")
        async with a_store(config, group) as one, a_store(config, group) as other:
            for _ in range(20):
                run = (await job_submitted(one)).run
                slot, delivery = await slot_of(one, run), in_hand(run)
                answer, asked = await asyncio.gather(
                    claim_job(one, delivery, slot, worker_id="w1", holder="me"),
                    cancel_job(other, run.run_id, None, None),
                )
                if isinstance(answer, ProgramAttempt):
                    assert asked.run.status is RunState.CANCELLING
                    assert await beat(one, answer) is Standing.CANCEL_REQUESTED
                    await finish_job(one, answer, STOPPED, ())
                    await programs_of(one).queue.remove(answer.job)
                else:
                    assert asked.run.status is RunState.CANCELLED
                await free_slot(one, answer.slot or slot if isinstance(answer, ProgramAttempt) else slot)
                assert (await assert_exact(one, [run.run_id]))[0].status is RunState.CANCELLED

    async def test_what_is_not_there_or_no_program_is_not_cancelled(self, grid: Backend) -> None:
        with pytest.raises(RunNotFound):
            await cancel_job(grid, "00000000-0000-4000-8000-00000000abcd", None, None)
        run = (await job_submitted(grid)).run
        found = await grid.runs.find(run.run_id)
        await grid.runs.replace(replace(run, kind="flow", program=None), found.revision)
        with pytest.raises(NotOfThisKind):
            await cancel_job(grid, run.run_id, None, None)


async def test_error_codes_are_kept_as_they_are(grid: Backend) -> None:
    """GRID-101"""
    _, attempt = await begun(grid)
    report = Report(status=RunState.FAILED, exit_code=-9, error_code=ErrorCode.SIGNALED)
    await finish_job(grid, attempt, report, ())
    program = program_of(await exact(grid, attempt))
    assert (program.exit_code, program.error_code) == (-9, "SIGNALED")
