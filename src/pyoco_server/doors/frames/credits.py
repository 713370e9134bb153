"""The workers connected to this door, and which of them gets the next job of a program (GRID-59, GRID-66)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import Protocol

from pyoco_server.actions.programs.attempt import ProgramAttempt

__all__ = ["CREDITS_MAX", "CreditHolder", "WorkerCredit", "WorkerCredits"]

#: Limit of credits per worker; further ones are dropped (GRID-66).
CREDITS_MAX = 10_000
#: Limit of programs whose workers are cached. Names come from lanes, so an operator can see them; bounded nonetheless.
_EXECS_MAX = 10_000


class CreditHolder(Protocol):
    """A worker's connection, as far as assigning jobs requires."""

    @property
    def worker_id(self) -> str: ...

    @property
    def is_open(self) -> bool: ...

    def takes(self, exec_name: str) -> bool:
        """Return whether one of its patterns matches, whether or not it has the program."""

    def accepts(self, exec_name: str) -> bool:
        """Return whether one of its patterns matches, and it has the program as far as is known (FIND-14).

        The result may be cached until `WorkerCredits.changed`.
        """

    def may_handle(self, tenant: str | None) -> bool:
        """Return whether it may run jobs of this tenant (SAFE-4)."""

    async def hand_over(self, attempt: ProgramAttempt) -> None:
        """Send the job, without waiting for the worker to read. Raises WorkerLost if the connection has ended."""


class WorkerCredit:
    """One credit of one worker, reserved."""

    def __init__(self, worker: CreditHolder, return_unused: Callable[[], None], serve: Callable[[], None]) -> None:
        self._worker, self._return, self._serve = worker, return_unused, serve
        self.worker_id = worker.worker_id

    def return_unused(self) -> None:
        """Release the credit: there was no job for it. It is still this worker's turn."""
        self._return()

    async def start(self, attempt: ProgramAttempt) -> None:
        self._serve()
        await self._worker.hand_over(attempt)


class WorkerCredits:
    """Credits by connection, dropped when it ends (GRID-68). Turns are kept by program, also over idle times.

    `may_run` is called for every assignment, so a change of the ACL takes effect immediately (GRID-168).
    """

    def __init__(self, may_run: Callable[[str, str], bool]) -> None:
        self._may_run = may_run
        #: In the order in which the workers connected: dictionaries keep it.
        self._credits: dict[CreditHolder, int] = {}
        self._numbers: dict[CreditHolder, int] = {}
        self._joined = 0
        #: By program: the workers that take and have it, by number.
        self._able: dict[str, list[CreditHolder]] = {}
        #: By program: the worker served last, then the workers of the credits reserved since, oldest first. Credits may
        #: be released in any order.
        self._turns: dict[str, dict[int, int]] = {}
        self._reserved = 0
        self._is_closed = False

    def add(self, worker: CreditHolder) -> None:
        self._joined += 1
        self._numbers[worker] = self._joined
        self._credits[worker] = 0
        self._able.clear()

    def remove(self, worker: CreditHolder) -> None:
        """Idempotent."""
        if self._credits.pop(worker, None) is not None:
            del self._numbers[worker]
            self._able.clear()

    def changed(self) -> None:
        """Note that the programs of a worker have changed."""
        self._able.clear()

    def close(self) -> None:
        """Stop assigning jobs: the door drains."""
        self._is_closed = True

    def add_credits(self, worker: CreditHolder, count: int) -> None:
        """Add credits. Has no effect for a worker that has disconnected."""
        if worker in self._credits:
            self._credits[worker] = min(self._credits[worker] + count, CREDITS_MAX)

    def credits(self, worker: CreditHolder) -> int:
        return self._credits.get(worker, 0)

    def workers(self) -> list[CreditHolder]:
        return list(self._credits)

    def reserve_credit(self, exec_name: str, tenant: str | None = None) -> WorkerCredit | None:
        """Reserve a credit of the next worker in turn that has one and may run the program for this tenant.

        O(workers that match).
        """
        if self._is_closed:
            return None
        able = self._able_of(exec_name)
        last = next(reversed(self._turns.get(exec_name, {}).values()), 0)
        start = bisect_right(able, last, key=self._numbers.__getitem__)
        for worker in (*able[start:], *able[:start]):
            if self._credits[worker] > 0 and self._may_have(worker, exec_name, tenant):
                return self._reserve(worker, exec_name)
        return None

    def _may_have(self, worker: CreditHolder, exec_name: str, tenant: str | None) -> bool:
        return worker.is_open and self._may_run(worker.worker_id, exec_name) and worker.may_handle(tenant)

    def _reserve(self, worker: CreditHolder, exec_name: str) -> WorkerCredit:
        turns = self._turns.setdefault(exec_name, {})
        self._reserved += 1
        reservation = self._reserved
        turns[reservation] = self._numbers[worker]
        self._credits[worker] -= 1

        def return_unused() -> None:
            self.add_credits(worker, 1)
            turns.pop(reservation, None)

        def serve() -> None:
            for each in [each for each in turns if each < reservation]:
                del turns[each]

        return WorkerCredit(worker, return_unused, serve)

    def serves(self, exec_name: str) -> bool:
        """Return whether a worker could run the program, now or once it has a credit."""
        return not self._is_closed and any(
            self._may_run(worker.worker_id, exec_name) for worker in self._able_of(exec_name)
        )

    def takes(self, exec_name: str) -> bool:
        """Return whether a worker could run the program according to patterns and ACL, if it had it. O(workers)."""
        return not self._is_closed and any(
            worker.takes(exec_name) and self._may_run(worker.worker_id, exec_name) for worker in self._numbers
        )

    def _able_of(self, exec_name: str) -> list[CreditHolder]:
        able = self._able.get(exec_name)
        if able is None:
            if len(self._able) >= _EXECS_MAX:
                self._able.clear()
                self._turns.clear()
            able = self._able[exec_name] = [worker for worker in self._numbers if worker.accepts(exec_name)]
        return able
