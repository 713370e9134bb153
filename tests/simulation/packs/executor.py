"""Packs without processes: they take virtual time, succeed, fail, crash, or outlast their timebox."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from pyoco_server.core.priced.envelope import PackResult
from pyoco_server.executors.packs.port import Call, Executed, Faulted, Outcome, Stopped, TimedOut

__all__ = ["PACK", "PretendedPacks", "answer_to"]

PACK = "decision"
#: A pack that ignores a cancel is killed after this.
_KILL_SECONDS = 5.0


def answer_to(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The data of the envelope."""
    return {"answer": f"to {inputs['n']}"}


class PretendedExecution:
    """One call. `inputs`: `seconds` it takes, `end` (complete, fail, crash), its `cost`, whether it is `stubborn`."""

    def __init__(self, call: Call, on_crash: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[Outcome] = loop.create_future()
        self._inputs, self._on_crash = call.inputs, on_crash
        seconds = float(call.inputs["seconds"])
        if seconds < call.timebox_seconds:
            self._timer = loop.call_later(seconds, self._finish)
        else:
            self._timer = loop.call_later(call.timebox_seconds, self._conclude, TimedOut())

    def _finish(self) -> None:
        end = self._inputs["end"]
        if end == "complete":
            cost = int(self._inputs["cost"])
            self._conclude(Executed(PackResult(data=answer_to(self._inputs), actual_cost_usd_micros=cost)))
        elif end == "fail":
            self._conclude(Faulted("PRETENDED: it fails"))
        else:
            self._on_crash()
            self._conclude(Faulted("the process of the pack ended"))

    def _conclude(self, outcome: Outcome) -> None:
        if not self._ended.done():
            self._timer.cancel()
            self._ended.set_result(outcome)

    async def outcome(self) -> Outcome:
        return await asyncio.shield(self._ended)

    def cancel(self) -> None:
        delay = _KILL_SECONDS if self._inputs["stubborn"] else 0.05
        asyncio.get_running_loop().call_later(delay, self._conclude, Stopped())

    def kill(self) -> None:
        self._conclude(Stopped())


class PretendedSeat:
    def __init__(self, executor: PretendedPacks) -> None:
        self._executor = executor
        self._execution: PretendedExecution | None = None

    async def begin(self, call: Call) -> PretendedExecution:
        self._executor.on_begin(call.run_id)
        self._execution = PretendedExecution(call, self._executor.count_crash)
        return self._execution

    def leave(self) -> None:
        if self._execution is not None:
            self._execution.kill()


class PretendedPacks:
    """`executors/packs/port.py` without processes."""

    packs = frozenset({PACK})

    def __init__(self, on_begin: Callable[[str], None]) -> None:
        """`on_begin` is called with each run that is executed."""
        self.on_begin = on_begin
        self.restarts = 0

    def count_crash(self) -> None:
        self.restarts += 1

    async def start(self) -> None:
        """Nothing to start."""

    async def stop(self) -> None:
        """Nothing to stop."""

    async def seat(self) -> PretendedSeat:
        return PretendedSeat(self)
