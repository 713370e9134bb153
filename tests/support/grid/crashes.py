"""Processes that die at a step of a job: right before or after one call of a port (P30)."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pyoco_server.actions.programs.reach import programs_of
from pyoco_server.core.programs.moves import program_of
from pyoco_server.core.run import Run
from pyoco_server.core.states import RunState
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.program_events.port import Event, EventName
from pyoco_server.ports.queue.port import Reply
from pyoco_server.ports.wakeups.port import Wakeup

__all__ = ["POINTS", "Crash", "Step", "crashing_at", "dying", "step_of"]


class Crash(BaseException):
    """The process has crashed: nothing is cleaned up."""


@dataclass(frozen=True)
class Step:
    """A call of a port. `programs.queue.put`: the method `put` of the port `queue` of `Programs`."""

    call: str
    #: Whether a call with these arguments is the one.
    matches: Callable[..., bool] = lambda *_: True
    #: The step is complete after the call; else it is the one before the call.
    is_after: bool = True

    @property
    def port(self) -> str:
        return self.call.rpartition(".")[0]

    @property
    def method(self) -> str:
        return self.call.rpartition(".")[2]


def _writes(*states: RunState, noted: bool = False) -> Callable[..., bool]:
    """A record in one of these states; `noted`: one that says that its dead letter is written."""
    return lambda run, *_: isinstance(run, Run) and run.status in states and program_of(run).dlq_done == noted


def _tells(*names: EventName) -> Callable[..., bool]:
    return lambda event, *_: isinstance(event, Event) and event.event in names


_ENDED = (RunState.COMPLETED, RunState.FAILED, RunState.CANCELLED)
_REQUEUES = (EventName.TIMEOUT_REQUEUE, EventName.WORKER_DOWN_REQUEUE)
_STEPS: Mapping[str, Step] = {
    "submit.stored": Step("runs.create", is_after=False),
    "submit.recorded": Step("runs.create"),
    "submit.told": Step("programs.events.record", _tells(EventName.ENQUEUE)),
    "submit.queued": Step("programs.queue.put"),
    "claim.slot_taken": Step("programs.slots.take"),
    "claim.recorded": Step("runs.replace", _writes(RunState.RUNNING)),
    "claim.slot_filled": Step("programs.slots.fill"),
    "claim.told": Step("programs.events.tell", _tells(EventName.ASSIGN)),
    "finish.stored": Step("runs.replace", _writes(*_ENDED), is_after=False),
    "finish.recorded": Step("runs.replace", _writes(*_ENDED)),
    "finish.buried": Step("queue.bury"),
    "finish.noted": Step("runs.replace", _writes(*_ENDED, noted=True)),
    "finish.told": Step("programs.events.record", _tells(EventName.ACK, EventName.DLQ, EventName.CANCEL)),
    "finish.answered": Step("delivery.answer", lambda reply, *_: reply is Reply.ACK),
    "put_back.recorded": Step("runs.replace", _writes(RunState.PENDING)),
    "put_back.told": Step("programs.events.tell", _tells(*_REQUEUES)),
    "put_back.answered": Step("programs.wakeups.tell", lambda _, wakeup, *__: wakeup is Wakeup.DONE),
    "reattach.recorded": Step("runs.replace", _writes(RunState.RUNNING)),
    "cancel.recorded": Step("runs.replace", _writes(RunState.CANCELLED)),
}
#: Between any two of these a process may die; what it leaves is repaired by others.
POINTS = tuple(_STEPS)

Call = Callable[..., Awaitable[Any]]


def step_of(point: str) -> Step:
    return _STEPS[point]


def dying(step: Step, real: Call, die: Callable[[], None]) -> Call:
    """The method of this step, which calls `die` before or after it."""

    async def call(*args: Any, **more: Any) -> Any:
        is_it = step.matches(*args)
        if is_it and not step.is_after:
            die()
        answer = await real(*args, **more)
        if is_it and step.is_after:
            die()
        return answer

    return call


@dataclass
class _Death:
    """When a process dies, and that it has."""

    step: Step
    point: str
    seen: list[str]

    def strike(self) -> None:
        self.seen.append(self.point)
        raise Crash(self.point)

    def guard(self, port: str, method: str, real: Call) -> Call:
        """A crashed process makes no calls."""
        is_it = (port, method) == (self.step.port, self.step.method)
        inner = dying(self.step, real, self.strike) if is_it else real

        async def call(*args: Any, **more: Any) -> Any:
            if self.seen:
                raise Crash(self.point)
            answer = await inner(*args, **more)
            if (port, method) == ("programs.queue", "take"):
                return [_Mortal(delivery, "delivery", self) for delivery in answer]
            return answer

        return call


class _Mortal:
    """A port, or a delivery, of a process that is about to die."""

    def __init__(self, real: object, name: str, death: _Death) -> None:
        self._real, self._name, self._death = real, name, death

    def __getattr__(self, method: str) -> Any:
        real = getattr(self._real, method)
        return self._death.guard(self._name, method, real) if inspect.iscoroutinefunction(real) else real


def crashing_at(backend: Backend, point: str) -> tuple[Backend, list[str]]:
    """The same process, which dies when it gets there; and a list with the point once it has."""
    death = _Death(_STEPS[point], point, [])
    programs = programs_of(backend)
    own: dict[str, Any] = {name: _Mortal(getattr(backend, name), name, death) for name in ("runs", "queue")}
    theirs: dict[str, Any] = {
        name: _Mortal(getattr(programs, name), f"programs.{name}", death)
        for name in ("queue", "slots", "events", "wakeups", "artifacts")
    }
    return replace(backend, **own, programs=replace(programs, **theirs)), death.seen
