"""`pyoco-client program list`: programs of all groups, also those without a job yet."""

from __future__ import annotations

from typing import Any

from pyoco_server.doors.cli.client.program_state import _programs


def a_group(queues: dict[str, Any], p95: dict[str, float], *patterns: str) -> dict[str, Any]:
    return {"queues": queues, "p95": p95, "workers": [{"patterns": [f"job.assign.{each}" for each in patterns]}]}


def test_programs_are_listed_by_group_and_offered_ones_at_the_end() -> None:
    """CLI-15"""
    state = {
        "groups": {
            "b": a_group({"render": {"queued": 2, "inflight": 1}}, {"calc": 1.23456}, "calc", "new"),
            "a": a_group({}, {}, "calc", "new"),
        }
    }
    rows = [(row["program"], row["group"], row["queued"], row["running"], row["p95_sec"]) for row in _programs(state)]
    assert rows == [("calc", "b", 0, 0, 1.235), ("render", "b", 2, 1, None), ("new", None, 0, 0, None)]
