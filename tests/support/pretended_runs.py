"""A run as a pretended gateway tells of it: odd, damaged, or at the very moment a test wants it to be."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from typing import Any

from playwright.sync_api import Page

from support.routes import Paused, intercept

__all__ = ["RUN_ID", "a_run", "pretend"]

RUN_ID = "8d0f0000-1111-4222-8333-444455556666"


def pretend(page: Page, run: dict[str, Any], events: Callable[[int], list[dict[str, Any]]]) -> list[int]:
    """The gateway tells of this run. Each connection gets the events of its number, and ends. Gives the connections."""
    connections: list[int] = []

    def watch(route: Paused) -> None:
        connections.append(int(route.request.headers.get("last-event-id", "-1")))
        told = events(len(connections))
        body = "".join(
            f"id: {len(connections) * 10 + at}\nevent: snapshot\n"
            f"data: {json.dumps({'run_id': RUN_ID, 'snapshot': run | each, 'ts': 1.0})}\n\n"
            for at, each in enumerate(told)
        )
        for each in told:
            run.update(each)
        route.fulfill(body=body, content_type="text/event-stream")

    intercept(page, re.compile(f"/runs/{RUN_ID}(\\?|$)"), lambda route: route.fulfill(json=run))
    intercept(page, re.compile(f"/runs/{RUN_ID}/watch"), watch)
    return connections


def a_run(**more: Any) -> dict[str, Any]:
    now = time.time()
    return {
        "run_id": RUN_ID,
        "kind": "flow",
        "flow_name": "pretended",
        "status": "RUNNING",
        "tag": "default",
        "tags": ["default"],
        "params": {},
        "tasks": {},
        "task_records": {},
        "attempt": 1,
        "attempt_id": "x",
        "worker_id": "w1",
        "submitted_at": now - 60,
        "start_time": now - 50,
        "end_time": None,
        "heartbeat_at": now,
        "updated_at": now,
        "error": None,
        "last_change": {"what": "started", "at": now - 50, "by": {"kind": "worker", "id": "w1"}},
    } | more
