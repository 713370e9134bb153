"""Digests that identify submissions and idempotency keys."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from pyoco_server.core.delays import NO_DELAY
from pyoco_server.core.run import Submission

__all__ = ["fingerprint", "item_key", "receipt_key"]


def fingerprint(ask: Submission) -> str:
    """Return a digest of the submission: equal for equal submissions, regardless of the route they came in by and of
    how their params were formatted. O(size)."""
    facts: dict[str, Any] = {
        "flow_name": ask.flow_name,
        "tag": ask.tag,
        "tags": ask.tags,
        "params": ask.params,
        "workflow_yaml_sha256": ask.workflow_yaml_sha256,
        "rerun_of": ask.rerun_of,
    }
    if ask.delay != NO_DELAY:  # DELAY-8; a submission without a delay keeps the digest of earlier versions
        facts["delay"] = [ask.delay.seconds, ask.delay.until]
    if ask.retry is not None:
        facts["retry"] = ask.retry
    if ask.timeout is not None:
        facts["timeout"] = ask.timeout
    return _digest(facts)


def receipt_key(tenant_id: str | None, key: str) -> str:
    """Return the key under which a receipt is stored. Keys of different tenants never collide, and the user's own text
    of a key is not stored."""
    return _digest([tenant_id, key])


def item_key(key: str, index: int) -> str:
    """Return the key of one item of a batch. It contains a space, which no client can send, so it cannot collide with a
    client's key."""
    return f"{key} {index}"


def _digest(value: object) -> str:
    # ASCII: a lone surrogate, which JSON can hold and UTF-8 cannot, is written as an escape.
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).hexdigest()
