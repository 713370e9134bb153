"""Dramatiq: Redis as broker and as result backend."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import dramatiq
import redis
from dramatiq.brokers.redis import RedisBroker
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend

from bench.peers.programs.shape import BlockingProgram, door, main

_URL = os.environ["BENCH_REDIS_URL"]
_results = RedisBackend(url=_URL)
broker = RedisBroker(url=_URL)
broker.add_middleware(Results(backend=_results, store_results=True))
dramatiq.set_broker(broker)


@dramatiq.actor(actor_name="noop")
def noop() -> None: ...


class OnDramatiq(BlockingProgram):
    def __init__(self) -> None:
        self._redis = redis.Redis.from_url(_URL)

    def send_now(self, kind: str) -> Any:
        if kind == "noop":
            return noop.send()
        steps = [noop.message_with_options(pipe_ignore=True) for _ in range(3)]
        return dramatiq.pipeline(steps).run().messages[-1]

    def id_of(self, sent: Any) -> str:
        return str(_results.build_message_key(sent))

    def wait_now(self, sent: Any) -> None:
        sent.get_result(backend=_results, block=True, timeout=30_000)

    def ended_now(self, ids: Sequence[str]) -> list[bool]:
        asked = self._redis.pipeline(transaction=False)
        for each in ids:
            asked.exists(each)
        return [bool(found) for found in asked.execute()]

    def reset_now(self) -> None:
        self._redis.flushdb()


program = OnDramatiq()
app = door(program)

if __name__ == "__main__":
    main(program)
