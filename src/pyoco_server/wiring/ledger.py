"""Access to a deployment's ledger for operator commands, built from settings."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

from pyoco_server.actions.priced.adopt_ledger import adopt_ledger, plan_adoption
from pyoco_server.config import NatsBackendConfig, PricedConfig
from pyoco_server.logs import redact_url
from pyoco_server.ports.known_ledger.jetstream import JetStreamKnownLedger
from pyoco_server.ports.known_ledger.port import KnownLedger
from pyoco_server.ports.ledger import migrate
from pyoco_server.ports.nats.access import access_of
from pyoco_server.ports.nats.link import Patience, open_link
from pyoco_server.wiring.stores import need

__all__ = ["LedgerHere", "find_ledger", "give_ledger_id", "open_known_ledger", "remember_restored"]


@dataclass(frozen=True)
class LedgerHere:
    """The ledger found at the configured address."""

    #: The address, without a password.
    where: str
    #: False if the address holds nothing, or a database without our tables.
    exists: bool
    #: None if the ledger was created by an older version, or does not exist.
    ledger_id: str | None


def find_ledger(config: NatsBackendConfig, priced: PricedConfig) -> LedgerHere:
    """Read the state of the ledger without changing it. Raises DependencyUnavailable, UsageError."""
    url = _address(config, priced)
    exists = migrate.status(url).version is not None
    return LedgerHere(redact_url(url.partition("?")[0]), exists, migrate.stored_id_at(url) if exists else None)


def give_ledger_id(config: NatsBackendConfig, priced: PricedConfig) -> str:
    """Return the id of an existing ledger; assign one if it has none. Raises DependencyUnavailable, LedgerOutdated."""
    url = _address(config, priced)
    migrate.check(migrate.status(url))
    return migrate.give_id_at(url)


@contextlib.asynccontextmanager
async def open_known_ledger(config: NatsBackendConfig) -> AsyncIterator[KnownLedger]:
    """Open the record of the deployment's ledger id. Raises Unavailable."""
    link = await open_link(access_of(config), "pyoco-admin", Patience())
    try:
        known = JetStreamKnownLedger(link, config)
        await known.start()
        yield known
    finally:
        await link.close()


async def remember_restored(config: NatsBackendConfig, priced: PricedConfig) -> str | None:
    """After an intended restore, make the restored ledger the deployment's ledger, whichever was used before.

    Returns the id that was recorded before, or None if nothing had to change or no id was recorded. A ledger of an
    older version has no id: then none is recorded, and the next gateway assigns one. Raises Conflict,
    DependencyUnavailable.
    """
    async with open_known_ledger(config) as known:
        plan = await plan_adoption(known, find_ledger(config, priced).ledger_id)
        if plan.before is None or not plan.changes:
            return None
        await adopt_ledger(known, plan)
        return plan.before


def _address(config: NatsBackendConfig, priced: PricedConfig) -> str:
    url = priced.ledger_address(config.data_dir)
    if url.startswith("postgresql"):
        need("psycopg", "PYOCO_LEDGER_URL")
    return url
