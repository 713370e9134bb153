"""What the commands about money share: a way to the ledger, and JSON out."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

import click

from pyoco_server.config import NatsBackendConfig, priced_from_env
from pyoco_server.wiring_priced import open_money

if TYPE_CHECKING:
    from pyoco_server.ports.priced import Priced

__all__ = ["print_json", "with_money"]

T = TypeVar("T")


def with_money(config: NatsBackendConfig, work: Callable[[Priced], Awaitable[T]]) -> T:
    """What `work` makes of ledger and budget. Raises DependencyUnavailable, LedgerOutdated."""
    logging.getLogger().addHandler(logging.NullHandler())  # what matters is raised

    async def all_of_it() -> T:
        async with open_money(config, *priced_from_env()) as priced:
            return await work(priced)

    return asyncio.run(all_of_it())


def print_json(document: object) -> None:
    click.echo(json.dumps(document, indent=2))
