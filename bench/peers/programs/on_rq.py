"""RQ: Redis for everything."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import redis
from rq import Queue
from rq.results import Result

from bench.peers.programs.shape import BlockingProgram, door, main


def noop() -> None: ...


class OnRq(BlockingProgram):
    def __init__(self) -> None:
        self._redis = redis.Redis.from_url(os.environ["BENCH_REDIS_URL"])
        self._queue = Queue("bench", connection=self._redis)

    def send_now(self, kind: str) -> Any:
        job = self._queue.enqueue("bench.peers.programs.on_rq.noop")
        for _ in range(0 if kind == "noop" else 2):
            job = self._queue.enqueue("bench.peers.programs.on_rq.noop", depends_on=job)
        return job

    def id_of(self, sent: Any) -> str:
        return str(sent.id)

    def wait_now(self, sent: Any) -> None:
        ended = sent.latest_result(timeout=30)
        assert ended is not None
        assert ended.type is Result.Type.SUCCESSFUL, ended.exc_string

    def ended_now(self, ids: Sequence[str]) -> list[bool]:
        asked = self._redis.pipeline(transaction=False)
        for each in ids:
            asked.hget(f"rq:job:{each}", "status")
        return [status == b"finished" for status in asked.execute()]

    def reset_now(self) -> None:
        self._redis.flushdb()


program = OnRq()
app = door(program)

if __name__ == "__main__":
    main(program)
