"""Digests by which one submission is told from another, and one caller's idempotency key from another's."""

from __future__ import annotations

import hashlib
import json

from pyoco_server.core.run import Submission

__all__ = ["fingerprint", "item_key", "receipt_key"]


def fingerprint(ask: Submission) -> str:
    """A digest of what was submitted: the same for the same submission, whichever door it came through and however its
    params were written down. O(size)."""
    facts = {
        "flow_name": ask.flow_name,
        "tag": ask.tag,
        "tags": ask.tags,
        "params": ask.params,
        "workflow_yaml_sha256": ask.workflow_yaml_sha256,
        "rerun_of": ask.rerun_of,
    }
    return _digest(facts)


def receipt_key(tenant_id: str | None, key: str) -> str:
    """Under what a receipt is stored. A tenant's keys are its own, and what users call them is not stored anywhere."""
    return _digest([tenant_id, key])


def item_key(key: str, index: int) -> str:
    """The key of one item of a batch. No user can send a key with a space in it, so it is nobody's own."""
    return f"{key} {index}"


def _digest(value: object) -> str:
    # ASCII: half of a surrogate pair, which JSON can hold and UTF-8 cannot, is written as an escape.
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).hexdigest()
