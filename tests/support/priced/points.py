"""The named points of contract 23.3, as calls of the ports: tests pause or kill a process before or after one.

Production code does not know them, so nothing can enable them there.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Any

from pyoco_server.core.priced.message import BadMessage, decode
from pyoco_server.core.priced.result_key import ENVELOPE_NAME
from pyoco_server.core.priced.run import PricedRun
from pyoco_server.ports.ledger.port import LedgerTx
from pyoco_server.ports.pack_queue.port import Delivery
from pyoco_server.ports.priced import Priced

__all__ = ["Killed", "Points", "watched"]

Reached = Callable[[str], Awaitable[None]]

#: Before the transaction with this operation.
_BEFORE: Mapping[str, tuple[str, ...]] = {
    # Row, reservation and T2 are one transaction (joint mode): a crash within it equals a crash before it.
    "runs.create_reserved": ("submit.after_insert", "submit.after_reserve"),
    "runs.mark_reserved": ("submit.after_reserve",),
    "ends.commit": ("finalize.after_money",),
}
#: After the transaction in which this operation returned a row.
_AFTER: Mapping[str, str] = {
    "runs.create": "submit.after_insert",
    "runs.create_reserved": "submit.after_mark_reserved",
    "runs.mark_reserved": "submit.after_mark_reserved",
    "leases.start": "worker.after_start",
    "ends.claim": "finalize.after_claim",
    "ends.take_over": "finalize.after_claim",
    "ends.commit": "finalize.after_commit",
}
_GROUPS = ("runs", "leases", "ends")


class Killed(BaseException):
    """The process crashes at this point; no code may catch it."""


@dataclass
class Points:
    """What happens at the points, and which were reached."""

    reached: list[str] = field(default_factory=list)
    #: The process dies here.
    kill_at: str | None = None
    #: Called, and waited for, at a point.
    meanwhile: dict[str, Callable[[], Any]] = field(default_factory=dict)

    async def __call__(self, name: str) -> None:
        self.reached.append(name)
        if name == self.kill_at:
            self.kill_at = None
            raise Killed(name)
        happening = self.meanwhile.pop(name, None)
        if happening is not None:
            await happening()


def watched(priced: Priced, reached: Reached) -> Priced:
    """The same bundle, which calls `reached` at each point."""
    ended = set[str]()
    ports: dict[str, Any] = {
        "ledger": _Ledger(priced.ledger, reached, ended),
        "queue": _Queue(priced.queue, reached, ended),
        "results": _Results(priced.results, reached),
        "inputs": _Inputs(priced.inputs, reached),
    }
    return replace(priced, **ports)


class _Port:
    def __init__(self, real: Any, reached: Reached) -> None:
        self._real, self._reached = real, reached

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


class _Ledger(_Port):
    def __init__(self, real: Any, reached: Reached, ended: set[str]) -> None:
        super().__init__(real, reached)
        self._ended = ended

    async def transact(self, work: Callable[[LedgerTx], Any]) -> Any:
        announced = set[str]()
        while True:
            done: list[tuple[str, Any]] = []
            try:
                answer = await self._real.transact(functools.partial(_recorded, work, announced, done))
                break
            except _Before as before:  # rolled back: nothing has happened yet
                announced.add(before.operation)
                for point in _BEFORE[before.operation]:
                    await self._reached(point)
        for operation, row in done:
            if operation in _AFTER and isinstance(row, PricedRun):
                if operation == "ends.commit":
                    self._ended.add(row.run_id)
                await self._reached(_AFTER[operation])
        return answer


class _Before(Exception):
    """Rolls back a transaction that would do this operation, to be run again after its points."""

    def __init__(self, operation: str) -> None:
        super().__init__(operation)
        self.operation = operation


def _recorded(work: Callable[[LedgerTx], Any], announced: Set[str], done: list[tuple[str, Any]], tx: LedgerTx) -> Any:
    done.clear()  # it may run more than once
    groups: dict[str, Any] = {name: _Recorder(name, getattr(tx, name), announced, done) for name in _GROUPS}
    return work(replace(tx, **groups))


@dataclass(frozen=True)
class _Recorder:
    """One group of a transaction's operations, and what each of them returned."""

    name: str
    real: Any
    announced: Set[str]
    done: list[tuple[str, Any]]

    def __getattr__(self, method: str) -> Any:
        operation = f"{self.name}.{method}"

        def call(*args: Any, **more: Any) -> Any:
            if operation in _BEFORE and operation not in self.announced:
                raise _Before(operation)
            answer = getattr(self.real, method)(*args, **more)
            self.done.append((operation, answer))
            return answer

        return call


class _Queue(_Port):
    def __init__(self, real: Any, reached: Reached, ended: set[str]) -> None:
        super().__init__(real, reached)
        self._ended = ended

    async def send(self, *args: Any) -> None:
        await self._real.send(*args)
        await self._reached("submit.after_send")

    async def ack(self, delivery: Delivery) -> None:
        if _run_id(delivery) in self._ended:
            await self._reached("worker.before_ack")
        await self._real.ack(delivery)


def _run_id(delivery: Delivery) -> str:
    try:
        return decode(delivery.body).run_id
    except BadMessage:
        return ""


class _Results(_Port):
    async def put(self, key: str, *args: Any) -> Any:
        answer = await self._real.put(key, *args)
        if key.endswith(ENVELOPE_NAME):  # the last object of a result
            await self._reached("worker.after_upload")
        return answer


class _Inputs(_Port):
    async def put(self, *args: Any) -> None:
        await self._reached("upload.after_reserve")
        await self._real.put(*args)
        await self._reached("upload.after_store")
