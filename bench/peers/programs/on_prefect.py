"""Prefect: its own server on SQLite. A job is a background task, a chain one that calls a flow of three tasks.

Run as `python -m bench.peers.programs.on_prefect serve` it is the task worker: threads of one process. A flow that is
deployed instead gets a process of its own for each run, which takes seconds.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

import httpx
from prefect import flow, task
from prefect.task_worker import serve

from bench.peers.programs.shape import BlockingProgram, door, main


@task
def noop() -> None: ...


@flow
def three() -> None:
    noop()
    noop()
    noop()


@task
def chain() -> None:
    three()


class OnPrefect(BlockingProgram):
    def __init__(self) -> None:
        self._api = httpx.Client(base_url=os.environ["PREFECT_API_URL"], timeout=30)

    def send_now(self, kind: str) -> Any:
        return noop.delay() if kind == "noop" else chain.delay()

    def id_of(self, sent: Any) -> str:
        return str(sent.task_run_id)

    def wait_now(self, sent: Any) -> None:
        sent.result(timeout=30)

    def ended_now(self, ids: Sequence[str]) -> list[bool]:
        asked = {"task_runs": {"id": {"any_": list(ids)}}, "limit": len(ids)}
        found = self._api.post("/task_runs/filter", json=asked).raise_for_status().json()
        ended = {each["id"] for each in found if each["state_type"] == "COMPLETED"}
        return [each in ended for each in ids]

    def reset_now(self) -> None:
        """Its server begins each round anew."""


program = OnPrefect()
app = door(program)

if __name__ == "__main__":
    if sys.argv[1:] == ["serve"]:
        serve(noop, chain, limit=10)
    else:
        main(program)
