"""Retry policies: what they may say, how long they wait, and which failures they retry."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyoco_server.core.retries.matching import LOST, TIMEOUT, UNNAMED, Failure, exited, killed, raised, retries
from pyoco_server.core.retries.policy import Backoff, RetryPolicy, to_document
from pyoco_server.core.retries.reading import (
    policy_of_document,
    read_policy,
    read_policy_text,
    read_run_timeout,
    read_task_timeout,
)

Problems = list[tuple[tuple[str | int, ...], str, str]]


def read(document: object) -> tuple[RetryPolicy | None, Problems]:
    problems: Problems = []
    policy = read_policy(document, ("body", "retry"), lambda *problem: problems.append(problem))
    return policy, problems


def good(document: object) -> RetryPolicy:
    policy, problems = read(document)
    assert problems == []
    assert policy is not None
    return policy


def test_a_policy_needs_its_tries_alone() -> None:
    """RETRY-1 to RETRY-7: the defaults."""
    assert good({"tries": 3}) == RetryPolicy(tries=3)
    policy = good({"tries": 3})
    assert to_document(policy) == {
        "tries": 3,
        "backoff": "exponential",
        "delay": 1.0,
        "max_delay": 60.0,
        "factor": 2.0,
        "jitter": 0.1,
        "retry_on": ["*"],
        "never_on": [],
        "deadline": None,
    }


def test_durations_are_numbers_or_text_and_the_longest_wait_follows_the_first() -> None:
    """RETRY-3, RETRY-7"""
    policy = good({"tries": 2, "delay": "2m", "deadline": "1h"})
    assert (policy.delay, policy.max_delay, policy.deadline) == (120.0, 120.0, 3600.0)
    assert good({"tries": 2, "delay": 5, "max_delay": "5s"}).max_delay == 5.0


BAD: list[tuple[dict[str, Any], tuple[str | int, ...]]] = [
    ({}, ("tries",)),
    ({"tries": None}, ("tries",)),
    ({"tries": 0}, ("tries",)),
    ({"tries": 101}, ("tries",)),
    ({"tries": True}, ("tries",)),
    ({"tries": 2.0}, ("tries",)),
    ({"tries": 2, "backoff": "random"}, ("backoff",)),
    ({"tries": 2, "delay": "soon"}, ("delay",)),
    ({"tries": 2, "delay": "8d"}, ("delay",)),
    ({"tries": 2, "delay": 10, "max_delay": 9}, ("max_delay",)),
    ({"tries": 2, "factor": 0.5}, ("factor",)),
    ({"tries": 2, "factor": 11}, ("factor",)),
    ({"tries": 2, "factor": 3, "backoff": "fixed"}, ("factor",)),
    ({"tries": 2, "jitter": 1.1}, ("jitter",)),
    ({"tries": 2, "jitter": True}, ("jitter",)),
    ({"tries": 2, "retry_on": "*"}, ("retry_on",)),
    ({"tries": 2, "retry_on": ["*"] * 51}, ("retry_on",)),
    ({"tries": 2, "retry_on": ["timeout", 3]}, ("retry_on", 1)),
    ({"tries": 2, "deadline": -1}, ("deadline",)),
    ({"tries": 2, "attempts": 3}, ("attempts",)),
]


@pytest.mark.parametrize(("document", "place"), BAD)
def test_a_bad_member_is_named_with_its_place(document: dict[str, Any], place: tuple[str | int, ...]) -> None:
    """RETRY-1 to RETRY-7"""
    policy, problems = read(document)
    assert policy is None
    assert [loc for loc, _, _ in problems] == [("body", "retry", *place)]


def test_all_problems_are_named_at_once() -> None:
    _, problems = read({"tries": 0, "delay": "x", "jitter": 2, "retry_on": ["a b"]})
    assert [loc[2] for loc, _, _ in problems] == ["tries", "delay", "jitter", "retry_on"]
    assert read([])[1] == [(("body", "retry"), "must be an object with `tries`", "type")]


MATCHERS_GOOD = ["*", "timeout", "lost", "memory", "signal", "signal:9", "exit:3", "exit:0-255", "ConnectionError"]


@pytest.mark.parametrize("matcher", [*MATCHERS_GOOD, "httpx.ConnectError", "socket.timeout"])
def test_matchers(matcher: str) -> None:
    """RETRY-9"""
    assert good({"tries": 2, "never_on": [matcher]}).never_on == (matcher,)


@pytest.mark.parametrize(
    "matcher",
    [
        "",
        "exit",
        "exit:",
        "exit:-1",
        "exit:256",
        "exit:5-3",
        "signal:",
        "signal:0",
        "signal:65",
        "a b",
        "a.",
        "3",
        "Value Error",
        "exit:3,4",
    ],
)
def test_anything_else_is_no_matcher(matcher: str) -> None:
    """RETRY-9"""
    assert [loc for loc, _, _ in read({"tries": 2, "retry_on": [matcher]})[1]] == [("body", "retry", "retry_on", 0)]


RESET = raised(["builtins.ConnectionResetError", "builtins.ConnectionError", "builtins.OSError", "builtins.Exception"])
HTTP = raised(["httpx.ConnectError", "httpx.TransportError", "builtins.Exception"])
MEMORY = raised(["builtins.MemoryError", "builtins.Exception"], is_memory=True)

MATCHES: list[tuple[str, Failure, bool]] = [
    ("*", RESET, True),
    ("*", UNNAMED, True),
    ("*", Failure(TIMEOUT), True),
    ("*", Failure(LOST), False),
    ("lost", Failure(LOST), True),
    ("timeout", Failure(TIMEOUT), True),
    ("timeout", RESET, False),
    ("ConnectionError", RESET, True),
    ("builtins.OSError", RESET, True),
    ("ValueError", RESET, False),
    ("ConnectionError", HTTP, False),
    ("httpx.TransportError", HTTP, True),
    ("ConnectError", HTTP, True),
    ("requests.ConnectError", HTTP, False),
    ("exit:3", exited(3), True),
    ("exit:1-4", exited(3), True),
    ("exit:4-9", exited(3), False),
    ("exit:9", killed(9), False),
    ("signal", killed(9), True),
    ("signal:9", killed(9), True),
    ("signal:15", killed(9), False),
    ("signal", exited(9), False),
    ("memory", MEMORY, True),
    ("MemoryError", MEMORY, True),
    ("memory", RESET, False),
]


@pytest.mark.parametrize(("matcher", "failure", "expected"), MATCHES)
def test_what_a_matcher_matches(matcher: str, failure: Failure, expected: bool) -> None:
    """RETRY-9: an exception class matches its subclasses."""
    assert retries(RetryPolicy(tries=2, retry_on=(matcher,)), failure) is expected
    assert not retries(RetryPolicy(tries=2, retry_on=("*", "lost"), never_on=(matcher,)), failure) or not expected


def test_never_on_wins() -> None:
    """RETRY-6"""
    policy = RetryPolicy(tries=2, retry_on=("OSError",), never_on=("ConnectionError",))
    assert retries(policy, raised(["builtins.OSError"]))
    assert not retries(policy, RESET)


def test_the_kind_of_a_failure() -> None:
    """RETRY-14"""
    assert RESET.kind == "exception:ConnectionResetError"
    assert HTTP.kind == "exception:httpx.ConnectError"
    assert (MEMORY.kind, exited(3).kind, killed(9).kind) == ("memory", "exit:3", "signal:9")


@pytest.mark.parametrize(
    ("policy", "waits"),
    [
        (RetryPolicy(tries=9, backoff=Backoff.FIXED, delay=3), [3, 3, 3]),
        (RetryPolicy(tries=9, backoff=Backoff.LINEAR, delay=3, max_delay=8), [3, 6, 8]),
        (RetryPolicy(tries=9, delay=3, factor=3, max_delay=20), [3, 9, 20]),
    ],
)
def test_waits_grow_up_to_the_longest(policy: RetryPolicy, waits: list[float]) -> None:
    """RETRY-8"""
    assert [policy.wait_seconds(failed, 0.5) for failed in (1, 2, 3)] == pytest.approx(waits)


@given(failed=st.integers(1, 100), chance=st.floats(0, 1), factor=st.floats(1, 10))
def test_chance_moves_a_wait_by_its_jitter_at_most(failed: int, chance: float, factor: float) -> None:
    """RETRY-8"""
    policy = RetryPolicy(tries=100, factor=factor, jitter=0.25)
    plain = min(60.0, factor ** (failed - 1))
    assert plain * 0.75 * 0.999 <= policy.wait_seconds(failed, chance) <= plain * 1.25 * 1.001


TEXTS = {
    "3 times": {"tries": 3},
    "1 times, fixed": {"tries": 1, "backoff": "fixed"},
    "5 times, linear, 500ms": {"tries": 5, "backoff": "linear", "delay": 0.5},
    "5 times, 2s, up to 1m30s": {"tries": 5, "delay": 2, "max_delay": 90},
    "100 times, exponential, 1s, up to 7d": {"tries": 100, "delay": 1, "max_delay": 7 * 86400},
}


@pytest.mark.parametrize(("text", "document"), TEXTS.items())
def test_the_short_text(text: str, document: dict[str, Any]) -> None:
    """RETRY-11"""
    assert read_policy_text(text, (), lambda *_: None) == good(document)


@pytest.mark.parametrize(
    "text",
    ["", "three times", "3", "3 times,", "0 times", "101 times", "3 times, quick", "3 times, up to", "3 times, 9"],
)
def test_a_bad_short_text_is_one_problem(text: str) -> None:
    """RETRY-11"""
    problems: Problems = []
    assert read_policy_text(text, ("here",), lambda *problem: problems.append(problem)) is None
    assert [loc for loc, _, _ in problems] == [("here",)]


def test_a_stored_policy_is_read_again() -> None:
    for document in ({"tries": 3}, {"tries": 4, "backoff": "fixed", "deadline": 60, "retry_on": ["timeout"]}):
        assert policy_of_document(to_document(good(document))) == good(document)
    assert policy_of_document({}) is None
    assert policy_of_document({"tries": "many"}) is None


def test_the_bounds_of_timeouts() -> None:
    """RETRY-16"""
    assert (read_run_timeout("5m"), read_run_timeout(1), read_task_timeout("500ms")) == (300.0, 1.0, 0.5)
    for bad in (0.9, "8d", "soon", True):
        with pytest.raises(ValueError, match="must"):
            read_run_timeout(bad)
    with pytest.raises(ValueError, match="must"):
        read_task_timeout(0)
