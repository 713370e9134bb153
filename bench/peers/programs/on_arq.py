"""arq: Redis for everything. It finds work by polling; half a second is its default, two milliseconds is set here."""

from __future__ import annotations

import os
import uuid
from collections.abc import Sequence
from typing import Any, ClassVar

from arq import ArqRedis, create_pool
from arq.connections import RedisSettings
from arq.constants import result_key_prefix
from arq.jobs import Job

from bench.peers.programs.shape import Program, door, main

_SETTINGS = RedisSettings.from_dsn(os.environ["BENCH_REDIS_URL"])
_POLL_SECONDS = 0.002
LOGS: dict[str, Any] = {"version": 1, "disable_existing_loggers": True, "loggers": {"arq": {"level": "WARNING"}}}


async def noop(_: dict[str, Any]) -> None: ...


async def step(context: dict[str, Any], run: str, number: int) -> None:
    if number < 3:
        await context["redis"].enqueue_job("step", run, number + 1, _job_id=f"{run}.{number + 1}")


class WorkerSettings:
    """What `arq` reads."""

    functions: ClassVar[list[Any]] = [noop, step]
    redis_settings = _SETTINGS
    poll_delay = _POLL_SECONDS
    max_jobs = 64


class OnArq(Program):
    _redis: ArqRedis

    async def open(self) -> None:
        self._redis = await create_pool(_SETTINGS)

    async def close(self) -> None:
        await self._redis.aclose()

    async def send(self, kind: str) -> Any:
        if kind == "noop":
            return await self._redis.enqueue_job("noop")
        run = uuid.uuid4().hex
        await self._redis.enqueue_job("step", run, 1, _job_id=f"{run}.1")
        return Job(f"{run}.3", self._redis)

    def id_of(self, sent: Any) -> str:
        return str(sent.job_id)

    async def wait(self, sent: Any) -> None:
        await sent.result(timeout=30, poll_delay=_POLL_SECONDS)

    async def ended(self, ids: Sequence[str]) -> list[bool]:
        return [found is not None for found in await self._redis.mget([result_key_prefix + each for each in ids])]

    async def reset(self) -> None:
        await self._redis.flushdb()


program = OnArq()
app = door(program)

if __name__ == "__main__":
    main(program)
