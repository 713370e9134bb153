"""The hash that identifies equal priced submissions (contract 11.1)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from pyoco_server.core.delays import NO_DELAY, Delay
from pyoco_server.core.priced.canonical import canonical_json

__all__ = ["delayed_hash", "payload_hash"]


def payload_hash(
    *,
    pack_type: str,
    inputs: Mapping[str, Any],
    timebox_sec: int,
    max_cost_usd: str,
    artifacts: Mapping[str, Any],
    min_reliability_e4: int,
    profile_version: str,
) -> str:
    """Return 64 hex digits over everything that changes the work, and nothing that only changes its presentation
    (PRICED-84).

    `inputs` and `artifacts` as received, before any default is filled in. O(n log n) for n members. Raises
    NotCanonical, whose pointer refers to the request's body.
    """
    whole, fraction = divmod(min_reliability_e4, 10_000)
    document = {
        "pack_type": pack_type,
        "inputs": dict(inputs),
        "timebox_sec": timebox_sec,
        "max_cost_usd": max_cost_usd,
        "artifacts": dict(artifacts),
        "min_reliability_score": f"{whole}.{fraction:04d}",
        "profile_version": profile_version,
    }
    return hashlib.sha256(canonical_json(document)).hexdigest()


def delayed_hash(digest: str, delay: Delay) -> str:
    """Return the hash of a submission with a delay, which is part of its content (DELAY-8).

    A submission without one keeps the hash of earlier versions.
    """
    if delay == NO_DELAY:
        return digest
    return hashlib.sha256(f"{digest} {delay.seconds!r} {delay.until!r}".encode()).hexdigest()
