"""What the commands about money share: access to the ledger, and JSON output."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import click

from pyoco_server.config import NatsBackendConfig, priced_from_env
from pyoco_server.errors import UsageError
from pyoco_server.ports.ledger.port import BudgetMode
from pyoco_server.wiring.priced import make_named_ledger, open_money, open_money_of_any_mode

if TYPE_CHECKING:
    from pyoco_server.ports.priced import Priced

__all__ = ["print_json", "with_money", "with_money_in", "with_money_made"]

T = TypeVar("T")


def with_money(config: NatsBackendConfig, work: Callable[[Priced], Awaitable[T]]) -> T:
    """Run `work` on ledger and budget. Raises DependencyUnavailable, LedgerOutdated, SettingError."""
    return _with(open_money(config, *priced_from_env()), work)


def with_money_made(config: NatsBackendConfig, work: Callable[[Priced], Awaitable[T]]) -> T:
    """Like `with_money`, but first create the tables if the configured database is empty, and report that on stderr."""
    made = make_named_ledger(priced_from_env()[0])
    if made is not None:
        click.echo(f"made the tables of a new ledger at {made}", err=True)
    return with_money(config, work)


def with_money_in(mode: BudgetMode, config: NatsBackendConfig, work: Callable[[Priced], Awaitable[T]]) -> T:
    """Like `with_money`, but with the budgets in this mode, whatever the mode of the ledger. Also raises UsageError."""
    priced, aws = priced_from_env()
    if mode is BudgetMode.JOINT:
        priced = replace(priced, budget_url="")
    elif not priced.is_split:
        raise UsageError("set PYOCO_BUDGET_URL first; example: PYOCO_BUDGET_URL=redis://127.0.0.1:6379/0")
    return _with(open_money_of_any_mode(config, priced, aws), work)


def _with(opening: AbstractAsyncContextManager[Priced], work: Callable[[Priced], Awaitable[T]]) -> T:
    logging.getLogger().addHandler(logging.NullHandler())  # errors are raised, so logs are not needed

    async def run_work() -> T:
        async with opening as priced:
            return await work(priced)

    return asyncio.run(run_work())


def print_json(document: object) -> None:
    click.echo(json.dumps(document, indent=2))
