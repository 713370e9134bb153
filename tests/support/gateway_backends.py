"""Backends as a gateway has them, for tests of actions; and who executes what they queued."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

from pyoco_server.actions.claim import FlowAttempt, claim_run
from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.job import decode_job
from pyoco_server.ports.backend import Backend, GatewayBackend
from pyoco_server.ports.nats.link import Link
from pyoco_server.wiring import backend as wiring
from support.backends import ANNA, jobs_left

__all__ = ["executed", "opened_gateway_backend"]


@contextlib.asynccontextmanager
async def opened_gateway_backend(config: NatsBackendConfig, data_dir: Path) -> AsyncIterator[GatewayBackend]:
    async with wiring.open_gateway_backend(replace(config, data_dir=str(data_dir))) as backend:
        yield backend


async def executed(backend: Backend, link: Link) -> list[str]:
    """The runs that workers would execute, had they all the jobs that lie in the queue now. Nothing is acknowledged."""
    run_ids = []
    for message in await jobs_left(link, backend.config):
        job = decode_job(message["text"].encode())
        if isinstance(await claim_run(backend, job, ANNA, first_delivery=True), FlowAttempt):
            run_ids.append(job.run_id)
    return run_ids
