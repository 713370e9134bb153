"""Retry policies and timeouts of submissions (section 8 of the contract)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta, UnsetType

from pyoco_server.core.durations import duration_of_text
from pyoco_server.core.retries.matching import MATCHER_LENGTH_MAX
from pyoco_server.core.retries.policy import FACTOR_MAX, MATCHERS_MAX, TRIES_MAX, Backoff, to_document
from pyoco_server.core.retries.reading import read_policy, read_run_timeout
from pyoco_server.doors.http.reading import read_document
from pyoco_server.doors.http.requests import Malformed, wrong
from pyoco_server.doors.http.shapes import Duration, Request, one_of
from pyoco_server.errors import Problem

__all__ = [
    "RETRY_TEXT_BYTES_MAX",
    "MaybeRetry",
    "MaybeRetryText",
    "MaybeTimeout",
    "RetryRequest",
    "RunTimeout",
    "read_retry",
    "read_retry_text",
]

#: Fifty matchers in each of two arrays fit.
RETRY_TEXT_BYTES_MAX = 32 * 1024

Matchers = Annotated[list[Annotated[str, Meta(max_length=MATCHER_LENGTH_MAX)]], Meta(max_length=MATCHERS_MAX)]


class RetryRequest(Request):
    """How often a run is tried, and on which failures. Lost workers use up no try."""

    tries: Annotated[int, Meta(ge=1, le=TRIES_MAX, description="Tries in all, the first one included.")]
    backoff: Annotated[str, one_of(Backoff, description="`exponential` unless given.")] | None = None
    delay: Annotated[Duration, Meta(description="The first wait: 1 second unless given, at most 7 days.")] | None = None
    max_delay: (
        Annotated[Duration, Meta(description="The longest wait: the larger of 60 seconds and `delay` unless given.")]
        | None
    ) = None
    factor: Annotated[float, Meta(ge=1, le=FACTOR_MAX, description="Of `exponential`: 2 unless given.")] | None = None
    jitter: (
        Annotated[
            float, Meta(ge=0, le=1, description="Share by which each wait is longer or shorter: 0.1 unless given.")
        ]
        | None
    ) = None
    retry_on: (
        Annotated[
            Matchers,
            Meta(
                description="`*` (everything but `lost`; the default), `timeout`, `lost`, `memory`, `exit:<n>`, "
                "`exit:<a>-<b>`, `signal`, `signal:<n>`, or the name of an exception class."
            ),
        ]
        | None
    ) = None
    never_on: Annotated[Matchers, Meta(description="The same; it takes precedence.")] | None = None
    deadline: (
        Annotated[Duration, Meta(description="No try begins later than this after the start of the first one.")] | None
    ) = None


class RunTimeout(float):
    """Seconds from 1 to 7 days, from a number or a text such as `5m`."""

    rule: ClassVar = staticmethod(read_run_timeout)
    schema: ClassVar = Duration.schema

    @staticmethod
    def text_rule(text: str) -> float:
        return read_run_timeout(duration_of_text(text))


_TIMEOUT = "Each try is stopped after this time: 1 second to 7 days, and never above `PYOCO_RUN_TIMEOUT_SEC`."
MaybeTimeout = Annotated[RunTimeout, Meta(description=_TIMEOUT)] | None
MaybeRetry = (
    Annotated[
        RetryRequest,
        Meta(description="Takes precedence over what the flow says; null: no retry."),
    ]
    | UnsetType
    | None
)
MaybeRetryText = (
    Annotated[
        str,
        Meta(
            max_length=RETRY_TEXT_BYTES_MAX,
            description="A retry policy as JSON text, as in `POST /runs`; `null`: no retry.",
        ),
    ]
    | None
)


_PLACE = ("body", "retry")


def read_retry(asked: RetryRequest | UnsetType | None) -> Mapping[str, Any] | None:
    """Return the policy as a submission has it: None: not given; empty: no retry. Raises Malformed with every
    problem."""
    if isinstance(asked, UnsetType):
        return None
    if asked is None:
        return {}
    problems: list[Problem] = []
    given = {name: value for name, value in msgspec.structs.asdict(asked).items() if value is not None}
    policy = read_policy(given, _PLACE, lambda *problem: problems.append(Problem(*problem)))
    if policy is None:
        raise Malformed(problems[0].msg, problems=tuple(problems))
    return to_document(policy)


def read_retry_text(text: str | None) -> Mapping[str, Any] | None:
    """Return the policy in a part of a form. Raises Malformed."""
    if text is None:
        return None
    try:
        is_null = json.loads(text) is None
    except (ValueError, RecursionError) as error:
        raise wrong(_PLACE, 'must be JSON text such as {"tries": 3}', "json") from error
    if is_null:
        return {}
    try:
        return read_retry(read_document(RetryRequest, text.encode()))
    except Malformed as error:
        raise Malformed(str(error), problems=tuple(map(_placed, error.problems))) from error


def _placed(problem: Problem) -> Problem:
    return problem if problem.loc[:2] == _PLACE else replace(problem, loc=(*_PLACE, *problem.loc[1:]))
