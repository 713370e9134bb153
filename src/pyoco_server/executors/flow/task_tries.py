"""Tries the tasks of a run as their policies say (RETRY-13)."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from pyoco.core.models import RunContext, RunStatus, Task, TaskState

from pyoco_server.core.retries.policy import to_document
from pyoco_server.core.retries.task_course import TaskCourse, TaskTerms
from pyoco_server.executors.flow.asked_retries import CurrentTry, RetryAsked, within
from pyoco_server.executors.flow.exception_text import exception_text
from pyoco_server.executors.flow.failures import failure_of
from pyoco_server.executors.flow.terms import task_terms_of

__all__ = ["Pace", "TaskTries", "Tell"]

#: Receives a message to the worker, which stops a task that takes too long.
Tell = Callable[[Mapping[str, Any]], None]

#: A wait ends this soon after another task has failed the run. A cancel request ends it at once.
_LOOK_SECONDS = 0.2


class Pace(Protocol):
    """The clock that waits between tries follow, and their randomness."""

    def chance(self) -> float:
        """Return a random number from 0.0 to 1.0."""

    def now(self) -> float:
        """Return Unix seconds."""

    def wait(self, until: float, cancelled: threading.Event) -> bool:
        """Wait until this instant or for a fraction of a second, whichever is sooner. True: `cancelled` was set."""


class _ClockPace:
    def chance(self) -> float:
        return random.random()  # noqa: S311  (spreads load)

    def now(self) -> float:
        return time.time()

    def wait(self, until: float, cancelled: threading.Event) -> bool:
        return cancelled.wait(max(0.0, min(until - time.time(), _LOOK_SECONDS)))


class TaskTries:
    """The tasks of one run. Threads of the engine call it concurrently, for different tasks."""

    def __init__(
        self,
        context: RunContext,
        earlier: Mapping[str, Any],
        tell: Tell,
        chance: Callable[[], float] | None = None,
        pace: Pace | None = None,
    ) -> None:
        """`earlier`: the tries of tasks in earlier attempts of this try of the run, as its record has them. `pace`:
        another clock than that of this machine; `chance`: another randomness."""
        self._context, self._tell = context, tell
        self._pace: Pace = _ClockPace() if pace is None else pace
        self._chance = chance or self._pace.chance
        #: When the next tries of tasks are due that wait for them.
        self.waits: dict[str, float] = {}
        self._earlier = {name: TaskCourse.read(course) for name, course in earlier.items()}
        self._courses = dict(self._earlier)
        self._cancelled = threading.Event()

    def end_waits(self) -> None:
        """The run is to be cancelled."""
        self._cancelled.set()

    def shown(self, name: str) -> dict[str, Any]:
        """Return what the record of a task shows of its tries: nothing without a policy."""
        course = self._courses.get(name)
        return {} if course is None else course.shown()

    def execute(self, task: Task, once: Callable[[], None]) -> None:
        """Execute a task until a try succeeds or no other is allowed. Raises what the last try raised."""
        terms = task_terms_of(task)
        if terms is None:
            once()
        elif terms.retry is None:
            self._timed(task, terms, once)
        else:
            self._tried(task, terms, once)

    def _timed(self, task: Task, terms: TaskTerms, once: Callable[[], None]) -> None:
        self._say(task, terms, terms.timeout)
        try:
            once()
        finally:
            self._say(task, terms, None)

    def _tried(self, task: Task, terms: TaskTerms, once: Callable[[], None]) -> None:
        assert terms.retry is not None
        course = self._earlier.get(task.name, TaskCourse())  # a task in a loop is counted anew in each round
        while True:
            started_at = self._pace.now()
            course = self._courses[task.name] = course.begun(started_at)
            self._say(task, terms, terms.timeout)
            try:
                with within(CurrentTry(self._context.run_id, course.number)):
                    once()
            except Exception as error:
                after = error.after if isinstance(error, RetryAsked) else None
                course = course.failed(
                    terms.retry,
                    failure_of(error),
                    exception_text(error),
                    started_at,
                    self._pace.now(),
                    self._chance(),
                    after,
                )
                self._courses[task.name] = course
                self._say(task, terms, None)
                if course.next_try_at is None or not self._wait(task, course.next_try_at):
                    raise
            else:
                self._say(task, terms, None)
                return

    def _say(self, task: Task, terms: TaskTerms, timeout: float | None) -> None:
        """Tell the worker how long the try may take; None: it is over."""
        course = self._courses.get(task.name)
        if terms.timeout is None and (course is None or not course.tries):
            return
        self._tell(
            {
                "task": task.name,
                "timeout": timeout,
                "retry": None if terms.retry is None else to_document(terms.retry),
                "course": None if course is None else course.shown(),
            }
        )

    def _wait(self, task: Task, until: float) -> bool:
        """Return whether the next try may begin."""
        record = self._context.ensure_task_record(task.name)
        self._context.tasks[task.name] = record.state = TaskState.RUNNING
        self.waits[task.name] = until
        try:
            while self._context.status is RunStatus.RUNNING:
                if self._pace.now() >= until:
                    return True
                if self._pace.wait(until, self._cancelled):
                    break
        finally:
            del self.waits[task.name]
        is_cancelled = self._context.status in (RunStatus.CANCELLING, RunStatus.CANCELLED)
        self._context.tasks[task.name] = record.state = TaskState.CANCELLED if is_cancelled else TaskState.FAILED
        return False
