"""`pyoco-server-admin run`: run records that cannot be read."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from pyoco_server.doors.cli.shell import Group
from pyoco_server.errors import NotOfThisKind, RunNotFound, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyoco_server.actions.discard_record import Discarded
    from pyoco_server.config import NatsBackendConfig

__all__ = ["run_records"]


@click.group("run", cls=Group, example="pyoco-server-admin run discard 3f0c2a52-6a0e-4b8e-9f54-2f6f3f0f7d11")
def run_records() -> None:
    """Remove run records that cannot be read."""


@run_records.command("discard", example="pyoco-server-admin run discard 3f0c2a52-6a0e-4b8e-9f54-2f6f3f0f7d11")
@click.argument("run_id")
@click.pass_obj
def discard(config: Callable[[], NatsBackendConfig], run_id: str) -> None:
    """Remove the record of a run that cannot be read.

    `doctor` and the dashboard list such runs. A readable record is refused. Prints what was removed as JSON.
    """
    import asyncio
    import logging

    # What would be logged is printed.
    logging.getLogger().addHandler(logging.NullHandler())
    try:
        done = asyncio.run(_discard(config(), run_id))
    except RunNotFound as error:
        raise UsageError(f"there is no record of a run {run_id!r}") from error
    except NotOfThisKind as error:
        raise UsageError(str(error)) from error
    click.echo(json.dumps({"discarded": True, **asdict(done)}, indent=2))


async def _discard(config: NatsBackendConfig, run_id: str) -> Discarded:
    from pyoco_server.actions.discard_record import discard_record
    from pyoco_server.wiring.operating import open_runs

    async with open_runs(config) as runs:
        return await discard_record(runs, run_id)
