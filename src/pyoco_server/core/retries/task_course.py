"""The tries of one task within a run: counted where the task runs, and by the worker that stops it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from pyoco_server.core.retries.matching import Failure, retries
from pyoco_server.core.retries.policy import DELAY_SECONDS_MAX, RetryPolicy

__all__ = ["TASK_TRIES_MAX", "TaskCourse", "TaskTerms"]

#: RETRY-13: the newest are listed.
TASK_TRIES_MAX = 20
_ERROR_LENGTH_MAX = 200


@dataclass(frozen=True, kw_only=True)
class TaskTerms:
    """What a task says about its tries."""

    retry: RetryPolicy | None = None
    #: Seconds for each try.
    timeout: float | None = None


@dataclass(frozen=True)
class TaskCourse:
    """The tries of a task so far, in this try of its run."""

    #: The number of the current try, from 1.
    number: int = 1
    first_try_at: float | None = None
    #: The failed tries, oldest first.
    tries: tuple[Mapping[str, Any], ...] = ()
    #: While it waits for its next try.
    next_try_at: float | None = None

    def begun(self, now: float) -> Self:
        return replace(self, first_try_at=self.first_try_at or now, next_try_at=None)

    def failed(
        self,
        policy: RetryPolicy,
        failure: Failure,
        error: str,
        started_at: float,
        now: float,
        chance: float,
        after: float | None = None,
    ) -> Self:
        """Return the course after a failed try. `next_try_at` is None: there is no other (RETRY-7 to RETRY-9). `after`:
        the wait that the task has asked for, instead of the policy's."""
        entry = {
            "try": self.number,
            "started_at": started_at,
            "ended_at": now,
            "error": error[:_ERROR_LENGTH_MAX],
            "kind": failure.kind,
        }
        tries = (*self.tries, entry)[-TASK_TRIES_MAX:]
        wait = policy.wait_seconds(self.number, chance) if after is None else min(after, DELAY_SECONDS_MAX)
        until = now + wait
        is_in_time = policy.deadline is None or until <= (self.first_try_at or started_at) + policy.deadline
        if self.number < policy.tries and is_in_time and retries(policy, failure):
            return replace(self, number=self.number + 1, tries=tries, next_try_at=until)
        return replace(self, tries=tries, next_try_at=None)

    def shown(self) -> dict[str, Any]:
        """Return its members of a task record."""
        return {
            "try": self.number,
            "tries": list(self.tries),
            "first_try_at": self.first_try_at,
            "next_try_at": self.next_try_at,
        }

    @classmethod
    def read(cls, value: object) -> Self:
        """Return what a record or a message says, as far as it is valid; its number follows from its failed tries."""
        document = value if isinstance(value, Mapping) else {}
        listed = document.get("tries")
        tries = tuple(each for each in listed if isinstance(each, Mapping)) if isinstance(listed, list) else ()
        count = tries[-1].get("try") if tries else 0
        number = (count if type(count) is int and 0 <= count < 1000 else len(tries)) + 1
        return cls(number, _instant(document.get("first_try_at")), tries[-TASK_TRIES_MAX:])


def _instant(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and 0 <= value < 1e12 else None
