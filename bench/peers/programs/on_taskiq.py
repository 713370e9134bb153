"""taskiq-nats: jobs on a JetStream stream, pulled a hundred at a time; results in Redis, its quicker backend."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import redis.asyncio as redis
from taskiq_nats import PullBasedJetStreamBroker
from taskiq_pipelines import Pipeline, PipelineMiddleware
from taskiq_redis import RedisAsyncResultBackend

from bench.peers.programs.shape import Program, door, main

_REDIS_URL = os.environ["BENCH_REDIS_URL"]
_POLL_SECONDS = 0.002
broker = (
    PullBasedJetStreamBroker(os.environ["BENCH_NATS_URL"], pull_consume_batch=100, pull_consume_timeout=1.0)
    .with_result_backend(RedisAsyncResultBackend(_REDIS_URL, max_connection_pool_size=64))
    .with_middlewares(PipelineMiddleware())
)


@broker.task(task_name="noop")
async def noop() -> None: ...


class OnTaskiq(Program):
    _redis: redis.Redis

    async def open(self) -> None:
        self._redis = redis.Redis.from_url(_REDIS_URL)
        await broker.startup()

    async def close(self) -> None:
        await broker.shutdown()
        await self._redis.aclose()

    async def send(self, kind: str) -> Any:
        if kind == "noop":
            return await noop.kiq()
        return await Pipeline(broker, noop).call_after(noop).call_after(noop).kiq()

    def id_of(self, sent: Any) -> str:
        return str(sent.task_id)

    async def wait(self, sent: Any) -> None:
        (await sent.wait_result(check_interval=_POLL_SECONDS, timeout=30)).raise_for_error()

    async def ended(self, ids: Sequence[str]) -> list[bool]:
        return [found is not None for found in await self._redis.mget(list(ids))]

    async def reset(self) -> None:
        await self._redis.flushdb()
        await broker.js.purge_stream(broker.stream_name)


program = OnTaskiq()
app = door(program)

if __name__ == "__main__":
    main(program)
