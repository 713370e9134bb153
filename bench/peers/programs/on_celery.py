"""Celery: Redis as broker and as result backend."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import redis
from celery import Celery, chain

from bench.peers.programs.shape import BlockingProgram, door, main

_URL = os.environ["BENCH_REDIS_URL"]
celery = Celery("bench", broker=_URL, backend=_URL)
celery.conf.update(
    worker_prefetch_multiplier=64,  # "Optimizing": many short tasks
    broker_connection_retry_on_startup=True,
    worker_hijack_root_logger=False,
)


@celery.task(name="noop")
def noop() -> None: ...


class OnCelery(BlockingProgram):
    def __init__(self) -> None:
        self._redis = redis.Redis.from_url(_URL)

    def send_now(self, kind: str) -> Any:
        return noop.delay() if kind == "noop" else chain(noop.si(), noop.si(), noop.si()).delay()

    def id_of(self, sent: Any) -> str:
        return str(sent.id)

    def wait_now(self, sent: Any) -> None:
        sent.get(timeout=30)

    def ended_now(self, ids: Sequence[str]) -> list[bool]:
        return [found is not None for found in self._redis.mget([f"celery-task-meta-{each}" for each in ids])]

    def reset_now(self) -> None:
        self._redis.flushdb()


program = OnCelery()
app = door(program)

if __name__ == "__main__":
    main(program)
