"""A run as a pretended gateway tells of it: odd, damaged, or at the very moment a test wants it to be."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, urlsplit

from playwright.sync_api import Page

from support.routes import Paused, intercept

__all__ = ["RUN_ID", "a_line", "a_run", "pretend", "pretend_log"]

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
    pretend_log(page, lambda _: [])
    intercept(page, re.compile(f"/runs/{RUN_ID}/watch"), watch)
    return connections


def pretend_log(
    page: Page,
    answer: Callable[[dict[str, list[str]]], list[dict[str, Any]]],
    follow: Callable[[dict[str, list[str]]], list[dict[str, Any]]] = lambda _: [],
    headers: dict[str, str] | None = None,
) -> None:
    """The gateway answers questions for lines, by their query. Each stream has the lines of `follow`, and ends."""

    def read(route: Paused) -> None:
        body = "".join(f"{json.dumps(line)}\n" for line in answer(parse_qs(urlsplit(route.request.url).query)))
        route.fulfill(body=body, content_type="application/x-ndjson", headers=headers)

    def stream(route: Paused) -> None:
        lines = follow(parse_qs(urlsplit(route.request.url).query))
        body = "".join(f"id: {line['id']}\nevent: line\ndata: {json.dumps(line)}\n\n" for line in lines)
        end = 'id: end\nevent: end\ndata: {"status":"COMPLETED","attempt":1}\n\n'
        route.fulfill(body=body + end, content_type="text/event-stream")

    intercept(page, re.compile(f"/runs/{RUN_ID}/logs(\\?|$)"), read)
    intercept(page, re.compile(f"/runs/{RUN_ID}/logs/stream"), stream)


def a_line(seq: int, text: str, **more: Any) -> dict[str, Any]:
    line = {"attempt": 1, "seq": seq, "ts": 1_760_000_000 + seq / 1000, "task": "load", "stream": "stdout"}
    line |= {"level": None, "logger": None, "text": text, "cut_bytes": 0} | more
    return line | {"id": f"{line['attempt']}.{line['seq']}"}


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
