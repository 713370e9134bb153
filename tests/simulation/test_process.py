"""Simulated processes: kill without cleanup, pause and resume, and nothing left to warn about."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator

import pytest

from simulation.loop import SimLoop
from simulation.process import CURRENT, Process, ProcessDead


@pytest.fixture
def loop() -> Iterator[SimLoop]:
    loop = SimLoop(2)
    yield loop
    loop.close()
    assert loop.failures == []
    gc.collect()  # warnings and errors of freed coroutines belong to this test


@contextlib.contextmanager
def _entered(log: list[str]) -> Iterator[None]:
    try:
        yield
    finally:
        log.append("context manager left")


@contextlib.asynccontextmanager
async def _entered_async(log: list[str]) -> AsyncIterator[None]:
    try:
        yield
    finally:
        log.append("async context manager left")


async def _numbers(log: list[str]) -> AsyncIterator[int]:
    try:
        yield 1
        await asyncio.sleep(3600)
    finally:
        log.append("generator closed")


async def _work(log: list[str]) -> None:
    log.append("began")
    try:
        with _entered(log):
            async with _entered_async(log), asyncio.timeout(600):
                async for _ in _numbers(log):
                    pass
    except BaseException as error:
        log.append(f"caught {error!r}")
        raise
    finally:
        log.append("finally")


def test_a_killed_process_executes_no_cleanup_now_or_at_close() -> None:
    loop = SimLoop(2)
    log: list[str] = []

    async def main() -> None:
        worker = Process("worker")
        worker.spawn(_work(log))
        never_begun = worker.spawn(_work(log))
        worker.call_later(10, log.append, "timer")
        worker.kill_after_steps(1)
        await asyncio.sleep(1)
        worker.kill()
        assert not worker.is_alive
        worker.call_soon(log.append, "callback")
        await asyncio.sleep(7200)
        assert not never_begun.done()

    loop.run_until_complete(main())
    loop.close()
    del loop, main
    gc.collect()
    assert log == ["began"]


def test_living_processes_at_close_are_disposed_of_in_the_same_way() -> None:
    loop = SimLoop(2)
    log: list[str] = []

    async def main() -> None:
        Process("worker").spawn(_work(log))
        await asyncio.sleep(60)

    loop.run_until_complete(main())
    loop.close()
    del loop, main
    gc.collect()
    assert log == ["began"]


_EXIT_SCRIPT = """
import asyncio
from simulation.loop import SimLoop
from simulation.process import Process

async def work():
    try:
        await asyncio.sleep(3600)
    finally:
        print("finally")

async def main():
    worker = Process("worker")
    worker.spawn(work())
    await asyncio.sleep(1)
    worker.spawn(work())
    worker.kill()

loop = SimLoop(1)
loop.run_until_complete(main())
loop.close()
"""


def test_the_interpreter_exits_without_warnings_and_without_cleanup_of_dead_processes() -> None:
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", _EXIT_SCRIPT],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("", "")


def test_cancel_all_lets_living_processes_clean_up(loop: SimLoop) -> None:
    log: list[str] = []

    async def main() -> None:
        Process("worker").spawn(_work(log))
        await asyncio.sleep(60)
        await loop.cancel_all()

    loop.run_until_complete(main())
    assert log[-1] == "finally"
    assert not [task for process in loop.processes for task in process.pending_tasks()]


def test_a_process_that_kills_itself_ends_when_its_handle_yields(loop: SimLoop) -> None:
    log: list[str] = []

    async def work() -> None:
        CURRENT.get().kill()
        log.append("same handle")
        asyncio.create_task(asyncio.sleep(0))  # noqa: RUF006
        await asyncio.sleep(0)
        log.append("next handle")

    async def main() -> None:
        Process("worker").spawn(work())
        await asyncio.sleep(10)

    loop.run_until_complete(main())
    assert log == ["same handle"]


@pytest.mark.parametrize("steps", range(1, 8))
def test_kill_after_steps_kills_at_each_await(loop: SimLoop, steps: int) -> None:
    reached: list[int] = []

    async def work() -> None:
        for step in range(1, 100):
            reached.append(step)
            await asyncio.sleep(0)

    async def main() -> None:
        worker = Process("worker")
        worker.spawn(work())
        worker.kill_after_steps(steps)
        await asyncio.sleep(10)
        assert worker.steps == steps
        with pytest.raises(ValueError, match="at least 1"):
            worker.kill_after_steps(0)

    loop.run_until_complete(main())
    assert reached == list(range(1, steps + 1))


def test_a_dead_process_accepts_no_work(loop: SimLoop) -> None:
    async def main() -> None:
        worker = Process("worker")
        worker.kill()
        with pytest.raises(ProcessDead):
            worker.spawn(asyncio.sleep(1))
        with pytest.raises(ProcessDead):
            worker.run(print)
        worker.resume()
        assert repr(worker) == "<Process worker dead>"

    loop.run_until_complete(main())


def test_a_function_for_a_thread_does_not_run_once_its_process_is_dead(loop: SimLoop) -> None:
    executed: list[str] = []

    async def work() -> None:
        await asyncio.to_thread(executed.append, "in a thread")

    async def main() -> None:
        worker = Process("worker")
        worker.spawn(work())
        worker.kill_after_steps(1)
        await asyncio.sleep(10)

    loop.run_until_complete(main())
    assert executed == []


def test_an_answer_to_a_dead_process_is_dropped(loop: SimLoop) -> None:
    async def ask(answer: asyncio.Future[str]) -> None:
        await answer
        pytest.fail("a dead process got an answer")

    async def main() -> None:
        answer = loop.create_future()
        worker = Process("worker")
        worker.spawn(ask(answer))
        await asyncio.sleep(1)
        worker.kill()
        answer.set_result("late")
        await asyncio.sleep(1)

    loop.run_until_complete(main())


def test_death_is_announced_in_the_process_that_asked(loop: SimLoop) -> None:
    heard: list[str] = []

    async def main() -> None:
        server, worker = Process("server"), Process("worker")
        server.run(worker.on_death, lambda: heard.append(CURRENT.get().name))
        worker.kill()
        assert heard == []
        await asyncio.sleep(1)

    loop.run_until_complete(main())
    assert heard == ["server"]


def test_a_process_paused_past_its_lease_finds_out_when_resumed(loop: SimLoop) -> None:
    lease_until = loop.time() + 10

    async def renew() -> None:
        while loop.time() < lease_until:
            loop.record("renew")
            await asyncio.sleep(3)
        loop.record("lease lost")

    async def main() -> None:
        worker = Process("worker")
        worker.spawn(renew())
        await asyncio.sleep(4)
        worker.pause()
        worker.call_soon(loop.record, "held")
        await asyncio.sleep(30)
        assert [entry.event for entry in loop.history] == ["renew", "renew"]
        worker.resume()
        await asyncio.sleep(1)

    loop.run_until_complete(main())
    assert [(round(entry.time), entry.event) for entry in loop.history] == [
        (0, "renew"),
        (3, "renew"),
        (34, "held"),
        (34, "lease lost"),
    ]


def test_what_a_process_starts_belongs_to_it(loop: SimLoop) -> None:
    async def child() -> None:
        loop.record("task")
        loop.call_later(1, loop.record, "timer")
        await asyncio.to_thread(loop.record, "thread")

    async def parent() -> None:
        loop.call_soon(loop.record, "callback")
        async with asyncio.TaskGroup() as group:
            group.create_task(child())

    async def main() -> None:
        Process("worker").spawn(parent())
        await asyncio.sleep(5)

    loop.run_until_complete(main())
    assert {entry.event for entry in loop.history} == {"task", "timer", "thread", "callback"}
    assert {entry.process for entry in loop.history} == {"worker"}


def test_finished_tasks_are_not_kept(loop: SimLoop) -> None:
    async def main() -> None:
        worker = Process("worker")
        for _ in range(1000):
            await worker.spawn(asyncio.sleep(0))
        assert len(worker._tasks) < 200

    loop.run_until_complete(main())
