"""Reading of retry policies and timeouts: objects of JSON and YAML, and the short text of YAML, Python and commands."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from pyoco_server.core.durations import duration_of
from pyoco_server.core.retries.matching import matcher_problem
from pyoco_server.core.retries.policy import (
    DELAY_SECONDS_MAX,
    FACTOR_MAX,
    MATCHERS_MAX,
    TRIES_MAX,
    Backoff,
    RetryPolicy,
    default_max_delay,
)
from pyoco_server.core.strict_json import Loc

__all__ = [
    "MEMBERS",
    "RUN_TIMEOUT_MAX",
    "RUN_TIMEOUT_MIN",
    "policy_of_document",
    "read_policy",
    "read_policy_text",
    "read_run_timeout",
    "read_task_timeout",
]

Report = Callable[[Loc, str, str], None]

#: A week, in seconds.
RUN_TIMEOUT_MAX: Final = 7 * 86400.0
RUN_TIMEOUT_MIN: Final = 1.0

MEMBERS: Final = (
    "tries",
    "backoff",
    "delay",
    "max_delay",
    "factor",
    "jitter",
    "retry_on",
    "never_on",
    "deadline",
)
_TEXT: Final = re.compile(
    r"(?P<tries>[0-9]{1,3}) times"
    r"(?: *, *(?P<backoff>fixed|linear|exponential))?"
    r"(?: *, *(?P<delay>[0-9][0-9.a-z]*))?"
    r"(?: *, *up to +(?P<max_delay>[0-9][0-9.a-z]*))?"
)
_TEXT_LENGTH_MAX: Final = 128
_TEXT_RULE: Final = "must be text such as `3 times, exponential, 2s, up to 1m`"


def read_policy(value: object, loc: Loc, report: Report) -> RetryPolicy | None:
    """Return the policy in a JSON object, or None after every problem was reported with its place (RETRY-1 to
    RETRY-9)."""
    reading = _Reading(loc, report)
    if not isinstance(value, Mapping):
        reading.wrong((), "must be an object with `tries`", "type")
        return None
    for name in value:
        if name not in MEMBERS:
            reading.wrong((str(name),), f"is unknown; there may be: {', '.join(MEMBERS)}", "unknown_member")
    policy = reading.policy({name: each for name, each in value.items() if each is not None or name == "tries"})
    return None if reading.has_problems else policy


def read_policy_text(text: str, loc: Loc, report: Report) -> RetryPolicy | None:
    """Do the same for the short text (RETRY-11)."""
    found = _TEXT.fullmatch(text.strip()) if len(text) <= _TEXT_LENGTH_MAX else None
    if found is None:
        report(loc, _TEXT_RULE, "value")
        return None
    members: dict[str, Any] = {name: part for name, part in found.groupdict().items() if part is not None}
    return read_policy(members | {"tries": int(members["tries"])}, loc, lambda _, msg, kind: report(loc, msg, kind))


def policy_of_document(document: Mapping[str, Any] | None) -> RetryPolicy | None:
    """Return the policy that `to_document` made. None for none, and for one that is not valid: any client may have
    written it, and a run is executed without a policy rather than not at all."""
    return read_policy(document, (), lambda *_: None) if document else None


def read_run_timeout(value: object) -> float:
    """Return the timeout of a run in seconds (RETRY-16). Raises ValueError."""
    seconds = duration_of(value)
    if not RUN_TIMEOUT_MIN <= seconds <= RUN_TIMEOUT_MAX:
        raise ValueError("must be from 1 second to 7 days")
    return seconds


def read_task_timeout(value: object) -> float:
    """Return the timeout of a task in seconds. Raises ValueError."""
    seconds = duration_of(value)
    if not 0 < seconds <= RUN_TIMEOUT_MAX:
        raise ValueError("must be longer than nothing, and at most 7 days")
    return seconds


class _Reading:
    def __init__(self, loc: Loc, report: Report) -> None:
        self._loc, self._report = loc, report
        self.has_problems = False

    def wrong(self, place: Loc, message: str, kind: str = "value") -> None:
        self.has_problems = True
        self._report((*self._loc, *place), message, kind)

    def policy(self, given: Mapping[str, Any]) -> RetryPolicy | None:
        tries, backoff = self._tries(given), self._backoff(given)
        delay = self._duration(given, "delay", 1.0, DELAY_SECONDS_MAX)
        max_delay = self._duration(given, "max_delay", default_max_delay(delay), DELAY_SECONDS_MAX)
        if max_delay < delay and "max_delay" in given and not self.has_problems:
            self.wrong(("max_delay",), "must not be shorter than `delay`")
        factor = self._number(given, "factor", 2.0, 1.0, FACTOR_MAX)
        if "factor" in given and backoff is not Backoff.EXPONENTIAL:
            self.wrong(("factor",), "is for `exponential` only")
        jitter = self._number(given, "jitter", 0.1, 0.0, 1.0)
        retry_on, never_on = self._matchers(given, "retry_on", ("*",)), self._matchers(given, "never_on", ())
        deadline = self._duration(given, "deadline", 0.0, None) if "deadline" in given else None
        if self.has_problems:
            return None
        return RetryPolicy(
            tries=tries,
            backoff=backoff,
            delay=delay,
            max_delay=max_delay,
            factor=factor,
            jitter=jitter,
            retry_on=retry_on,
            never_on=never_on,
            deadline=deadline,
        )

    def _tries(self, given: Mapping[str, Any]) -> int:
        tries = given.get("tries")
        if type(tries) is int and 1 <= tries <= TRIES_MAX:
            return tries
        if "tries" in given:
            self.wrong(("tries",), f"must be a whole number from 1 to {TRIES_MAX}, the first try included", "type")
        else:
            self.wrong(("tries",), "is required: how often to try, the first time included", "missing")
        return 1

    def _backoff(self, given: Mapping[str, Any]) -> Backoff:
        name = given.get("backoff", Backoff.EXPONENTIAL)
        if isinstance(name, str) and name in list(Backoff):
            return Backoff(name)
        self.wrong(("backoff",), f"must be one of {', '.join(Backoff)}", "type")
        return Backoff.EXPONENTIAL

    def _duration(self, given: Mapping[str, Any], name: str, otherwise: float, most: float | None) -> float:
        if name not in given:
            return otherwise
        try:
            seconds = duration_of(given[name])
        except ValueError as error:
            self.wrong((name,), str(error))
            return otherwise
        if most is not None and seconds > most:
            self.wrong((name,), "is at most 7 days")
            return otherwise
        return seconds

    def _number(self, given: Mapping[str, Any], name: str, otherwise: float, least: float, most: float) -> float:
        value = given.get(name, otherwise)
        if isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most:
            return float(value)
        self.wrong((name,), f"must be a number from {least:g} to {most:g}", "type")
        return otherwise

    def _matchers(self, given: Mapping[str, Any], name: str, otherwise: tuple[str, ...]) -> tuple[str, ...]:
        if name not in given:
            return otherwise
        values = given[name]
        if not isinstance(values, list | tuple) or len(values) > MATCHERS_MAX:
            self.wrong((name,), f"must be an array of at most {MATCHERS_MAX} texts", "type")
            return otherwise
        for index, value in enumerate(values):
            problem = matcher_problem(value) if isinstance(value, str) else "must be text"
            if problem is not None:
                self.wrong((name, index), problem)
        return tuple(map(str, values))
