"""What every queue of programs promises."""

from __future__ import annotations

import asyncio
import json
import random
import time
from dataclasses import replace
from typing import Protocol

from pyoco_server.ports.program_queue.port import ClientQueue, ClientQueueCounts, ProgramQueue
from pyoco_server.ports.queue.port import Delivery, Reply
from support.grid.stores import a_job, client_queue_of
from support.servers import unique
from support.waiting import eventually

__all__ = ["MakeProgramQueue", "ProgramQueueContract", "taken"]


class MakeProgramQueue(Protocol):
    """A queue over the test's one store, as another process would open it; stopped after the test."""

    def __call__(self) -> ProgramQueue: ...


async def taken(queue: ProgramQueue, client_queue: ClientQueue, count: int) -> list[Delivery]:
    """Exactly so many, however many looks that takes."""
    found: list[Delivery] = []

    async def look() -> bool:
        found.extend(await queue.take(client_queue, count - len(found)))
        return len(found) == count

    await eventually(look)
    return found


class ProgramQueueContract:
    """An adapter passes all of it or does not ship."""

    async def test_a_job_is_put_and_taken(self, make_queue: MakeProgramQueue, group: str) -> None:
        queue, job = make_queue(), a_job(group, args=("näme", "\n"))
        await queue.put(job)
        assert await queue.has(job)
        (delivery,) = await make_queue().take(client_queue_of(job))
        assert (delivery.tag, delivery.count) == ("calcA", 1)
        told = json.loads(delivery.data)
        assert (told["v"], told["run_id"], told["args"]) == (1, job.run_id, ["näme", "\n"])
        await delivery.answer(Reply.ACK)
        await eventually(lambda: not_there(queue, job))

    async def test_an_empty_lane_gives_nothing_at_once(self, make_queue: MakeProgramQueue, group: str) -> None:
        """GRID-63: also if it was never read before"""
        queue, client_queue = make_queue(), ClientQueue(group, "calcA", "nobody")
        assert await queue.counts(client_queue) is None
        assert await queue.take(client_queue) == []
        assert await queue.take(client_queue, 10) == []
        assert await queue.counts(client_queue) == ClientQueueCounts(0, 0)

    async def test_a_hundred_puts_of_a_job_are_one_message(self, make_queue: MakeProgramQueue, group: str) -> None:
        """GRID-8, GRID-9, GRID-50"""
        queues, job = (make_queue(), make_queue()), a_job(group)
        again = replace(job, submitted_at=job.submitted_at + 1)
        await asyncio.gather(*(queues[n % 2].put(again if n % 3 else job) for n in range(100)))
        found = await queues[0].take(client_queue_of(job), 10)
        assert len(found) == 1
        assert await queues[1].take(client_queue_of(job), 10) == []

    async def test_a_job_that_has_left_may_be_put_again_at_once(self, make_queue: MakeProgramQueue, group: str) -> None:
        """GRID-8: a message id would stop it for two minutes"""
        queue, job = make_queue(), a_job(group)
        for _ in range(3):
            await queue.put(job)
            (delivery,) = await taken(queue, client_queue_of(job), 1)
            await delivery.answer(Reply.ACK)
            await eventually(lambda: not_there(queue, job))

    async def test_lanes_are_apart_and_in_order(self, make_queue: MakeProgramQueue, group: str) -> None:
        """GRID-58"""
        queue = make_queue()
        jobs = [a_job(group, exec_name, client) for exec_name in ("a", "b") for client in ("x", "y") for _ in range(3)]
        for job in random.sample(jobs, len(jobs)):
            await queue.put(job)
        await queue.put(a_job(f"{group}-2", "a", "x"))
        for exec_name in ("a", "b"):
            for client in ("x", "y"):
                found = await taken(queue, ClientQueue(group, exec_name, client), 3)
                assert {json.loads(each.data)["run_id"] for each in found} == {
                    job.run_id for job in jobs if (job.exec_name, job.client_id) == (exec_name, client)
                }
                submitted = [each.subject for each in found]
                assert len(set(submitted)) == 3
                assert await queue.take(ClientQueue(group, exec_name, client), 3) == []

    async def test_jobs_come_in_the_order_they_were_put(self, make_queue: MakeProgramQueue, group: str) -> None:
        """GRID-58"""
        queue, jobs = make_queue(), [a_job(group) for _ in range(5)]
        for job in jobs:
            await queue.put(job)
        found = await taken(make_queue(), client_queue_of(jobs[0]), 5)
        assert [each.subject.rpartition(".")[2] for each in found] == [job.run_id for job in jobs]

    async def test_no_job_is_given_twice_while_it_is_in_hand(self, make_queue: MakeProgramQueue, group: str) -> None:
        queues, jobs = (make_queue(), make_queue()), [a_job(group) for _ in range(60)]
        await asyncio.gather(*(queues[0].put(job) for job in jobs))
        rounds = await asyncio.gather(*(queues[n % 2].take(client_queue_of(jobs[0]), n % 3 + 1) for n in range(60)))
        found = [each.subject for some in rounds for each in some]
        assert len(found) == len(set(found)) == 60

    async def test_what_is_put_off_comes_again(self, make_queue: MakeProgramQueue, group: str) -> None:
        queue, job = make_queue(), a_job(group)
        await queue.put(job)
        (delivery,) = await queue.take(client_queue_of(job))
        assert await queue.counts(client_queue_of(job)) == ClientQueueCounts(0, 1)
        await delivery.answer(Reply.LATER, 0.1)
        (again,) = await taken(make_queue(), client_queue_of(job), 1)
        assert again.count == 2

    async def test_whoever_is_cancelled_loses_no_job(self, make_queue: MakeProgramQueue, group: str) -> None:
        """A job that arrives after its caller has left is returned at once, and not after its ack timer."""
        queue, jobs = make_queue(), [a_job(group) for _ in range(20)]
        for job in jobs:
            await queue.put(job)
        client_queue = client_queue_of(jobs[0])
        for steps in range(20):
            asking = asyncio.create_task(queue.take(client_queue, 2))
            for _ in range(steps):
                await asyncio.sleep(0)
            asking.cancel()
            for kept in await asyncio.gather(asking, return_exceptions=True):
                if not isinstance(kept, BaseException):
                    for each in kept:
                        await each.answer(Reply.LATER)
        found = await taken(make_queue(), client_queue, 20)
        assert {each.subject.rpartition(".")[2] for each in found} == {job.run_id for job in jobs}

    async def test_a_job_may_be_removed(self, make_queue: MakeProgramQueue, group: str) -> None:
        """GRID-159"""
        queue, job, stays = make_queue(), a_job(group), a_job(group)
        assert not await queue.remove(job)
        await queue.put(job)
        await queue.put(stays)
        assert await make_queue().remove(job)
        assert not await queue.has(job)
        assert not await queue.remove(job)
        assert [each.subject.rpartition(".")[2] for each in await queue.take(client_queue_of(job), 5)] == [stays.run_id]

    async def test_of_many_that_remove_a_job_at_once_all_come_back(
        self, make_queue: MakeProgramQueue, group: str
    ) -> None:
        queues, job = (make_queue(), make_queue()), a_job(group)
        await queues[0].put(job)
        answers = await asyncio.gather(*(queues[n % 2].remove(job) for n in range(8)))
        assert any(answers)
        assert not await queues[0].has(job)

    async def test_lanes_are_known_to_everybody(self, make_queue: MakeProgramQueue, group: str) -> None:
        mine, other = make_queue(), make_queue()
        heard: list[ClientQueue] = []
        await mine.start()
        await other.start(heard.append)
        client_queues = [ClientQueue(group, exec_name, "x") for exec_name in ("a", "b")]
        for _ in range(2):
            await asyncio.gather(*(mine.add_client_queue(client_queue) for client_queue in client_queues))
        assert set(mine.client_queues(group)) == set(client_queues)
        await eventually(lambda: set(other.client_queues(group)) == set(client_queues))
        assert sorted(client_queue.exec_name for client_queue in heard if client_queue.group == group) == ["a", "b"]
        late: list[ClientQueue] = []
        newcomer = make_queue()
        await newcomer.start(late.append)
        assert {client_queue for client_queue in late if client_queue.group == group} == set(client_queues)
        assert newcomer.client_queues(unique("g")) == []

    async def test_somebody_may_listen_later(self, make_queue: MakeProgramQueue, group: str) -> None:
        queue, heard = make_queue(), list[ClientQueue]()
        await queue.start()
        await queue.add_client_queue(ClientQueue(group, "a", "x"))
        await queue.start(heard.append)
        await queue.add_client_queue(ClientQueue(group, "b", "x"))
        assert [client_queue.exec_name for client_queue in heard if client_queue.group == group] == ["a", "b"]

    async def test_what_is_there_is_listed_by_lane(self, make_queue: MakeProgramQueue, group: str) -> None:
        queue, jobs = make_queue(), [a_job(group, exec_name) for exec_name in ("a", "a", "b")]
        for job in jobs:
            await queue.put(job)
        await queue.take(client_queue_of(jobs[0]))  # in hand, it is there all the same
        found = [(client_queue, run_id) for client_queue, run_id in await queue.listed() if client_queue.group == group]
        assert sorted(found, key=str) == sorted(((client_queue_of(job), job.run_id) for job in jobs), key=str)
        assert len(await queue.listed(offset=1)) == len(await queue.listed()) - 1

    async def test_the_oldest_job_of_a_program_is_known(self, make_queue: MakeProgramQueue, group: str) -> None:
        queue, first, second = make_queue(), a_job(group, client_id="x"), a_job(group, client_id="y")
        assert await queue.oldest(group, "calcA") is None
        await queue.put(first)
        at = await queue.oldest(group, "calcA")
        assert at is not None
        assert abs(at - time.time()) < 60
        await queue.put(second)
        assert await make_queue().oldest(group, "calcA") == at
        await queue.remove(first)
        later = await queue.oldest(group, "calcA")
        assert later is not None
        assert later >= at
        assert await queue.oldest(group, "calcB") is None

    async def test_totals_grow_with_every_job(self, make_queue: MakeProgramQueue, group: str) -> None:
        queue, job = make_queue(), a_job(group)
        before = await queue.totals()
        await queue.put(job)
        after = await queue.totals()
        assert after.last_sequence > before.last_sequence
        assert after.messages >= 1
        assert after.size_bytes > 0

    async def test_replicas_are_told_of(self, make_queue: MakeProgramQueue, group: str) -> None:
        """GRID-184: who leads"""
        found = await make_queue().replicas()
        assert any(each.is_leader and each.is_current and each.lag == 0 for each in found)

    async def test_stopping_twice_does_no_harm(self, make_queue: MakeProgramQueue, group: str) -> None:
        queue = make_queue()
        await queue.stop()
        await queue.start()
        await queue.take(ClientQueue(group, "a", "x"))
        await queue.stop()
        await queue.stop()
        await queue.start()
        assert await queue.take(ClientQueue(group, "a", "x")) == []


async def not_there(queue: ProgramQueue, job: object) -> bool:
    return not await queue.has(job)  # type: ignore[arg-type]  # a job
