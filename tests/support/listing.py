"""Runs for lists, and lists of runs over HTTP."""

from __future__ import annotations

import asyncio
from typing import Any

from pyoco_server.core.run import Run
from pyoco_server.ports.runs.port import Stored
from support.gateways import Gateway, stored

__all__ = ["known", "page", "put", "run_at", "walk", "write"]


def run_at(updated_at: float, number: int = 0, **more: Any) -> Run:
    fields: dict[str, Any] = {"flow_name": "hello", "tag": "default", "submitted_at": 1.0, "heartbeat_at": 1.0} | more
    return Run(run_id=f"00000000-0000-4000-8000-{number:012d}", updated_at=updated_at, **fields)


async def put(gateway: Gateway, *runs: Run) -> None:
    """Write these runs. Lists of this gateway know them from now on."""
    made = await asyncio.gather(*(gateway.backend.runs.create(run) for run in runs))
    await known(gateway, *made)


async def known(gateway: Gateway, *written: object) -> None:
    revisions = [item.revision for item in written if isinstance(item, Stored)]
    assert len(revisions) == len(written)
    assert await gateway.backend.index.applied(max(revisions), 10)


async def write(gateway: Gateway, run: Run) -> None:
    """Write over whatever is there."""
    found = await stored(gateway, run.run_id)
    await known(gateway, await gateway.backend.runs.replace(run, found.revision))


async def page(gateway: Gateway, **query: Any) -> tuple[list[dict[str, Any]], str | None]:
    answer = await gateway.client.get("/runs", params=query)
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert body.keys() == {"items", "next_cursor"}
    return body["items"], body["next_cursor"]


async def walk(gateway: Gateway, **query: Any) -> list[dict[str, Any]]:
    """Every item, page by page."""
    items, cursor = await page(gateway, **query | {"envelope": "true"})
    while cursor is not None:
        more, cursor = await page(gateway, **query, cursor=cursor)
        assert more, "a page that was promised is empty"
        items += more
    return items
