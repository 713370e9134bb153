"""The fixed figures of priced runs: each is asserted once, here."""

from __future__ import annotations

import pytest

from pyoco_server.core.priced import constants

FIXED: dict[str, object] = {
    "RETENTION_DAYS": 30,
    "PRESIGNED_URL_TTL_SECONDS_DEFAULT": 600,
    "LEASE_TTL_SECONDS": 120,
    "LEASE_HEARTBEAT_INTERVAL_SECONDS": 30,
    "REAPER_INTERVAL_SECONDS": 30,
    "IDEM_LOCK_TTL_SECONDS": 5,
    "IDEMPOTENCY_MAPPING_TTL_SECONDS": 2_592_000,
    "RESERVATION_TTL_SECONDS": 3600,
    "POLL_RECOMMENDED_INTERVAL_MS": 1500,
    "TIMEBOX_SEC_DEFAULT": 90,
    "TIMEBOX_SEC_MAX": 90,
    "MINIMUM_FEE_DIVISOR": 50,
    "MINIMUM_FEE_MIN_USD_MICROS": 5_000,
    "MINIMUM_FEE_MAX_USD_MICROS": 100_000,
    "FINALIZE_STALE_SECONDS": 300,
    "QUEUE_VISIBILITY_TIMEOUT_SECONDS": 120,
    "QUEUE_MAX_RECEIVE_COUNT": 3,
    "RATE_LIMIT_PER_MINUTE": 60,
    "RATE_LIMIT_RETRY_AFTER_SECONDS": 30,
    "INLINE_MAX_BYTES": 262_144,
    "ENVELOPE_MAX_BYTES": 1_048_576,
    "URL_BODY_MAX_BYTES": 2_097_152,
    "MULTIPART_ABORT_DAYS": 7,
}
ADDED: dict[str, object] = {
    "RESERVE_KEY_TTL_SECONDS": 2_592_000,
    "OUTCOME_TTL_SECONDS": 2_592_000,
    "SUBMIT_ABANDON_SECONDS": 60,
    "RESEND_AFTER_SECONDS": 60,
    "SWEEPER_INTERVAL_SECONDS": 60,
    "RECONCILE_INTERVAL_SECONDS": 60,
    "RETENTION_INTERVAL_SECONDS": 3600,
    "AUDIT_INTERVAL_SECONDS": 3600,
    "REQUEST_BODY_MAX_BYTES": 262_144,
    "MAX_AMOUNT_USD_MICROS": 9_000_000_000_000_000,
    "RECEIVE_WAIT_SECONDS": 20,
    "JANITOR_BATCH": 100,
}
ELSEWHERE: dict[str, object] = {
    "RETENTION_SECONDS": 2_592_000,
    "ORPHAN_AFTER_SECONDS": 600,
    "PROFILE_VERSION": "PROFILE_DPP_0_4_2_2",
    "PACK_TYPES": ("ocr", "url", "decision", "compliance", "eval"),
    "ENVELOPE_SCHEMA_VERSION": "0.4.2.2",
    "MESSAGE_SCHEMA_VERSION": "1",
}
ALL = FIXED | ADDED | ELSEWHERE


@pytest.mark.parametrize("name", sorted(ALL))
def test_a_constant_has_the_value_of_the_contract(name: str) -> None:
    """PRICED-2, PRICED-3"""
    assert getattr(constants, name) == ALL[name]
    assert type(getattr(constants, name)) is type(ALL[name])


def test_no_constant_is_without_its_assertion() -> None:
    """PRICED-2"""
    assert {name for name in vars(constants) if name.isupper()} == set(ALL) == set(constants.__all__)


def test_a_message_stays_away_as_long_as_a_lease_may_live() -> None:
    """PRICED-2"""
    assert constants.QUEUE_VISIBILITY_TIMEOUT_SECONDS == constants.LEASE_TTL_SECONDS


def test_the_largest_amount_is_exact_as_a_double() -> None:
    """PRICED-3"""
    assert constants.MAX_AMOUNT_USD_MICROS < 2**53
