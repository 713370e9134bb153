"""The NATS in the data directory of `pyoco-server up`, for a command that must work while `up` is stopped."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pyoco_server.doors.cli.claims import claim_data_dir
from pyoco_server.embedded import EmbeddedNats, end, jetstream_answers, reachable_host, spawn
from pyoco_server.ports.deployment.machine import own_nats_of

if TYPE_CHECKING:
    from pyoco_server.config import NatsBackendConfig

__all__ = ["own_nats"]

_STOP_SECONDS = 10.0


@contextlib.asynccontextmanager
async def own_nats(config: NatsBackendConfig) -> AsyncIterator[NatsBackendConfig]:
    """Yield the settings with a NATS URL that responds, and start NATS if needed.

    They are unchanged if a URL is configured, or if `up` was never used with this data directory. Raises UsageError,
    Unavailable.
    """
    own = own_nats_of(Path(config.data_dir))
    if own is None or _is_named():
        yield config
    elif await jetstream_answers(own.host, own.port):
        yield replace(config, nats_url=f"nats://{reachable_host(own.host)}:{own.port}")
    else:
        async with _started(config) as url:
            yield replace(config, nats_url=url)


def _is_named() -> bool:
    given = click.get_current_context().find_root().params.get("nats_url")
    return bool(given or os.environ.get("PYOCO_NATS_URL"))


@contextlib.asynccontextmanager
async def _started(config: NatsBackendConfig) -> AsyncIterator[str]:
    """Run NATS under the lock of the data directory, which it inherits, so that its store is never opened twice."""
    data_dir = claim_data_dir(Path(config.data_dir))
    try:
        nats = EmbeddedNats(data_dir.path, config, host="127.0.0.1", port=0, http_port=0)
        click.echo(f"starting the NATS of {data_dir.path} for as long as this command runs", err=True)
        with nats.console_file.open("wb") as console:
            process = await spawn(
                nats.command(), stdout=console.fileno(), stderr=console.fileno(), inherit=[data_dir.lock]
            )
        try:
            await _until_ready(nats, process)
            yield nats.url
        finally:
            await end(process, _STOP_SECONDS)
    finally:
        data_dir.release()


async def _until_ready(nats: EmbeddedNats, process: asyncio.subprocess.Process) -> None:
    ready, ended = asyncio.ensure_future(nats.until_ready()), asyncio.ensure_future(process.wait())
    try:
        await asyncio.wait({ready, ended}, return_when=asyncio.FIRST_COMPLETED)
        if not ready.done():
            raise nats.failure()
        ready.result()
    finally:
        ready.cancel()
        ended.cancel()
