"""`pyoco-server-admin ledger` and `tenant`: the tables of priced runs, and their tenants."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

import click

from pyoco_server.doors.cli.ledger_adopt import adopt
from pyoco_server.doors.cli.shell import Group
from pyoco_server.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from pyoco_server.actions.priced.tenants import ShownTenant
    from pyoco_server.config import NatsBackendConfig, PricedConfig
    from pyoco_server.ports.budget.repair import RepairableBudget
    from pyoco_server.ports.ledger.port import Difference
    from pyoco_server.ports.priced import Priced

__all__ = ["ledger", "tenant"]

Config = Callable[[], "NatsBackendConfig"]


@click.group(cls=Group, example="pyoco-server-admin ledger status")
def ledger() -> None:
    """Inspect and migrate the ledger, move budgets, and switch to another ledger. Reads PYOCO_LEDGER_URL."""


@ledger.command("status", example="pyoco-server-admin ledger status")
@click.pass_obj
def status(config: Config) -> int:
    """Show the version of the tables. Exits with 1 if they have to be migrated."""
    from pyoco_server.wiring.priced import ledger_status

    found = ledger_status(config(), _priced())
    click.echo(json.dumps(found, indent=2))
    return 0 if found["up_to_date"] else 1


@ledger.command("migrate", example="pyoco-server-admin ledger migrate")
@click.pass_obj
def migrate(config: Config) -> None:
    """Create the tables, or upgrade them to this version. Safe to repeat; concurrent migrations wait for each other.

    Back up the database first. Stop processes of an older version before: they refuse newer tables.
    """
    from pyoco_server.wiring.priced import migrate_ledger

    before, after = migrate_ledger(config(), _priced())
    click.echo(json.dumps({"before": before, "after": after, "changed": before != after}, indent=2))


ledger.add_command(adopt)


@ledger.command(
    "mode",
    example="""\
PYOCO_BUDGET_URL=redis://127.0.0.1:6379/0 pyoco-server-admin ledger mode --to split
pyoco-server-admin ledger mode --to joint --yes""",
)
@click.option(
    "--to", required=True, type=click.Choice(["joint", "split"]), help="joint: in the ledger itself; split: in Redis."
)
@click.option("--yes", is_flag=True, help="Do not ask. Needed where there is no terminal.")
@click.pass_obj
def mode(config: Config, to: str, yes: bool) -> int:
    """Move every tenant's budget into Redis, or back into the ledger.

    The balances are taken from the journal. Stop gateways, workers and keepers first, and start them with the new
    settings afterwards. Refuses while a run has not ended. Exits with 1 if the money does not add up at the end.
    """

    from pyoco_server.actions.priced.change_mode import change_mode, plan_mode_change
    from pyoco_server.doors.cli.money import print_json, with_money_in
    from pyoco_server.ports.ledger.port import BudgetMode

    after = BudgetMode(to)
    plan = with_money_in(after, config(), lambda priced: plan_mode_change(priced, after))
    tenants = [
        {"tenant_id": tenant_id, "balance_usd_micros": available}
        for tenant_id, available in plan.available_usd_micros.items()
    ]
    print_json({"before": plan.before, "after": after, "tenants": tenants})
    if plan.before is after:
        click.echo("nothing to change", err=True)
        return 0
    if not yes and not (sys.stdin.isatty() and click.confirm("Is everything stopped? Change it?", err=True)):
        click.echo("nothing was written; use --yes to do it", err=True)
        return 0

    async def change(priced: Priced) -> tuple[Difference, ...]:
        stock = cast("RepairableBudget", priced.budget) if after is BudgetMode.SPLIT else None
        return await change_mode(priced, stock, plan)

    differences = with_money_in(after, config(), change)
    for each in differences:
        click.echo(f"tenant {each.tenant_id}: {each.detail}", err=True)
    where = "set PYOCO_BUDGET_URL for" if after is BudgetMode.SPLIT else "unset PYOCO_BUDGET_URL for"
    click.echo(f"done; {where} every process", err=True)
    return 1 if differences else 0


@click.group(cls=Group, example="pyoco-server-admin tenant list")
def tenant() -> None:
    """List and suspend tenants of the ledger, and set their rate limits."""


@tenant.command("list", example="pyoco-server-admin tenant list")
@click.pass_obj
def list_tenants(config: Config) -> None:
    """Show every tenant in the ledger."""
    from pyoco_server.actions.priced.tenants import all_tenants
    from pyoco_server.doors.cli.money import print_json, with_money

    print_json([item.document() for item in with_money(config(), all_tenants)])


_id = click.option("--tenant", "tenant_id", required=True, metavar="TENANT", help="Tenant, as shown by `tenant list`.")


@tenant.command("suspend", example="pyoco-server-admin tenant suspend --tenant team-a")
@_id
@click.pass_obj
def suspend(config: Config, tenant_id: str) -> None:
    """Refuse the tenant's keys at /v1 from now on. Running runs continue and are settled."""
    _set_status(config(), tenant_id, "SUSPENDED")


@tenant.command("activate", example="pyoco-server-admin tenant activate --tenant team-a")
@_id
@click.pass_obj
def activate(config: Config, tenant_id: str) -> None:
    """Accept the keys of a suspended tenant again."""
    _set_status(config(), tenant_id, "ACTIVE")


@tenant.command(
    "limit",
    example="""\
pyoco-server-admin tenant limit --tenant team-a --per-minute 600
pyoco-server-admin tenant limit --tenant team-a --default""",
)
@_id
@click.option(
    "--per-minute", type=click.IntRange(1, 10**9), metavar="N", help="Limit for reads, and the same for submissions."
)
@click.option("--default", "as_everybody", is_flag=True, help="Use PYOCO_PRICED_RATE_LIMIT_PER_MIN.")
@click.pass_obj
def limit(config: Config, tenant_id: str, per_minute: int | None, as_everybody: bool) -> None:
    """Set the request limit of a tenant."""
    if as_everybody == (per_minute is not None):
        raise UsageError("use either --per-minute or --default")
    from pyoco_server.actions.priced.tenants import limit_tenant

    _set(config(), tenant_id, lambda priced: limit_tenant(priced, tenant_id, per_minute))


def _set_status(config: NatsBackendConfig, tenant_id: str, status: str) -> None:
    from pyoco_server.actions.priced.tenants import set_tenant_status
    from pyoco_server.core.priced.run import TenantStatus

    _set(config, tenant_id, lambda priced: set_tenant_status(priced, tenant_id, TenantStatus(status)))


def _set(config: NatsBackendConfig, tenant_id: str, change: Callable[[Priced], Awaitable[ShownTenant | None]]) -> None:
    from pyoco_server.doors.cli.money import print_json, with_money

    found = with_money(config, change)
    if found is None:
        raise UsageError(f"the ledger has no tenant {tenant_id[:80]!r}; `budget credit` makes one")
    print_json(found.document())


def _priced() -> PricedConfig:
    from pyoco_server.config import priced_from_env

    return priced_from_env()[0]
