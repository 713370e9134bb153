"""One run on one host, and the clocks that stop it: of the run, and of its tasks."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from pyoco_server.core.outcome import (
    NO_TERMS,
    NOTHING_YET,
    Cancelled,
    Died,
    Outcome,
    Progress,
    TaskTimedOut,
    Terms,
    TimedOut,
)
from pyoco_server.core.retries.matching import TIMEOUT, Failure
from pyoco_server.core.retries.task_course import TaskCourse
from pyoco_server.errors import CATALOGUE
from pyoco_server.executors.capture.port import Captured
from pyoco_server.executors.host import wire
from pyoco_server.executors.host.host import Host
from pyoco_server.executors.port import Work

__all__ = ["HostExecution"]


@dataclass(frozen=True)
class _Try:
    """A try of a task with a time limit."""

    remark: wire.Remark
    started_at: float
    timer: asyncio.TimerHandle


class HostExecution:
    """One attempt. The host is free as soon as its answer has arrived, even before the outcome is read."""

    def __init__(
        self,
        host: Host,
        work: Work,
        seconds_max: float,
        when_free: Callable[[Host], None],
        chance: Callable[[], float] = random.random,
    ) -> None:
        """`seconds_max`: no timeout is above it; 0: no limit."""
        self._host, self._seconds_max, self._when_free, self._chance = host, seconds_max, when_free, chance
        #: The outcome that explains why we killed the host, if we did.
        self._verdict: Outcome | None = None
        #: The decoded answer; None if it is malformed.
        self._outcome: Outcome | None = None
        self._terms = NO_TERMS
        self._is_timeout_given = work.timeout is not None
        #: The tries of tasks, as last heard; those with a limit that are in progress.
        self._courses = {name: TaskCourse.read(course) for name, course in work.task_tries.items()}
        self._tries: dict[str, _Try] = {}
        self._began_at = asyncio.get_running_loop().time()
        self._timer: asyncio.TimerHandle | None = None
        self._limit(work.timeout)
        self._answer = host.run(work.data, Captured(work.job.run_id, work.attempt), work.task_tries, self._on_remark)
        self._answer.add_done_callback(self._on_answer)

    def _limit(self, seconds: float | None) -> None:
        """Stop the run this long after its begin, and not later than allowed (RETRY-16)."""
        limits = [each for each in (seconds, self._seconds_max) if each]
        if self._timer is not None:
            self._timer.cancel()
        if limits:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_at(self._began_at + min(limits), self._expire, min(limits))

    def _on_remark(self, remark: wire.Remark) -> None:
        if self._answer.done():
            return
        if remark.terms is not None:
            self._adopt(remark.terms)
            return
        if remark.course is not None:
            self._courses[remark.task] = remark.course
        earlier = self._tries.pop(remark.task, None)
        if earlier is not None:
            earlier.timer.cancel()
        if remark.timeout is not None:
            timer = asyncio.get_running_loop().call_later(remark.timeout, self._expire_task, remark.task)
            self._tries[remark.task] = _Try(remark, time.time(), timer)

    def _adopt(self, terms: Terms) -> None:
        if terms.timeout is not None and self._seconds_max:
            terms = replace(terms, timeout=min(terms.timeout, self._seconds_max))
        self._terms = terms
        if not self._is_timeout_given:
            self._limit(terms.timeout)

    def _on_answer(self, answer: asyncio.Future[bytes | None]) -> None:
        self._stop_clocks()
        body = answer.result()
        if body is not None:  # decoded before the host is released: a host with a malformed answer gets no other run
            self._outcome = self._host.read_outcome(body)
        self._when_free(self._host)

    def _stop_clocks(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for each in self._tries.values():
            each.timer.cancel()

    def _expire(self, seconds: float) -> None:
        self._stop(TimedOut(seconds=seconds), "it ran for too long")

    def _expire_task(self, name: str) -> None:
        """Kill the host, whatever else runs on it: only a new process is certain not to contain the task any more."""
        over = self._tries.pop(name)
        remark, now = over.remark, time.time()
        again_after = None
        if remark.retry is not None:
            course = (remark.course or TaskCourse()).failed(
                remark.retry,
                Failure(TIMEOUT),
                f"the task took longer than {remark.timeout:g} s and was stopped",
                over.started_at,
                now,
                self._chance(),
            )
            self._courses[name] = course
            again_after = None if course.next_try_at is None else course.next_try_at - now
        tries: dict[str, Any] = {task: course.shown() for task, course in self._courses.items() if course.tries}
        verdict = TaskTimedOut(task=name, seconds=remark.timeout or 0.0, task_tries=tries, again_after=again_after)
        self._stop(verdict, "one of its tasks ran for too long")

    def _stop(self, verdict: Outcome, because: str) -> None:
        self._verdict = self._verdict or verdict
        self._stop_clocks()
        self._host.kill(because)

    async def outcome(self) -> Outcome:
        await asyncio.shield(self._answer)
        outcome = self._outcome
        if outcome is None:
            how = await self._host.how_it_ended()
            outcome = self._verdict or Died(how=how, status=self._host.own_status)
        return replace(outcome, progress=self._with_terms(outcome.progress))

    def _with_terms(self, progress: Progress) -> Progress:
        return progress if self._terms == NO_TERMS else replace(progress, terms=self._terms)

    # Once the answer has arrived the host serves another run: a late progress request or kill must have no effect.

    async def progress(self) -> Progress | None:
        if self._answer.done():
            return None
        progress = await self._host.progress()
        if progress is None and self._terms != NO_TERMS:
            progress = NOTHING_YET
        return None if progress is None else self._with_terms(progress)

    def ask_cancel(self) -> None:
        if not self._answer.done():
            self._host.ask_cancel()

    def kill(self) -> bool:
        if self._answer.done():
            return True
        text = CATALOGUE[21]
        self._stop(Cancelled(note=f"{text.err_id}: {text.en} Its process was killed."), "it was cancelled")
        return True
