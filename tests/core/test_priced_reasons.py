"""Reason codes: each has one title, one type, and at most one status."""

from __future__ import annotations

import pytest

from pyoco_server.core.priced.reasons import (
    HTTP_STATUS,
    KEY_RELEASING,
    RETRY_AFTER_SECONDS,
    RUN_FAILURES,
    Reason,
    problem_type,
    title_of,
)

#: Contract 10.2, as it stands there.
ANSWERS = [
    (401, "AUTH_INVALID"),
    (402, "BUDGET_DRAINED"),
    (404, "RUN_NOT_FOUND"),
    (409, "IDEMPOTENCY_CONFLICT"),
    (409, "IDEMPOTENCY_IN_PROGRESS"),
    (410, "RUN_RETENTION_EXPIRED"),
    (422, "VALIDATION_FAILED"),
    (422, "RESERVATION_BELOW_PRICE"),
    (429, "RATE_LIMITED"),
    (503, "QUEUE_ENQUEUE_FAILED"),
    (503, "DEPENDENCY_UNAVAILABLE"),
]
FAILURES = {
    "CANCELLED_BEFORE_START",  # DELAY-7
    "WORKER_TIMEOUT",
    "RESERVATION_EXPIRED",
    "QUEUE_ENQUEUE_FAILED",
    "TIMEBOX_EXCEEDED",
    "PACK_FAILED",
    "PACK_UNAVAILABLE",
    "RESULT_STORE_FAILED",
    "RESULT_MISSING",
    "SUBMIT_ABANDONED",
}


def test_every_answer_has_its_status() -> None:
    """PRICED-67"""
    assert sorted((status, reason.value) for reason, status in HTTP_STATUS.items()) == sorted(ANSWERS)


def test_a_run_fails_for_one_of_these_reasons() -> None:
    """PRICED-67"""
    assert {reason.value for reason in RUN_FAILURES} == FAILURES
    assert set(Reason) == set(HTTP_STATUS) | RUN_FAILURES


def test_a_caller_is_told_when_to_come_back() -> None:
    """PRICED-173"""
    assert RETRY_AFTER_SECONDS == {"IDEMPOTENCY_IN_PROGRESS": 1, "RATE_LIMITED": 30, "DEPENDENCY_UNAVAILABLE": 5}


def test_two_ends_give_the_key_back() -> None:
    """PRICED-89"""
    assert sorted(KEY_RELEASING) == ["QUEUE_ENQUEUE_FAILED", "SUBMIT_ABANDONED"]
    assert KEY_RELEASING <= RUN_FAILURES


@pytest.mark.parametrize("reason", Reason)
def test_a_reason_has_a_title_and_a_type_of_its_own(reason: Reason) -> None:
    """PRICED-67"""
    assert reason.value == reason.name
    assert title_of(reason)
    assert [other for other in Reason if title_of(other) == title_of(reason)] == [reason]
    assert problem_type(reason) == "urn:dpp:problem:" + reason.lower().replace("_", "-")


def test_the_type_is_written_in_kebab_case() -> None:
    """PRICED-67"""
    assert problem_type(Reason.RUN_NOT_FOUND) == "urn:dpp:problem:run-not-found"
