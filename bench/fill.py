"""Many runs at once, written straight into the bucket: what a gateway has after some days, in some seconds."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
import uuid
from collections.abc import Iterator

from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.run import Run
from pyoco_server.core.states import TERMINAL, RunState
from pyoco_server.ports.runs.port import Stored
from pyoco_server.wiring import backend as wiring

__all__ = ["fill", "made_runs"]

#: Out of twenty runs. Most have ended well, some wait or are under way.
_STATUSES = [
    *[RunState.COMPLETED] * 14,
    *[RunState.FAILED] * 2,
    RunState.CANCELLED,
    RunState.RUNNING,
    *[RunState.PENDING] * 2,
]
_AT_ONCE = 1000


def made_runs(first: int, count: int, flows: int, tags: int) -> Iterator[Run]:
    """Runs number `first` and on, spread evenly over flows, tags and statuses."""
    began = time.time() - 86_400
    for number in range(first, first + count):
        status = _STATUSES[(number // flows) % len(_STATUSES)]
        at = began + number * 0.001
        yield Run(
            run_id=str(uuid.UUID(int=random.Random(number).getrandbits(128), version=4)),
            flow_name=f"flow-{number % flows}",
            tag=f"tag-{number % tags}",
            tags=(f"tag-{number % tags}",),
            submitted_at=at,
            updated_at=at,
            heartbeat_at=at,
            status=status,
            attempt=0 if status is RunState.PENDING else 1,
            start_time=None if status is RunState.PENDING else at + 0.01,
            end_time=at + 0.5 if status in TERMINAL else None,
        )


async def fill(nats_url: str, first: int, count: int, *, flows: int = 100, tags: int = 200) -> None:
    """Returns once all of them are stored; lists show them a moment later."""
    async with wiring.open_backend(NatsBackendConfig(nats_url=nats_url), "bench") as backend:
        runs = made_runs(first, count, flows, tags)
        while some := list(itertools.islice(runs, _AT_ONCE)):
            made = await asyncio.gather(*map(backend.runs.create, some))
            assert all(isinstance(each, Stored) for each in made)
