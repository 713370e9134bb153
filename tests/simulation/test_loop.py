"""The simulated event loop: virtual time, order, determinism, and everything of asyncio that the product uses."""

from __future__ import annotations

import asyncio
import contextvars
import os
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from simulation.history import format_history
from simulation.loop import SimLoop
from simulation.process import Process
from simulation.stuck import SimulationStuck
from simulation.unsupported import NotSimulated


@pytest.fixture
def loop() -> Iterator[SimLoop]:
    loop = SimLoop(1)
    yield loop
    loop.close()
    assert loop.failures == []


def _interleaving(seed: int) -> str:
    """The history of three processes with two tasks each."""
    loop = SimLoop(seed)

    async def work(name: str) -> None:
        for step in range(5):
            loop.record("step", task=name, step=step)
            await asyncio.sleep(0 if step % 2 else 0.001)

    async def main() -> None:
        processes = [Process(f"p{number}") for number in range(3)]
        await asyncio.gather(*(process.spawn(work(name)) for process in processes for name in "ab"))

    loop.run_until_complete(main())
    loop.close()
    return format_history(loop.history)


def test_days_of_virtual_time_pass_at_once(loop: SimLoop) -> None:
    began = time.perf_counter()
    loop.run_until_complete(asyncio.sleep(7 * 86400))
    assert loop.elapsed() == pytest.approx(7 * 86400, abs=0.001)
    assert time.perf_counter() - began < 60


def test_timers_fire_at_their_exact_time(loop: SimLoop) -> None:
    async def main() -> None:
        fired: list[float] = []
        start = loop.time()
        for delay in (5.5, 0.25, 3600.0):
            loop.call_at(start + delay, lambda: fired.append(loop.time() - start))
        await asyncio.sleep(4000)
        assert fired == [0.25, 5.5, 3600.0]

    loop.run_until_complete(main())


def test_timers_due_at_the_same_time_keep_the_order_in_which_they_were_set(loop: SimLoop) -> None:
    fired: list[int] = []

    async def main() -> None:
        when = loop.time() + 1
        for number in range(50):
            loop.call_at(when, fired.append, number)
        await asyncio.sleep(2)

    loop.run_until_complete(main())
    assert fired == list(range(50))


def test_a_cancelled_timer_does_not_fire_and_does_not_stay(loop: SimLoop) -> None:
    async def main() -> None:
        for _ in range(10_000):
            loop.call_later(60, pytest.fail, "a cancelled timer fired").cancel()
        assert len(loop._timers.heap) < 1000
        await asyncio.sleep(120)

    loop.run_until_complete(main())


def test_handles_of_one_process_are_executed_in_order(loop: SimLoop) -> None:
    executed: dict[str, list[int]] = {"a": [], "b": []}

    async def main() -> None:
        processes = {name: Process(name) for name in executed}
        for number in range(100):
            for name, process in processes.items():
                process.call_soon(executed[name].append, number)
        await asyncio.sleep(1)

    loop.run_until_complete(main())
    assert executed == {"a": list(range(100)), "b": list(range(100))}


def test_the_same_seed_gives_the_same_history_and_other_seeds_give_others() -> None:
    assert _interleaving(7) == _interleaving(7)
    assert len({_interleaving(seed) for seed in range(20)}) == 20


def test_the_order_of_processes_depends_on_the_seed() -> None:
    orders = set()
    for seed in range(20):
        lines = _interleaving(seed).splitlines()
        orders.add(tuple(line.split()[1] for line in lines))
    assert len(orders) > 10


_SCRIPT = """
import asyncio
from simulation.history import format_history
from simulation.loop import SimLoop
from simulation.process import Process

loop = SimLoop(3)

async def work(name):
    for step in range(3):
        await asyncio.sleep(0.001 * (hash_free := len(name)))
        loop.record("step", task=asyncio.current_task().get_name(), step=step)

async def main():
    for process in [Process(name) for name in ("gateway", "worker")]:
        tasks = {process.spawn(work(name)) for name in ("a", "bb", "ccc", "dddd")}
        tasks |= {loop.create_future() for _ in range(3)}
        for task in tasks:
            loop.record("in set", hash=hash(task))
        done, _ = await asyncio.wait(tasks, timeout=1)
        for task in done:
            loop.record("done", name=task.get_name())

loop.run_until_complete(main())
print(format_history(loop.history), end="")
loop.close()
"""


def test_the_history_does_not_depend_on_the_interpreters_hash_seed() -> None:
    outputs = set()
    for hash_seed in ("0", "1", "4711"):
        environment = os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", _SCRIPT], env=environment, capture_output=True, text=True, check=True
        )
        assert not done.stderr
        outputs.add(done.stdout)
    (output,) = outputs
    assert len(output.splitlines()) == 2 * (7 + 12 + 4)


def test_history_lines_have_time_process_event_and_facts(loop: SimLoop) -> None:
    Process("door", loop=loop).run(lambda: loop.record("stored", run="r1", note="two words", states={"b", "a"}))
    assert (
        format_history(loop.history)
        == "       0.000000 door         stored run=r1 note='two words' states={'a', 'b'}\n"
    )


async def _timeout_and_wait_for() -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(2):
            await asyncio.Event().wait()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.sleep(10), 2)


async def _task_group() -> None:
    group = asyncio.TaskGroup()
    await group.__aenter__()
    slow, _ = group.create_task(asyncio.sleep(100)), group.create_task(_fail_after(1))
    with pytest.raises(ExceptionGroup):
        await group.__aexit__(None, None, None)
    assert slow.cancelled()


async def _fail_after(seconds: float) -> None:
    await asyncio.sleep(seconds)
    raise ValueError("expected")


async def _shield() -> None:
    inner = asyncio.create_task(asyncio.sleep(1, "kept"))
    outer = asyncio.ensure_future(asyncio.shield(inner))
    await asyncio.sleep(0.5)
    outer.cancel()
    assert await inner == "kept"


async def _queue_and_locks() -> None:
    queue: asyncio.Queue[int] = asyncio.Queue(1)
    lock, semaphore = asyncio.Lock(), asyncio.Semaphore(2)
    seen: list[int] = []

    async def produce() -> None:
        for number in range(10):
            async with lock, semaphore:
                await queue.put(number)

    producing = asyncio.create_task(produce())
    while len(seen) < 10:
        seen.append(await queue.get())
    await producing
    assert seen == list(range(10))


async def _wait() -> None:
    tasks = [asyncio.create_task(asyncio.sleep(seconds)) for seconds in (1, 5)]
    done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    assert (done, pending) == ({tasks[0]}, {tasks[1]})
    assert await asyncio.gather(*tasks, _fail_after(0.1), return_exceptions=True)


async def _context_variables() -> None:
    variable = contextvars.ContextVar("variable", default=0)
    context = contextvars.copy_context()
    context.run(variable.set, 5)
    heard = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(lambda: heard.set_result(variable.get()), context=context)
    assert (await heard, variable.get()) == (5, 0)


@pytest.mark.parametrize("scenario", [
    _timeout_and_wait_for, _task_group, _shield, _queue_and_locks, _wait, _context_variables,
])  # fmt: skip
def test_asyncio_works(loop: SimLoop, scenario: Any) -> None:
    loop.run_until_complete(scenario())


def test_a_task_factory_is_used(loop: SimLoop) -> None:
    made: list[str] = []

    def factory(loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> asyncio.Task[Any]:
        made.append(coro.__qualname__)
        return asyncio.Task(coro, loop=loop, **options)

    loop.set_task_factory(factory)
    loop.run_until_complete(_context_variables())
    assert loop.get_task_factory() is factory
    assert made == ["_context_variables"]


def test_functions_for_threads_run_in_this_thread_without_a_running_loop(loop: SimLoop) -> None:
    def work() -> int:
        with pytest.raises(RuntimeError, match="no running event loop"):
            asyncio.get_running_loop()
        return threading.get_ident()

    def fail() -> None:
        raise KeyError("expected")

    async def main() -> None:
        assert await asyncio.to_thread(work) == threading.get_ident()
        with pytest.raises(KeyError):
            await loop.run_in_executor(None, fail)

    loop.run_until_complete(main())


def test_functions_of_an_own_executor_keep_their_order_and_start_no_thread(loop: SimLoop) -> None:
    executed: list[int] = []

    async def main(pool: ThreadPoolExecutor) -> None:
        await asyncio.gather(*(loop.run_in_executor(pool, executed.append, number) for number in range(20)))

    with ThreadPoolExecutor(1) as pool:
        loop.run_until_complete(main(pool))
        assert not pool._threads
    assert executed == list(range(20))


def test_functions_of_the_default_executor_overtake_each_other(loop: SimLoop) -> None:
    executed: list[int] = []

    async def main() -> None:
        await asyncio.gather(*(asyncio.to_thread(executed.append, number) for number in range(20)))

    loop.run_until_complete(main())
    assert sorted(executed) == list(range(20)) != executed


def test_a_deadlock_is_reported_with_the_place_of_each_waiting_task() -> None:
    loop = SimLoop(1)

    async def numbers() -> AsyncIterator[int]:
        yield 1
        await asyncio.Event().wait()

    async def wait_in_generator() -> None:
        async for _ in numbers():
            pass

    async def main() -> None:
        Process("worker").spawn(wait_in_generator(), "reader")
        await asyncio.Lock().acquire()
        await loop.create_future()

    with pytest.raises(SimulationStuck) as stuck:
        loop.run_until_complete(main())
    text = str(stuck.value)
    assert "deadlock" in text
    assert " in main" in text
    assert "worker: reader: test_loop.py:" in text
    assert "in wait_in_generator > test_loop.py:" in text
    assert "in numbers > locks.py:" in text
    loop.close()


@pytest.mark.parametrize("limits", [{"steps_max": 1000}, {"seconds_max": 100.0}])
def test_limits_of_steps_and_virtual_time_end_a_simulation(limits: dict[str, Any]) -> None:
    loop = SimLoop(1, **limits)

    async def main() -> None:
        while True:
            await asyncio.sleep(1)

    with pytest.raises(SimulationStuck, match="limit reached"):
        loop.run_until_complete(main())
    loop.close()


def test_exceptions_that_nobody_handles_are_collected_with_their_process() -> None:
    loop = SimLoop(1)

    def fail() -> None:
        raise ValueError("expected")

    async def main() -> None:
        worker = Process("worker")
        worker.call_soon(fail)
        worker.spawn(_fail_after(1))
        await asyncio.sleep(2)

    loop.run_until_complete(main())
    loop.close()
    assert [(each.process, type(each.error)) for each in loop.failures] == [("worker", ValueError)] * 2


def test_an_abandoned_generator_is_closed_and_the_rest_by_shutdown(loop: SimLoop) -> None:
    closed: list[str] = []

    async def numbers(name: str) -> AsyncIterator[int]:
        try:
            yield 1
            yield 2
        finally:
            await asyncio.sleep(0.1)
            closed.append(name)

    async def main() -> None:
        async for _ in numbers("abandoned"):
            break
        await asyncio.sleep(1)
        assert closed == ["abandoned"]
        kept = numbers("kept")
        await anext(kept)
        await loop.shutdown_asyncgens()

    loop.run_until_complete(main())
    assert closed == ["abandoned", "kept"]


def test_sockets_signals_and_child_processes_are_refused(loop: SimLoop) -> None:
    async def main() -> None:
        with pytest.raises(NotSimulated, match="create_connection"):
            await asyncio.open_connection("localhost", 1)
        with pytest.raises(NotSimulated, match="subprocess_exec"):
            await asyncio.create_subprocess_exec("true")
        with pytest.raises(NotSimulated, match="add_signal_handler"):
            loop.add_signal_handler(2, print)

    loop.run_until_complete(main())


def test_call_soon_threadsafe_from_another_thread_is_an_error(loop: SimLoop) -> None:
    errors: list[BaseException] = []

    def call() -> None:
        try:
            loop.call_soon_threadsafe(print)
        except RuntimeError as error:
            errors.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    assert "must not start threads" in str(errors[0])


def test_a_closed_loop_accepts_nothing() -> None:
    loop = SimLoop(1)
    loop.run_until_complete(asyncio.sleep(1))
    loop.close()
    loop.close()
    assert loop.is_closed()
    with pytest.raises(RuntimeError, match="closed"):
        loop.call_soon(print)


def test_run_forever_runs_until_stop(loop: SimLoop) -> None:
    loop.call_later(5, loop.stop)
    loop.run_forever()
    assert 5 <= loop.elapsed() < 5.001
    assert not loop.is_running()
