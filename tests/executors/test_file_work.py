"""Work on files: beside the event loop, and to its end."""

from __future__ import annotations

import asyncio
import threading

import pytest

from pyoco_server.executors.wheels.file_work import file_work


async def test_it_is_done_in_a_thread_and_answers() -> None:
    assert await file_work(threading.get_ident) != threading.get_ident()
    assert await file_work(sorted, [1, 2], reverse=True) == [2, 1]
    with pytest.raises(FileNotFoundError):
        await file_work(open, "/no/such/file")


@pytest.mark.parametrize("fails", [False, True])
async def test_a_cancel_waits_for_its_end(fails: bool) -> None:
    """However often it comes; and what the work says then is of no interest."""
    began, go_on, is_over = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        began.set()
        go_on.wait(100)
        is_over.set()
        if fails:
            raise OSError

    task = asyncio.create_task(file_work(work))
    await asyncio.to_thread(began.wait, 100)
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0)
    assert not task.done()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert is_over.is_set()
