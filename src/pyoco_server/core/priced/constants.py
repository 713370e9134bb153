"""The fixed constants of priced runs (contract section 2). They are defined only here (PRICED-2)."""

from __future__ import annotations

from typing import Final

__all__ = [
    "AUDIT_INTERVAL_SECONDS",
    "ENVELOPE_MAX_BYTES",
    "ENVELOPE_SCHEMA_VERSION",
    "FINALIZE_STALE_SECONDS",
    "IDEMPOTENCY_MAPPING_TTL_SECONDS",
    "IDEM_LOCK_TTL_SECONDS",
    "INLINE_MAX_BYTES",
    "JANITOR_BATCH",
    "LEASE_HEARTBEAT_INTERVAL_SECONDS",
    "LEASE_TTL_SECONDS",
    "MAX_AMOUNT_USD_MICROS",
    "MESSAGE_SCHEMA_VERSION",
    "MINIMUM_FEE_DIVISOR",
    "MINIMUM_FEE_MAX_USD_MICROS",
    "MINIMUM_FEE_MIN_USD_MICROS",
    "MULTIPART_ABORT_DAYS",
    "ORPHAN_AFTER_SECONDS",
    "OUTCOME_TTL_SECONDS",
    "PACK_TYPES",
    "POLL_RECOMMENDED_INTERVAL_MS",
    "PRESIGNED_URL_TTL_SECONDS_DEFAULT",
    "PROFILE_VERSION",
    "QUEUE_MAX_RECEIVE_COUNT",
    "QUEUE_VISIBILITY_TIMEOUT_SECONDS",
    "RATE_LIMIT_PER_MINUTE",
    "RATE_LIMIT_RETRY_AFTER_SECONDS",
    "REAPER_INTERVAL_SECONDS",
    "RECEIVE_WAIT_SECONDS",
    "RECONCILE_INTERVAL_SECONDS",
    "REQUEST_BODY_MAX_BYTES",
    "RESEND_AFTER_SECONDS",
    "RESERVATION_TTL_SECONDS",
    "RESERVE_KEY_TTL_SECONDS",
    "RETENTION_DAYS",
    "RETENTION_INTERVAL_SECONDS",
    "RETENTION_SECONDS",
    "SUBMIT_ABANDON_SECONDS",
    "SWEEPER_INTERVAL_SECONDS",
    "TIMEBOX_SEC_DEFAULT",
    "TIMEBOX_SEC_MAX",
    "URL_BODY_MAX_BYTES",
]

# PRICED-2

#: How long a run, its result and its idempotency key are kept.
RETENTION_DAYS: Final = 30
RETENTION_SECONDS: Final = RETENTION_DAYS * 86_400
PRESIGNED_URL_TTL_SECONDS_DEFAULT: Final = 600
#: How long a worker owns a run after its last heartbeat.
LEASE_TTL_SECONDS: Final = 120
LEASE_HEARTBEAT_INTERVAL_SECONDS: Final = 30
REAPER_INTERVAL_SECONDS: Final = 30
#: The lock on a key only saves work; the unique index decides.
IDEM_LOCK_TTL_SECONDS: Final = 5
IDEMPOTENCY_MAPPING_TTL_SECONDS: Final = RETENTION_SECONDS
#: The age at which a queued run is given up (PRICED-50). Money is never returned by an expiry alone.
RESERVATION_TTL_SECONDS: Final = 3600
POLL_RECOMMENDED_INTERVAL_MS: Final = 1500
TIMEBOX_SEC_DEFAULT: Final = 90
TIMEBOX_SEC_MAX: Final = 90
#: The fee is a fiftieth (0.02) of the reservation, within these bounds (PRICED-37).
MINIMUM_FEE_DIVISOR: Final = 50
MINIMUM_FEE_MIN_USD_MICROS: Final = 5_000
MINIMUM_FEE_MAX_USD_MICROS: Final = 100_000
#: A claim older than this may be taken over (T15).
FINALIZE_STALE_SECONDS: Final = 300
#: A message must not be redelivered while the lease of its run may be valid.
QUEUE_VISIBILITY_TIMEOUT_SECONDS: Final = LEASE_TTL_SECONDS
QUEUE_MAX_RECEIVE_COUNT: Final = 3
RATE_LIMIT_PER_MINUTE: Final = 60
RATE_LIMIT_RETRY_AFTER_SECONDS: Final = 30
INLINE_MAX_BYTES: Final = 262_144
ENVELOPE_MAX_BYTES: Final = 1_048_576
URL_BODY_MAX_BYTES: Final = 2_097_152
MULTIPART_ABORT_DAYS: Final = 7

# PRICED-3

#: The lifetime of a reservation in Redis: it bounds garbage, and a live run never reaches it.
RESERVE_KEY_TTL_SECONDS: Final = RETENTION_SECONDS
#: How long the outcome of a closed reservation can be read.
OUTCOME_TTL_SECONDS: Final = RETENTION_SECONDS
#: A row that never got its reservation is given up after this time.
SUBMIT_ABANDON_SECONDS: Final = 60
#: A reserved run that was never confirmed as sent is sent again after this time.
RESEND_AFTER_SECONDS: Final = 60
SWEEPER_INTERVAL_SECONDS: Final = 60
RECONCILE_INTERVAL_SECONDS: Final = 60
RETENTION_INTERVAL_SECONDS: Final = 3600
AUDIT_INTERVAL_SECONDS: Final = 3600
#: Keeps `inputs` small enough for a row.
REQUEST_BODY_MAX_BYTES: Final = 262_144
#: Below 2^53, so that Lua's numbers stay exact.
MAX_AMOUNT_USD_MICROS: Final = 9_000_000_000_000_000
RECEIVE_WAIT_SECONDS: Final = 20
#: Rows per scan.
JANITOR_BATCH: Final = 100

# From other parts of the contract

#: An open reservation older than this, whose run has ended or never existed, is closed (PRICED-163).
ORPHAN_AFTER_SECONDS: Final = 600
#: The only existing profile (PRICED-70).
PROFILE_VERSION: Final = "PROFILE_DPP_0_4_2_2"
PACK_TYPES: Final = ("ocr", "url", "decision", "compliance", "eval")
ENVELOPE_SCHEMA_VERSION: Final = "0.4.2.2"
MESSAGE_SCHEMA_VERSION: Final = "1"
