"""`pyoco-server-admin ledger adopt`: changes which ledger the deployment uses."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from pyoco_server.doors.cli.shell import Command
from pyoco_server.errors import UsageError

if TYPE_CHECKING:
    from pyoco_server.actions.priced.adopt_ledger import Adoption
    from pyoco_server.config import NatsBackendConfig
    from pyoco_server.wiring.ledger import LedgerHere

__all__ = ["adopt"]


@click.command(
    cls=Command,
    example="""\
pyoco-server-admin ledger adopt
PYOCO_LEDGER_URL=postgresql://pyoco@db/ledger pyoco-server-admin ledger adopt --yes""",
)
@click.option("--yes", is_flag=True, help="Do not ask. Needed where there is no terminal.")
@click.pass_obj
def adopt(config: Callable[[], NatsBackendConfig], yes: bool) -> int:
    """Make the ledger that the settings name the one that this deployment uses.

    For a ledger that was replaced or moved on purpose. If the named ledger does not exist, the deployment forgets its
    ledger, and the next gateway that starts creates an empty one. Prints what is lost before it asks; the ledgers
    themselves are not changed. With --data-dir, it starts the NATS of a stopped `pyoco-server up` temporarily.
    """

    from pyoco_server.config import priced_from_env
    from pyoco_server.doors.cli.money import print_json
    from pyoco_server.wiring.ledger import find_ledger, give_ledger_id

    logging.getLogger().addHandler(logging.NullHandler())  # errors are raised, so logs are not needed
    settings, priced = config(), priced_from_env()[0]
    here = find_ledger(settings, priced)
    plan = asyncio.run(_plan(settings, here))
    document = {"before": plan.before, "after": plan.ledger_id, "ledger": here.where, "changed": False}
    needs_id = here.exists and here.ledger_id is None
    if not plan.changes and not needs_id:
        why = "already uses this ledger" if here.exists else f"remembers no ledger, and {here.where} contains none"
        click.echo(f"this deployment {why}: nothing to change", err=True)
        print_json(document)
        return 0
    if not _ask(plan, here, yes=yes):
        click.echo("nothing was changed", err=True)
        return 1
    if needs_id:
        plan = replace(plan, ledger_id=give_ledger_id(settings, priced))
    asyncio.run(_adopt(settings, plan))
    print_json({**document, "after": plan.ledger_id, "changed": True})
    return 0


async def _plan(config: NatsBackendConfig, here: LedgerHere) -> Adoption:
    from pyoco_server.actions.priced.adopt_ledger import plan_adoption
    from pyoco_server.doors.cli.temporary_nats import own_nats
    from pyoco_server.wiring.ledger import open_known_ledger

    async with own_nats(config) as reached, open_known_ledger(reached) as known:
        return await plan_adoption(known, here.ledger_id)


async def _adopt(config: NatsBackendConfig, plan: Adoption) -> None:
    from pyoco_server.actions.priced.adopt_ledger import adopt_ledger
    from pyoco_server.doors.cli.temporary_nats import own_nats
    from pyoco_server.wiring.ledger import open_known_ledger

    async with own_nats(config) as reached, open_known_ledger(reached) as known:
        await adopt_ledger(known, plan)


def _ask(plan: Adoption, here: LedgerHere, *, yes: bool) -> bool:
    """Print what is lost, then ask unless `yes`. Raises UsageError if there is no terminal to ask on."""
    if plan.before is None:
        click.echo("This deployment remembers no ledger yet.", err=True)
    else:
        click.echo(f"This deployment uses the ledger {plan.before}.", err=True)
    if here.exists:
        named = f", which has the id {here.ledger_id}" if here.ledger_id else ", which has no id yet and is given one"
        click.echo(f"It will use the one at {here.where}{named}.", err=True)
    else:
        click.echo(
            f"{here.where} contains no ledger. None will be remembered, and the next gateway that starts creates an "
            "empty one.",
            err=True,
        )
    if plan.before is not None:
        click.echo(
            f"Lost to this deployment is what only the ledger {plan.before} holds: balances and credits, the journal, "
            "and every priced run with its inputs. Runs of it that still wait in the queue are dropped; what they "
            "reserved is neither charged nor given back. Credit tenants again where their money is not in this one.",
            err=True,
        )
    if yes:
        return True
    if not sys.stdin.isatty():
        raise UsageError("nothing was changed: `ledger adopt` asks first, and this is not a terminal; use --yes")
    return click.confirm("Change it?", err=True)
