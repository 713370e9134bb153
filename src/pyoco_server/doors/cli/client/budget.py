"""The `budget` command: what is left to spend on priced runs, and what was spent."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from pyoco_server.client.connection import Asked
from pyoco_server.doors.cli.client import arguments
from pyoco_server.doors.cli.client.calling import calling, fail
from pyoco_server.doors.cli.client.output import note, print_json, print_table
from pyoco_server.doors.cli.shell import Command
from pyoco_server.errors import UsageError

if TYPE_CHECKING:
    from pyoco_server.http_client import Budget, BudgetList, PyocoHttpClient

__all__ = ["budget"]

_COLUMNS = ("tenant_id", "status", "balance_usd", "held_usd", "charged_usd", "credited_usd")
_LINE_COLUMNS = (
    "txn_id",
    "created_at",
    "kind",
    "available_usd",
    "held_usd",
    "charged_usd",
    "actor",
    "run_id",
    "memo",
)
_NONE = (
    "no budget is shown without a key: set PYOCO_API_KEY or --api-key to a key of the tenant; "
    "an operator creates one with `pyoco-server-admin api-key create --tenant TENANT`"
)


@click.command(
    "budget",
    cls=Command,
    example="""\
pyoco-client budget
pyoco-client budget --journal --tenant team-a --limit 20
pyoco-client budget --tenant team-a --output json""",
)
@click.option("--tenant", metavar="TENANT", help="Tenant of the budget. [default: that of the API key]")
@click.option("--journal", is_flag=True, help="Show the journal: every money fact, the newest first.")
@click.option("--limit", type=click.IntRange(1, 500), help="Maximum number of lines or budgets. [default: 50]")
@click.option("--before", type=click.IntRange(1), metavar="TXN_ID", help="With --journal: only facts older than this.")
@arguments.output_option("table")
@click.pass_obj
def budget(asked: Asked, tenant: str | None, journal: bool, limit: int | None, before: int | None, output: str) -> None:
    """Show the budget: available, reserved, charged and credited.

    On a server without authentication, and without --tenant, the budgets of all tenants are shown.
    """
    if tenant == "":
        raise UsageError("--tenant must not be empty")
    if before is not None and not journal:
        raise UsageError("--before goes with --journal")
    with calling(asked) as client:
        if journal:
            _print_journal(client, tenant or _only_tenant(client), before, limit, output)
        elif tenant is not None:
            _print_budgets([client.get_budget(tenant)], output)
        else:
            page = client.list_budgets(limit=limit)
            _print_page(page, output)


def _print_journal(client: PyocoHttpClient, tenant_id: str, before: int | None, limit: int | None, output: str) -> None:
    page = client.get_budget_journal(tenant_id, before, limit)
    if output == "json":
        print_json(page)
        return
    print_table(page["lines"], _LINE_COLUMNS)
    if page["next_before"] is not None:
        note(f"there may be more: --before {page['next_before']}")


def _only_tenant(client: PyocoHttpClient) -> str:
    found = client.list_budgets(limit=2)["budgets"]
    if not found:
        fail(_NONE)
    if len(found) > 1:
        raise UsageError(
            f"there are several budgets: name the tenant; example: --journal --tenant {found[0]['tenant_id']}"
        )
    return found[0]["tenant_id"]


def _print_page(page: BudgetList, output: str) -> None:
    if not page["budgets"]:
        note(_NONE)
    if len(page["budgets"]) == 1 and page["next_after"] is None:
        _print_budgets(page["budgets"], output)
    elif output == "json":
        print_json(page)
    else:
        print_table(page["budgets"], _COLUMNS)
        if page["next_after"] is not None:
            note("there may be more: --limit")


def _print_budgets(budgets: list[Budget], output: str) -> None:
    if output == "json":
        print_json(budgets[0])
    else:
        print_table(budgets, _COLUMNS)
