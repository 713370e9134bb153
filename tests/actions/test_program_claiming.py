"""A delivery becomes an attempt, or is answered: by what the record says, step by step."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from pyoco_server.actions.programs.attempt import ProgramAttempt
from pyoco_server.actions.programs.claim import Passed, claim_job, free_slot, release
from pyoco_server.actions.programs.finish import finish_job
from pyoco_server.actions.programs.history import event_of, requeue_event
from pyoco_server.actions.programs.put_back import Why, put_back
from pyoco_server.actions.programs.reach import programs_of
from pyoco_server.actions.programs.submit import Inline, submit_job
from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.programs import moves
from pyoco_server.core.programs.moves import addressed, program_of
from pyoco_server.core.run import Caller, Run, changed
from pyoco_server.core.states import RunState
from pyoco_server.errors import Unavailable
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.nats.bucket import Bucket
from pyoco_server.ports.nats.link import Link
from pyoco_server.ports.program_events.port import REPEAT_SECONDS, Event, EventName
from pyoco_server.ports.queue.port import Reply
from pyoco_server.ports.runs.port import LOST, Lost, Stored
from support.backends import Clock, dead_letters
from support.faulty_ports import AFTER, BEFORE, Trouble
from support.grid.acts import (
    BROKEN,
    DONE,
    InHand,
    again,
    an_ask,
    claimed,
    in_hand,
    job_submitted,
    run_of,
    slot_of,
    taken,
    troubled,
)
from support.grid.program_stage import a_store
from support.grid.story import assert_exact
from support.servers import unique


async def told(backend: Backend, run: Run) -> list[tuple[str, int]]:
    events = await programs_of(backend).events.recent(
        job_id=program_of(run).job_id, event=None, group=program_of(run).group, limit=100
    )
    return [(event.event.value, event.attempt) for event in reversed(events)]


class Mute:
    """The events of a process that stands still before each of them."""

    async def tell(self, event: Event) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(name)


class TestClaims:
    async def test_a_first_delivery_is_claimed_without_a_read(self, grid: Backend) -> None:
        """GRID-53, GRID-73"""
        run = (await job_submitted(grid)).run
        slot, delivery = await slot_of(grid, run), await taken(grid, run)
        trouble = Trouble()
        attempt = await claim_job(troubled(grid, trouble), delivery, slot, worker_id="w1", holder="me")
        assert isinstance(attempt, ProgramAttempt)
        writes = [name for name in trouble.calls if not name.endswith(".tell")]
        assert writes == ["runs.replace", "programs.slots.fill"]
        now = await run_of(grid, run.run_id)
        assert now == attempt.run
        assert (now.status, now.attempt, now.attempt_id, now.worker_id) == (
            RunState.RUNNING,
            1,
            attempt.attempt_id,
            "w1",
        )
        assert (program_of(now).holder, program_of(now).slot) == ("me", slot.number)
        assert attempt.slot is not None
        assert (attempt.slot.run_id, attempt.slot.token) == (run.run_id, attempt.attempt_id)
        assert await told(grid, run) == [("enqueue", 0), ("assign", 1)]

    async def test_what_it_writes_unread_is_what_was_stored_and_the_claim(self, grid: Backend) -> None:
        """GRID-53: nothing of the record is lost by not reading it"""
        files = {"in.txt": b"x", "ü.txt": b""}
        ask = an_ask(grid, files, args=("日本語", "\u2028"), timeout_sec=2.5)
        run = (await submit_job(grid, Caller("t1", "k1"), ask, Inline(files))).run
        attempt = await claimed(grid, run)
        expected = moves.claim(
            run,
            token=attempt.attempt_id,
            worker_id="w1",
            holder="me",
            slot=program_of(attempt.run).slot or 0,
            now=grid.clock(),
        )
        assert await run_of(grid, run.run_id) == expected

    async def test_a_try_that_had_worked_after_all_is_ours(self, grid: Backend) -> None:
        """GRID-11: also if a cancel was requested before the record was read back"""
        run = (await job_submitted(grid)).run

        class Forgetful:
            def __getattr__(self, name: str) -> Any:
                return getattr(grid.runs, name)

            async def replace(self, run: Run, revision: int) -> Stored | Lost:
                written = await grid.runs.replace(run, revision)
                assert isinstance(written, Stored)
                marked = moves.ask_cancel(written.run, None, None, grid.clock())
                await grid.runs.replace(marked, written.revision)
                return LOST

        slot = await slot_of(grid, run)
        forgetful = replace(grid, runs=Forgetful())
        attempt = await claim_job(forgetful, in_hand(run), slot, worker_id="w1", holder="me")
        assert isinstance(attempt, ProgramAttempt)
        assert attempt.run == await run_of(grid, run.run_id)
        assert (attempt.run.attempt, attempt.run.status) == (1, RunState.CANCELLING)

    async def test_of_two_claimers_one_has_it(self, config: NatsBackendConfig) -> None:
        """GRID-10, GRID-72"""
        group = unique("g")
        async with a_store(config, group) as one, a_store(config, group) as other:
            for _ in range(10):
                run = (await job_submitted(one)).run
                hands = [in_hand(run, count=1, revision=None), in_hand(run)]
                slots = [await slot_of(one, run, "a"), await slot_of(other, run, "b")]
                answers = await asyncio.gather(
                    claim_job(one, hands[0], slots[0], worker_id="w1", holder="a"),
                    claim_job(other, hands[1], slots[1], worker_id="w2", holder="b"),
                )
                held = [each for each in answers if isinstance(each, ProgramAttempt)]
                assert len(held) == 1
                assert held[0].run == await run_of(one, run.run_id)
                loser = hands[answers.index(next(each for each in answers if isinstance(each, Passed)))]
                assert loser.answers == [(Reply.LATER, 10.0)]
                for slot, answer in zip(slots, answers, strict=True):
                    await free_slot(one, answer.slot or slot if isinstance(answer, ProgramAttempt) else slot)

    async def test_a_missing_record_is_made_again_from_the_message(self, grid: Backend) -> None:
        """GRID-53: the message is never thrown away for that"""
        stored = await job_submitted(grid)
        assert await grid.runs.withdraw(stored.run.run_id, stored.revision)
        slot = await slot_of(grid, stored.run)
        attempt = await claim_job(grid, in_hand(stored.run), slot, worker_id="w1", holder="me")
        assert isinstance(attempt, ProgramAttempt)
        now = await run_of(grid, stored.run.run_id)
        assert (now.status, now.attempt, now.params) == (RunState.RUNNING, 1, stored.run.params)


class TestPassedOver:
    async def test_one_that_has_ended_is_acknowledged(self, grid: Backend) -> None:
        """GRID-10, GRID-53"""
        run = (await job_submitted(grid)).run
        await finish_job(grid, await claimed(grid, run), DONE, ())
        answer, delivery = await again(grid, run)
        assert (answer, delivery.answers) == (Passed("it had ended before"), [(Reply.ACK, 0.0)])

    async def test_one_that_somebody_runs_is_put_off(self, grid: Backend, clock: Clock) -> None:
        """GRID-53: not an attempt"""
        run = (await job_submitted(grid)).run
        attempt = await claimed(grid, run)
        clock.now += 19.9
        answer, delivery = await again(grid, run)
        assert (answer, delivery.answers) == (Passed("another worker executes it"), [(Reply.LATER, 10.0)])
        assert await run_of(grid, run.run_id) == attempt.run

    async def test_one_that_is_not_due_is_put_off_for_the_rest(self, grid: Backend, clock: Clock) -> None:
        """GRID-53, GRID-79"""
        run = (await job_submitted(grid)).run
        await put_back(grid, await claimed(grid, run), Why.WORKER_DOWN)
        clock.now += 3.0
        answer, delivery = await again(grid, run)
        assert isinstance(answer, Passed)
        ((reply, delay),) = delivery.answers
        assert (reply, round(delay, 3)) == (Reply.LATER, 2.0)
        clock.now += 2.1
        assert isinstance((await again(grid, run))[0], ProgramAttempt)

    async def test_one_whose_record_nobody_can_read_is_left_alone(
        self, grid: Backend, link: Link, config: NatsBackendConfig
    ) -> None:
        """GRID-196: never overwritten"""
        stored = await job_submitted(grid)
        bucket = Bucket(link, config.runs_kv_bucket)
        written = await bucket.write(stored.run.run_id, b"not json", stored.revision)
        slot = await slot_of(grid, stored.run)
        delivery = in_hand(stored.run)
        answer = await claim_job(grid, delivery, slot, worker_id="w1", holder="me")
        assert isinstance(answer, Passed)
        assert delivery.answers == [(Reply.LATER, 10.0)]
        entry = await bucket.get(stored.run.run_id)
        assert (entry and entry.revision, entry and entry.value) == (written and written.revision, b"not json")

    async def test_one_that_keeps_changing_is_put_off(self, grid: Backend) -> None:
        """GRID-53: five times at most"""
        run = (await job_submitted(grid)).run
        slot = await slot_of(grid, run)

        async def touch() -> None:
            found = await grid.runs.find(run.run_id)
            assert isinstance(found, Stored)
            await grid.runs.replace(changed(found.run, updated_at=grid.clock()), found.revision)

        class Restless(Trouble):
            async def go(self, name: str, call: Any) -> Any:
                answer = await super().go(name, call)
                if name == "runs.find":
                    await touch()
                return answer

        trouble = Restless()
        delivery = in_hand(run)
        answer = await claim_job(troubled(grid, trouble), delivery, slot, worker_id="w1", holder="me")
        assert isinstance(answer, Passed)
        assert delivery.answers == [(Reply.LATER, 1.0)]
        assert trouble.calls.count("runs.find") == 5

    async def test_while_leases_are_pardoned_nobody_is_lost(self, grid: Backend, clock: Clock) -> None:
        """GRID-44"""
        run = (await job_submitted(grid)).run
        await claimed(grid, run)
        clock.now += 100
        programs_of(grid).grace.until = clock.now + 20
        answer, delivery = await again(grid, run, "other")
        assert isinstance(answer, Passed)
        assert delivery.answers == [(Reply.LATER, 10.0)]
        clock.now += 21
        assert isinstance((await again(grid, run, "other"))[0], ProgramAttempt)


class TestLost:
    async def test_an_old_lease_makes_the_attempt_lost_and_frees_its_slot(self, grid: Backend, clock: Clock) -> None:
        """GRID-53, GRID-74, GRID-174"""
        run = (await job_submitted(grid)).run
        first = await claimed(grid, run, "gone")
        clock.now += 20.1
        second, _ = await again(grid, run, "other")
        assert isinstance(second, ProgramAttempt)
        assert (second.run.attempt, program_of(second.run).lost) == (2, 1)
        assert second.attempt_id != first.attempt_id
        assert [slot.token for slot in programs_of(grid).slots.held(program_of(run).group, "clientA")] == [
            second.attempt_id
        ]
        assert await told(grid, run) == [("enqueue", 0), ("assign", 1), ("worker_down_requeue", 1), ("assign", 2)]

    async def test_whoever_stood_still_before_it_told_of_its_start_does_not_tell_it_after_the_next_one(
        self, grid: Backend, clock: Clock
    ) -> None:
        """GRID-174: found by a storm on three nodes"""
        run = (await job_submitted(grid)).run
        mute = replace(grid, programs=replace(programs_of(grid), events=Mute()))
        first = await claimed(mute, run, "slow")
        clock.now += 20.1
        assert isinstance((await again(grid, run, "other"))[0], ProgramAttempt)
        await programs_of(grid).events.tell(event_of(first.run, EventName.ASSIGN, clock.now))
        assert await told(grid, run) == [("enqueue", 0), ("assign", 1), ("worker_down_requeue", 1), ("assign", 2)]

    async def test_whoever_stood_still_before_it_told_that_it_put_the_job_back_does_not_tell_it_after_the_next_one(
        self, grid: Backend, clock: Clock
    ) -> None:
        """GRID-174: found by the simulation of seed 1095"""
        run = (await job_submitted(grid)).run
        first = await claimed(grid, run, "slow")
        assert first.slot is not None
        event = requeue_event(first.run, Why.WORKER_ERROR, clock.now)
        mute = replace(grid, programs=replace(programs_of(grid), events=Mute()))
        assert await put_back(mute, first, Why.WORKER_ERROR)
        await programs_of(grid).slots.free(first.slot)
        clock.now += 10.0
        assert isinstance((await again(grid, run, "other"))[0], ProgramAttempt)
        await programs_of(grid).events.tell(event)
        assert await told(grid, run) == [("enqueue", 0), ("assign", 1), ("timeout_requeue", 1), ("assign", 2)]

    async def test_a_start_that_was_told_long_ago_is_not_told_again(self, grid: Backend, clock: Clock) -> None:
        """GRID-174: the history takes a repeat for one within its window only"""
        run = (await job_submitted(grid)).run
        mute = replace(grid, programs=replace(programs_of(grid), events=Mute()))
        await claimed(mute, run, "gone")
        clock.now += REPEAT_SECONDS
        assert isinstance((await again(grid, run, "other"))[0], ProgramAttempt)
        assert await told(grid, run) == [("enqueue", 0), ("worker_down_requeue", 1), ("assign", 2)]

    async def test_the_last_that_may_be_lost_ends_the_job(
        self, grid: Backend, clock: Clock, link: Link, config: NatsBackendConfig
    ) -> None:
        """GRID-80, GRID-86"""
        limits = replace(programs_of(grid).config, exec_max_lost=2)
        grid = replace(grid, programs=replace(programs_of(grid), config=limits))
        run = (await job_submitted(grid)).run
        await claimed(grid, run)
        clock.now += 21
        assert isinstance((await again(grid, run))[0], ProgramAttempt)
        clock.now += 21
        answer, delivery = await again(grid, run)
        assert isinstance(answer, Passed)
        assert delivery.answers == [(Reply.ACK, 0.0)]
        ended = await run_of(grid, run.run_id)
        assert (ended.status, program_of(ended).error_code, program_of(ended).lost) == ("FAILED", "MAX_LOST", 2)
        await programs_of(grid).queue.remove(addressed(run))
        letters = [letter["body"] for letter in await dead_letters(link, config)]
        await assert_exact(grid, [run.run_id], letters=letters)
        assert [(letter["kind"], letter["reason"], letter["lost"], letter["attempt"]) for letter in letters] == [
            ("exec", "max_lost", 2, 2)
        ]
        job = dict(program_of(run).job or {})
        assert letters[0]["job"] == json.loads(json.dumps(job))

    async def test_one_that_was_to_be_cancelled_is_not_begun_again(self, grid: Backend, clock: Clock) -> None:
        """GRID-162"""
        run = (await job_submitted(grid)).run
        attempt = await claimed(grid, run)
        await grid.runs.replace(moves.ask_cancel(attempt.run, None, "k", clock.now), attempt.revision)
        clock.now += 21
        answer, delivery = await again(grid, run)
        assert isinstance(answer, Passed)
        assert delivery.answers == [(Reply.ACK, 0.0)]
        ended = await run_of(grid, run.run_id)
        assert (ended.status, ended.attempt) == (RunState.CANCELLED, 1)


class TestInvalid:
    @pytest.mark.parametrize(
        "members", [{"args": 7}, {"v": 9}, {"client_id": "clientB"}, {"fingerprint": "a" * 64}], ids=str
    )
    async def test_what_is_no_job_becomes_a_letter_and_leaves(
        self, grid: Backend, link: Link, config: NatsBackendConfig, members: dict[str, Any]
    ) -> None:
        """GRID-53, GRID-84"""
        run = (await job_submitted(grid)).run
        delivery = in_hand(run, **members)
        answer = await claim_job(grid, delivery, await slot_of(grid, run), worker_id="w1", holder="me")
        assert isinstance(answer, Passed)
        assert delivery.answers == [(Reply.DROP, 0.0)]
        (letter,) = await dead_letters(link, config)
        assert letter["subject"].endswith(".exec")
        body = letter["body"]
        assert (body["reason"], body["kind"], body["tag"], body["run_id"]) == (
            "invalid_job",
            "exec",
            "exec",
            run.run_id,
        )
        assert "job" not in body
        assert (await run_of(grid, run.run_id)).status is RunState.PENDING

    async def test_without_its_letter_it_stays(self, grid: Backend) -> None:
        """GRID-86"""
        run = (await job_submitted(grid)).run
        delivery = InHand(b"{", ".".join(("pyoco.exec", *addressed(run).subject_tokens)))
        broken = troubled(grid, Trouble({"queue.bury": [BEFORE]}))
        with pytest.raises(Unavailable):
            await claim_job(broken, delivery, await slot_of(grid, run), worker_id="w1", holder="me")
        assert delivery.answers == []


class TestReleases:
    async def test_a_claim_that_was_never_handed_over_was_no_attempt(self, grid: Backend) -> None:
        """GRID-41"""
        run = (await job_submitted(grid)).run
        delivery = in_hand(run)
        attempt = await claim_job(grid, delivery, await slot_of(grid, run), worker_id="w1", holder="me")
        assert isinstance(attempt, ProgramAttempt)
        await release(grid, attempt)
        now = await run_of(grid, run.run_id)
        assert (now.status, now.attempt, now.attempt_id) == (RunState.PENDING, 0, None)
        assert delivery.answers == [(Reply.LATER, 0.0)]
        assert attempt.closed
        assert isinstance((await again(grid, run))[0], ProgramAttempt)
        assert await told(grid, run) == [("enqueue", 0), ("assign", 1)]

    async def test_a_slot_that_was_taken_over_undoes_the_claim(self, grid: Backend) -> None:
        """GRID-53, GRID-72"""
        run = (await job_submitted(grid)).run
        slot = await slot_of(grid, run)
        await programs_of(grid).slots.free(slot)
        delivery = in_hand(run)
        answer = await claim_job(grid, delivery, slot, worker_id="w1", holder="me")
        assert isinstance(answer, Passed)
        now = await run_of(grid, run.run_id)
        assert (now.status, now.attempt) == (RunState.PENDING, 0)
        assert delivery.answers == [(Reply.LATER, 0.1)]

    @pytest.mark.parametrize("fate", [BEFORE, AFTER])
    async def test_a_slot_that_cannot_be_named_undoes_the_claim(self, grid: Backend, fate: str) -> None:
        """GRID-53"""
        run = (await job_submitted(grid)).run
        slot, delivery = await slot_of(grid, run), in_hand(run)
        broken = troubled(grid, Trouble({"programs.slots.fill": [fate]}))
        with pytest.raises(Unavailable):
            await claim_job(broken, delivery, slot, worker_id="w1", holder="me")
        assert (await run_of(grid, run.run_id)).status is RunState.PENDING
        assert (await run_of(grid, run.run_id)).attempt == 0

    async def test_one_that_somebody_wants_stopped_ends_instead(self, grid: Backend) -> None:
        run = (await job_submitted(grid)).run
        delivery = in_hand(run)
        attempt = await claim_job(grid, delivery, await slot_of(grid, run), worker_id="w1", holder="me")
        assert isinstance(attempt, ProgramAttempt)
        await grid.runs.replace(moves.ask_cancel(attempt.run, None, None, grid.clock()), attempt.revision)
        await release(grid, attempt)
        assert (await run_of(grid, run.run_id)).status is RunState.CANCELLED
        assert delivery.answers == [(Reply.ACK, 0.0)]


async def test_failures_and_losses_are_counted_apart_over_the_whole_life_of_a_job(grid: Backend, clock: Clock) -> None:
    """GRID-79, GRID-80"""
    run = (await job_submitted(grid)).run
    delays = []
    attempt = await claimed(grid, run)
    for _ in range(4):
        await finish_job(grid, attempt, BROKEN, ())
        waiting = await run_of(grid, run.run_id)
        delays.append((program_of(waiting).not_before or 0) - clock.now)
        clock.now += 61
        attempt = _attempt(await again(grid, run))
        clock.now += 21
        attempt = _attempt(await again(grid, run))  # this one was lost
    assert all(0.8 * base <= delay <= 1.2 * base for base, delay in zip((1, 2, 4, 8), delays, strict=True)), delays
    assert (attempt.run.attempt, program_of(attempt.run).lost) == (9, 4)
    await finish_job(grid, attempt, BROKEN, ())
    ended = await run_of(grid, run.run_id)
    assert (ended.status, program_of(ended).error_code, ended.attempt) == ("FAILED", "MAX_ATTEMPTS", 9)
    assert len(ended.earlier_attempts) == 8


def _attempt(answer: tuple[ProgramAttempt | Passed, InHand]) -> ProgramAttempt:
    assert isinstance(answer[0], ProgramAttempt), answer[0]
    return answer[0]
