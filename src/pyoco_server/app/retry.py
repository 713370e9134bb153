"""`Retry`: a retry policy written in Python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pyoco_server.executors.flow.own_tasks import policy_of

__all__ = ["Retry"]


class Retry(dict[str, Any]):
    """A retry policy for `@task(retry=...)`, `@app.flow(retry=...)` and submissions; the same as the JSON object.

    `tries` counts the first one. Durations are seconds, or text such as `30s`. Raises ValueError for a bad value.
    """

    def __init__(  # noqa: PLR0913  (RETRY-1 to RETRY-7)
        self,
        tries: int,
        *,
        backoff: Literal["fixed", "linear", "exponential"] | None = None,
        delay: float | str | None = None,
        max_delay: float | str | None = None,
        factor: float | None = None,
        jitter: float | None = None,
        retry_on: Sequence[str] | None = None,
        never_on: Sequence[str] | None = None,
        deadline: float | str | None = None,
    ) -> None:
        given: dict[str, Any] = {
            "tries": tries,
            "backoff": backoff,
            "delay": delay,
            "max_delay": max_delay,
            "factor": factor,
            "jitter": jitter,
            "retry_on": None if retry_on is None else list(retry_on),
            "never_on": None if never_on is None else list(never_on),
            "deadline": deadline,
        }
        super().__init__({name: value for name, value in given.items() if value is not None})
        policy_of(self)
