"""Flows in threads of this process: for a worker used as a library, with a resolver that lives in the program.

What it cannot do: stop a task that does not want to stop. Threads cannot be killed (ENG-20).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from pyoco_server.core.job import decode_job
from pyoco_server.core.outcome import Outcome, Progress
from pyoco_server.executors.flow.build import FlowBuilder
from pyoco_server.executors.flow.engine import EngineRun
from pyoco_server.executors.port import Work

__all__ = ["ThreadExecutor"]


class _ThreadExecution:
    def __init__(self, run: EngineRun, when_free: Callable[[], None]) -> None:
        self._run, self._when_free = run, when_free
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[Outcome] = self._loop.create_future()
        # A daemon, so that a task that never ends does not keep the program from ending.
        self._thread = threading.Thread(target=self._work, name="pyoco run", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        outcome = self._run.execute()
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._end, outcome)

    def _end(self, outcome: Outcome) -> None:
        self._when_free()
        if not self._ended.done():
            self._ended.set_result(outcome)

    async def outcome(self) -> Outcome:
        return await asyncio.shield(self._ended)

    async def progress(self) -> Progress | None:
        return self._run.progress()

    def ask_cancel(self) -> None:
        self._run.ask_cancel()

    def kill(self) -> bool:
        return False


class ThreadExecutor:
    def __init__(self, build: FlowBuilder) -> None:
        self._build = build
        self.restarts = 0

    async def start(self) -> None:
        """Nothing to prepare."""

    async def stop(self) -> None:
        """Nothing that could be ended."""

    async def begin(self, work: Work, when_free: Callable[[], None]) -> _ThreadExecution:
        # Read anew: tasks may change their params to any depth (ENG-7), and the record shows what was submitted.
        return _ThreadExecution(EngineRun(decode_job(work.data), self._build), when_free)
