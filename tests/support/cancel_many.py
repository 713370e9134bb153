"""Calls of `POST /runs/cancel`, for tests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from support.gateways import Gateway, stored

__all__ = ["ZEROS", "backend_with", "status_of", "stop"]

ZEROS = {
    "matched": 0,
    "asked": 0,
    "already_cancelling": 0,
    "already_ended": 0,
    "not_found": 0,
    "failed": 0,
    "more": False,
}


async def stop(gateway: Gateway, **body: Any) -> dict[str, Any]:
    """The counts that are not zero."""
    answer = await gateway.client.post("/runs/cancel", json=body)
    assert answer.status_code == 200, answer.text
    counts = answer.json()
    assert counts.keys() == ZEROS.keys()
    assert counts["matched"] == sum(counts[name] for name in ("asked", "already_cancelling", "already_ended", "failed"))
    return {name: count for name, count in counts.items() if count != ZEROS[name]}


async def status_of(gateway: Gateway, run_id: str) -> str:
    return (await stored(gateway, run_id)).run.status


def backend_with(gateway: Gateway, **ports: Any) -> Any:
    return replace(gateway.backend, **ports)
