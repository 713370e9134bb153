"""Packs in simulated processes: they take virtual time, succeed, fail, crash, or outlast their timebox."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from pyoco_server.core.priced.envelope import PackResult
from pyoco_server.executors.packs.port import Call, Executed, Faulted, Outcome, Stopped, TimedOut
from simulation.hosts import HostedWork
from simulation.process import CURRENT, Process

__all__ = ["PACK", "PretendedPacks", "answer_to"]

PACK = "decision"
#: A pack that ignores a cancel is killed after this.
_KILL_SECONDS = 5.0


def answer_to(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The data of the envelope."""
    return {"answer": f"to {inputs['n']}"}


class PretendedExecution:
    """One call. `inputs`: `seconds` it takes, `end` (complete, fail, crash), its `cost`, whether it is `stubborn`."""

    def __init__(self, call: Call, hosted: HostedWork[Outcome], died: Callable[[], Outcome]) -> None:
        self._hosted, self._inputs, self._died = hosted, call.inputs, died
        hosted.end_after(float(call.inputs["seconds"]), self._result)
        # The worker looks at the clock, also of a pack that stands still.
        asyncio.get_running_loop().call_later(call.timebox_seconds, hosted.conclude, TimedOut)

    def _result(self) -> Outcome:
        end = self._inputs["end"]
        if end == "complete":
            cost = int(self._inputs["cost"])
            return Executed(PackResult(data=answer_to(self._inputs), actual_cost_usd_micros=cost))
        return Faulted("PRETENDED: it fails") if end == "fail" else self._died()

    async def outcome(self) -> Outcome:
        return await self._hosted.outcome()

    def cancel(self) -> None:
        self._hosted.end_after(_KILL_SECONDS if self._inputs["stubborn"] else 0.05, Stopped)

    def kill(self) -> None:
        self._hosted.conclude(Stopped)


class PretendedProcess:
    def __init__(self, executor: PretendedPacks) -> None:
        self._executor = executor
        self._execution: PretendedExecution | None = None

    async def begin(self, call: Call) -> PretendedExecution:
        self._executor.on_begin(call.run_id)
        died = self._executor.died
        self._execution = PretendedExecution(call, HostedWork(self._executor.new_host(), CURRENT.get(), died), died)
        return self._execution

    def leave(self) -> None:
        if self._execution is not None:
            self._execution.kill()


class PretendedPacks:
    """`executors/packs/port.py` with calls in simulated processes."""

    packs = frozenset({PACK})

    def __init__(self, new_host: Callable[[], Process], on_begin: Callable[[str], None]) -> None:
        """`on_begin` is called with each run that is executed."""
        self.new_host, self.on_begin = new_host, on_begin
        self.restarts = 0

    def died(self) -> Outcome:
        self.restarts += 1
        return Faulted("the process of the pack ended")

    async def start(self) -> None:
        """Nothing to start."""

    async def stop(self) -> None:
        """Nothing to stop."""

    async def reserve_process(self) -> PretendedProcess:
        return PretendedProcess(self)
