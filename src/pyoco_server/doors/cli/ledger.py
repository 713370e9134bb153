"""`pyoco-server-admin ledger` and `tenant`: the tables of priced runs, and who is in them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from pyoco_server.doors.cli.shell import Group
from pyoco_server.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from pyoco_server.actions.priced.tenants import ShownTenant
    from pyoco_server.config import NatsBackendConfig, PricedConfig
    from pyoco_server.ports.priced import Priced

__all__ = ["ledger", "tenant"]

Config = Callable[[], "NatsBackendConfig"]


@click.group(cls=Group, example="pyoco-server-admin ledger status")
def ledger() -> None:
    """Look at the ledger's tables, and bring them up to date. Reads PYOCO_LEDGER_URL."""


@ledger.command("status", example="pyoco-server-admin ledger status")
@click.pass_obj
def status(config: Config) -> int:
    """Say which version the tables have. Exits 1 when they have to be migrated."""
    from pyoco_server.wiring_priced import ledger_status  # noqa: PLC0415 - not for --help

    found = ledger_status(config(), _priced())
    click.echo(json.dumps(found, indent=2))
    return 0 if found["up_to_date"] else 1


@ledger.command("migrate", example="pyoco-server-admin ledger migrate")
@click.pass_obj
def migrate(config: Config) -> None:
    """Make the tables, or bring them up to this version. Safe to repeat; several at once wait for each other.

    Back the database up first. Stop processes of an older version before: they refuse newer tables.
    """
    from pyoco_server.wiring_priced import migrate_ledger  # noqa: PLC0415 - not for --help

    before, after = migrate_ledger(config(), _priced())
    click.echo(json.dumps({"before": before, "after": after, "changed": before != after}, indent=2))


@click.group(cls=Group, example="pyoco-server-admin tenant list")
def tenant() -> None:
    """List tenants of the ledger, shut them out, and set their rate limits."""


@tenant.command("list", example="pyoco-server-admin tenant list")
@click.pass_obj
def list_tenants(config: Config) -> None:
    """Show every tenant the ledger knows."""
    from pyoco_server.actions.priced.tenants import all_tenants  # noqa: PLC0415 - not for --help
    from pyoco_server.doors.cli.money import print_json, with_money  # noqa: PLC0415

    print_json([item.document() for item in with_money(config(), all_tenants)])


_id = click.option("--tenant", "tenant_id", required=True, metavar="TENANT", help="As `tenant list` shows it.")


@tenant.command("suspend", example="pyoco-server-admin tenant suspend --tenant team-a")
@_id
@click.pass_obj
def suspend(config: Config, tenant_id: str) -> None:
    """Refuse the tenant's keys at /v1 from now on. What runs goes on and is settled."""
    _set_status(config(), tenant_id, "SUSPENDED")


@tenant.command("activate", example="pyoco-server-admin tenant activate --tenant team-a")
@_id
@click.pass_obj
def activate(config: Config, tenant_id: str) -> None:
    """Let a suspended tenant in again."""
    _set_status(config(), tenant_id, "ACTIVE")


@tenant.command(
    "limit",
    example="""\
pyoco-server-admin tenant limit --tenant team-a --per-minute 600
pyoco-server-admin tenant limit --tenant team-a --default""",
)
@_id
@click.option("--per-minute", type=click.IntRange(1, 10**9), metavar="N", help="So many reads, and so many submits.")
@click.option("--default", "as_everybody", is_flag=True, help="As PYOCO_PRICED_RATE_LIMIT_PER_MIN says.")
@click.pass_obj
def limit(config: Config, tenant_id: str, per_minute: int | None, as_everybody: bool) -> None:
    """Set how often a tenant may ask."""
    if as_everybody == (per_minute is not None):
        raise UsageError("say either --per-minute or --default")
    from pyoco_server.actions.priced.tenants import limit_tenant  # noqa: PLC0415 - not for --help

    _set(config(), tenant_id, lambda priced: limit_tenant(priced, tenant_id, per_minute))


def _set_status(config: NatsBackendConfig, tenant_id: str, status: str) -> None:
    from pyoco_server.actions.priced.tenants import set_tenant_status  # noqa: PLC0415 - not for --help
    from pyoco_server.core.priced.run import TenantStatus  # noqa: PLC0415

    _set(config, tenant_id, lambda priced: set_tenant_status(priced, tenant_id, TenantStatus(status)))


def _set(config: NatsBackendConfig, tenant_id: str, change: Callable[[Priced], Awaitable[ShownTenant | None]]) -> None:
    from pyoco_server.doors.cli.money import print_json, with_money  # noqa: PLC0415 - not for --help

    found = with_money(config, change)
    if found is None:
        raise UsageError(f"the ledger has no tenant {tenant_id[:80]!r}; `budget credit` makes one")
    print_json(found.document())


def _priced() -> PricedConfig:
    from pyoco_server.config import priced_from_env  # noqa: PLC0415 - not for --help

    return priced_from_env()[0]
