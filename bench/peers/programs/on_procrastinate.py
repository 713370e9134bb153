"""procrastinate: PostgreSQL for everything. It has no way to wait for a job: its status is read until it is an end."""

from __future__ import annotations

import asyncio
import logging
import os
import uuid
from collections.abc import Sequence
from typing import Any

import procrastinate

from bench.peers.programs.shape import Program, door, main

_POLL_SECONDS = 0.002
logging.getLogger("procrastinate").setLevel(logging.WARNING)  # it writes two lines for each job
jobs = procrastinate.App(
    connector=procrastinate.PsycopgConnector(conninfo=os.environ["BENCH_POSTGRES_URL"], min_size=2, max_size=16)
)
_ENDED = """
SELECT args->>'run' AS run FROM procrastinate_jobs
WHERE status = 'succeeded' AND args->>'run' = ANY(%(ids)s) AND (args->>'number')::int = 3
"""


@jobs.task(name="noop")
async def noop(run: str, number: int) -> None: ...


@jobs.task(name="step")
async def step(run: str, number: int) -> None:
    if number < 3:
        await step.defer_async(run=run, number=number + 1)


class OnProcrastinate(Program):
    async def open(self) -> None:
        await jobs.open_async()

    async def close(self) -> None:
        await jobs.close_async()

    async def send(self, kind: str) -> Any:
        run = uuid.uuid4().hex
        if kind == "noop":
            return run, await noop.defer_async(run=run, number=3)
        return run, await step.defer_async(run=run, number=1)

    def id_of(self, sent: Any) -> str:
        return str(sent[0])

    async def wait(self, sent: Any) -> None:
        async with asyncio.timeout(30):
            while (await jobs.job_manager.get_job_status_async(sent[1])).value != "succeeded":
                await asyncio.sleep(_POLL_SECONDS)

    async def ended(self, ids: Sequence[str]) -> list[bool]:
        found = {row["run"] for row in await jobs.connector.execute_query_all_async(_ENDED, ids=list(ids))}
        return [each in found for each in ids]

    async def reset(self) -> None:
        found = await jobs.connector.execute_query_one_async("SELECT to_regclass('procrastinate_jobs') AS made")
        if found["made"] is None:
            await jobs.schema_manager.apply_schema_async()
        await jobs.connector.execute_query_async("TRUNCATE procrastinate_jobs CASCADE")


program = OnProcrastinate()
app = door(program)

if __name__ == "__main__":
    main(program)
