"""Variables that earlier releases read. A deployment that still sets one starts, and its processes log a warning."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["REMOVED"]

_FIXED = "The default always applies."
_NAME = "The name is fixed."

#: By name, what is in effect instead.
REMOVED: Mapping[str, str] = {
    "PYOCO_ABANDON_AFTER_SEC": _FIXED,
    "PYOCO_ADVISORY_STREAM": _NAME,
    "PYOCO_CLOCK_STREAM": _NAME,
    "PYOCO_DECISION_ANSWERER": "`PYOCO_DECISION_URL` alone decides whether a model answers.",
    "PYOCO_HOST_RUNS_MAX": _FIXED,
    "PYOCO_RECEIPTS_KV_BUCKET": _NAME,
    "PYOCO_WORKFLOW_OBJECT_STORE_BUCKET": _NAME,
    "PYOCO_WHEEL_UNPACKED_MAX_BYTES": "The limit is eight times `PYOCO_WHEEL_MAX_BYTES`.",
    "PYOCO_PRICED_AUDIT_INTERVAL_SEC": _FIXED,
    "PYOCO_PRICED_HEARTBEAT_SEC": _FIXED,
    "PYOCO_PRICED_LEASE_TTL_SEC": _FIXED,
    "PYOCO_PRICED_ORPHAN_AFTER_SEC": _FIXED,
    "PYOCO_PRICED_REAPER_INTERVAL_SEC": _FIXED,
    "PYOCO_PRICED_RECONCILE_AFTER_SEC": _FIXED,
    "PYOCO_PRICED_RECONCILE_INTERVAL_SEC": _FIXED,
    "PYOCO_PRICED_RESEND_AFTER_SEC": _FIXED,
    "PYOCO_PRICED_RETENTION_INTERVAL_SEC": _FIXED,
    "PYOCO_PRICED_SUBMIT_ABANDON_SEC": _FIXED,
    "PYOCO_PRICED_SWEEPER_INTERVAL_SEC": _FIXED,
    "EXEC_FRAME_SEC": _FIXED,
    "EXEC_HEARTBEAT_SEC": _FIXED,
    "EXEC_HELLO_SEC": _FIXED,
    "EXEC_IDLE_SEC": _FIXED,
    "EXEC_STALE_SEC": _FIXED,
    "EXEC_SWEEP_SEC": _FIXED,
    "EXEC_WRITE_SEC": _FIXED,
    "WORKER_HEARTBEAT_SEC": _FIXED,
}
