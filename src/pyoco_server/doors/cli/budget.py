"""`pyoco-server-admin budget`: credit tenants, show their money, verify it and repair it."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

import click

from pyoco_server.doors.cli.shell import Group
from pyoco_server.errors import UsageError

if TYPE_CHECKING:
    from pyoco_server.actions.priced.resolve import Decision
    from pyoco_server.config import NatsBackendConfig
    from pyoco_server.core.priced.run import PricedRun
    from pyoco_server.ports.budget.repair import RepairableBudget
    from pyoco_server.ports.priced import Priced

__all__ = ["budget"]

Config = Callable[[], "NatsBackendConfig"]

_tenant = click.option(
    "--tenant", required=True, metavar="TENANT", help="Tenant of the budget: letters, digits, '_', '-'."
)


@click.group(cls=Group, example="pyoco-server-admin budget credit --tenant team-a --usd 10.0000")
def budget() -> None:
    """Credit tenants, show their money, and prove that it adds up.

    Reads PYOCO_LEDGER_URL and PYOCO_BUDGET_URL; without them the ledger is the file in the data directory.
    """


@budget.command(
    "credit",
    example="""\
pyoco-server-admin budget credit --tenant team-a --usd 10.0000
pyoco-server-admin budget credit --tenant team-a --usd 250.0000 --ref invoice-2026-11""",
)
@_tenant
@click.option("--usd", required=True, metavar="USD", help="Amount, with four decimals: 10.0000.")
@click.option("--ref", metavar="REF", help="Name of this credit; each name credits once.  [default: a new one]")
@click.pass_obj
def credit(config: Config, tenant: str, usd: str, ref: str | None) -> None:
    """Give a tenant money to spend; creates the tenant if needed. Safe to repeat with the same --ref."""

    from pyoco_server.actions.priced.credit import credit as give
    from pyoco_server.core.priced.money import parse_credit, usd_down
    from pyoco_server.doors.cli.money import print_json, with_money_made

    _check_tenant(tenant)
    try:
        amount = parse_credit(usd)
    except ValueError as error:
        raise UsageError(f"--usd {error}; example: --usd 10.0000") from error
    name = _check_ref(ref) if ref is not None else str(uuid.uuid4())
    answer = with_money_made(config(), lambda priced: give(priced, tenant, amount, name))
    print_json(
        {
            "tenant_id": tenant,
            "ref": name,
            "applied": answer.is_new,
            "credited_usd_micros": amount if answer.is_new else 0,
            "balance_usd_micros": answer.balance_usd_micros,
            "balance_usd": usd_down(answer.balance_usd_micros),
        }
    )
    if not answer.is_new:
        click.echo(f"a credit named {name!r} was given before; nothing was added", err=True)
    if answer.off_usd_micros:
        click.echo(
            f"Redis differs from the journal by {answer.off_usd_micros:+d} micros; if `budget verify` confirms it, "
            f"run: pyoco-server-admin budget rebuild --tenant {tenant}",
            err=True,
        )


@budget.command("show", example="pyoco-server-admin budget show --tenant team-a")
@_tenant
@click.pass_obj
def show(config: Config, tenant: str) -> None:
    """Print a tenant's balance, reservations, charges and credits, in whole micros."""
    from pyoco_server.actions.priced.show_budget import show_budget
    from pyoco_server.core.run import Caller
    from pyoco_server.doors.cli.money import print_json, with_money

    _check_tenant(tenant)
    view = with_money(config(), lambda priced: show_budget(priced, Caller(tenant_id=tenant), tenant))
    print_json(
        {
            "tenant_id": view.tenant_id,
            "status": view.status.value,
            "balance_usd_micros": view.balance_usd_micros,
            "held_usd_micros": view.held_usd_micros,
            "charged_usd_micros": view.charged_usd_micros,
            "credited_usd_micros": view.credited_usd_micros,
        }
    )


@budget.command("verify", example="pyoco-server-admin budget verify\npyoco-server-admin budget verify --tenant team-a")
@click.option("--tenant", metavar="TENANT", help="Report only differences of this tenant.  [default: all]")
@click.pass_obj
def verify(config: Config, tenant: str | None) -> int:
    """Recompute every balance from the journal and compare. Exits with 1 if a single micro is missing anywhere."""
    from pyoco_server.actions.priced.note_audit import audit_and_note
    from pyoco_server.doors.cli.money import print_json, with_money

    if tenant is not None:
        _check_tenant(tenant)
    report = with_money(config(), audit_and_note)
    found = [item for item in report.differences if tenant is None or item.tenant_id in {None, tenant}]
    print_json(
        {
            "ok": not found,
            "tenants": report.tenants,
            "differences": [
                {"check": item.check, "tenant_id": item.tenant_id, "run_id": item.run_id, "detail": item.detail}
                for item in found
            ],
        }
    )
    for item in found:
        whose = f"tenant {item.tenant_id}" if item.tenant_id is not None else "the ledger"
        click.echo(f"{whose}: {item.detail}", err=True)
    return 1 if found else 0


@budget.command(
    "rebuild",
    example="""\
pyoco-server-admin budget rebuild --tenant team-a
pyoco-server-admin budget rebuild --tenant team-a --yes""",
)
@_tenant
@click.option("--yes", is_flag=True, help="Do not ask. Needed where there is no terminal.")
@click.pass_obj
def rebuild(config: Config, tenant: str, yes: bool) -> None:
    """Rebuild a tenant's budget in Redis from the journal.

    Stop the gateways first: no run may be submitted meanwhile. Refuses while a run is being accepted or finalized.
    """
    from pyoco_server.actions.priced.rebuild import plan_rebuild
    from pyoco_server.actions.priced.rebuild import rebuild as write_anew
    from pyoco_server.doors.cli.money import print_json, with_money

    _check_tenant(tenant)
    # Only a budget in Redis can be rebuilt; for any other the plan raises before it uses the budget.
    plan = with_money(config(), lambda priced: plan_rebuild(priced, cast("RepairableBudget", priced.budget), tenant))
    print_json(
        {
            "tenant_id": tenant,
            "balance_before_usd_micros": plan.balance_before_usd_micros,
            "balance_after_usd_micros": plan.balance_after_usd_micros,
            "reservations_to_write": [each.run_id for each in plan.put],
            "reservations_to_remove": list(plan.drop),
        }
    )
    if plan.is_needless:
        click.echo("nothing to change", err=True)
        return
    if not yes and not (sys.stdin.isatty() and click.confirm("Write this?", err=True)):
        click.echo("nothing was written; use --yes to do it", err=True)
        return
    with_money(config(), lambda priced: write_anew(priced, cast("RepairableBudget", priced.budget), plan))
    click.echo("done", err=True)


@budget.command("disputes", example="pyoco-server-admin budget disputes")
@click.pass_obj
def disputes(config: Config) -> None:
    """List runs whose money facts contradict each other; each needs `budget resolve`."""
    from pyoco_server.actions.priced.list_disputes import list_disputes
    from pyoco_server.core.priced.instants import iso
    from pyoco_server.doors.cli.money import print_json, with_money

    print_json(
        [
            {
                "run_id": run.run_id,
                "tenant_id": run.tenant_id,
                "pack_type": run.pack_type,
                "status": run.status.value,
                "reserved_usd_micros": run.reserved_usd_micros,
                "intent": run.intent.document() if run.intent is not None else None,
                "since": iso(run.updated_at),
            }
            for run in with_money(config(), list_disputes)
        ]
    )


@budget.command(
    "resolve",
    example="""\
pyoco-server-admin budget resolve --run-id 5b0c... --refund --memo "worker died, see ticket 12"
pyoco-server-admin budget resolve --run-id 5b0c... --charge-usd 0.0500 --memo "the work was done" --yes
pyoco-server-admin budget resolve --run-id 5b0c... --charge-nothing --memo "done, and our fault" --yes""",
)
@click.option("--run-id", required=True, metavar="ID", help="A run listed by `budget disputes`.")
@click.option("--refund", is_flag=True, help="Refund the complete reservation.")
@click.option("--charge-usd", metavar="USD", help="Charge this amount, and release the rest.")
@click.option("--charge-nothing", is_flag=True, help="Charge nothing, and publish the result if there is one.")
@click.option("--memo", required=True, metavar="TEXT", help="Reason, kept in the journal.")
@click.option("--yes", is_flag=True, help="Do not ask. Needed where there is no terminal.")
@click.pass_obj
def resolve(
    config: Config, run_id: str, refund: bool, charge_usd: str | None, charge_nothing: bool, memo: str, yes: bool
) -> None:
    """Decide what a disputed run costs, and end it. The decision is recorded in the journal like every other money
    fact.

    If budgets are in Redis, run `budget rebuild` afterwards: only the journal is correct until then.
    """
    from pyoco_server.actions.priced.resolve import resolve as decide
    from pyoco_server.doors.cli.money import print_json, with_money

    decision = _decision(refund, charge_usd, charge_nothing)
    if not yes and not (sys.stdin.isatty() and click.confirm(f"End run {run_id} this way?", err=True)):
        click.echo("nothing was written; use --yes to do it", err=True)
        return

    async def end(priced: Priced) -> tuple[PricedRun, bool]:
        return await decide(priced, run_id, decision, memo), priced.budget.joins_ledger

    run, is_joint = with_money(config(), end)
    print_json(
        {
            "run_id": run.run_id,
            "tenant_id": run.tenant_id,
            "status": run.status.value,
            "money_state": run.money.value,
            "charged_usd_micros": run.used_usd_micros,
        }
    )
    if not is_joint:
        click.echo(
            f"Redis is not updated yet; now run: pyoco-server-admin budget rebuild --tenant {run.tenant_id}",
            err=True,
        )


def _decision(refund: bool, charge_usd: str | None, charge_nothing: bool) -> Decision:
    from pyoco_server.actions.priced.resolve import Refund, Settle
    from pyoco_server.core.priced.money import parse_usd

    if refund + (charge_usd is not None) + charge_nothing != 1:
        raise UsageError("use one of --refund, --charge-usd and --charge-nothing")
    if charge_usd is None:
        return Refund() if refund else Settle(0)
    try:
        return Settle(parse_usd(charge_usd))
    except ValueError as error:
        raise UsageError(f"--charge-usd {error}; example: --charge-usd 0.0500, or --charge-nothing") from error


def _check_tenant(tenant: str) -> None:
    from pyoco_server.core.priced.names import is_tenant

    if not is_tenant(tenant):
        raise UsageError(f"tenant {tenant[:80]!r} may hold letters, digits, '_' and '-', 64 at most")


def _check_ref(ref: str) -> str:
    if not (0 < len(ref) <= 200 and ref.isprintable()):
        raise UsageError("--ref must be one line of 1 to 200 printable characters")
    return ref
