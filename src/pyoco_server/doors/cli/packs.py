"""`pyoco-server-admin packs`: the queue of priced runs, and its dead letters."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

import click

from pyoco_server.doors.cli.shell import Group
from pyoco_server.errors import UsageError

if TYPE_CHECKING:
    from pyoco_server.actions.priced.dead_letters import PackDeadLetter
    from pyoco_server.config import NatsBackendConfig
    from pyoco_server.ports.pack_queue.port import PackQueue

__all__ = ["packs"]

T = TypeVar("T")

Config = Callable[[], "NatsBackendConfig"]

_limit = click.option(
    "--limit",
    type=click.IntRange(1, 1000),
    default=100,
    show_default=True,
    metavar="N",
    help="Read at most this many letters.",
)


@click.group(cls=Group, example="pyoco-server-admin packs letters")
def packs() -> None:
    """List and redrive the dead letters of priced runs."""


@packs.command("letters", example="pyoco-server-admin packs letters\npyoco-server-admin packs letters --limit 10")
@_limit
@click.pass_obj
def dead_letters(config: Config, limit: int) -> None:
    """List messages that no worker could process. Their runs are refunded eventually; until then they can be sent
    again.

    SQS does not return the same letter again for some minutes.
    """
    from pyoco_server.actions.priced.dead_letters import list_pack_dead_letters
    from pyoco_server.doors.cli.money import print_json

    print_json([_shown(each) for each in _with_queue(config(), lambda queue: list_pack_dead_letters(queue, limit))])


@packs.command(
    "redrive",
    example="""\
pyoco-server-admin packs redrive --run-id 5b0c...
pyoco-server-admin packs redrive --all""",
)
@click.option(
    "--run-id", "run_ids", multiple=True, metavar="ID", help="Redrive the letters of this run; may be repeated."
)
@click.option("--all", "everything", is_flag=True, help="Redrive every readable letter.")
@_limit
@click.pass_obj
def redrive(config: Config, run_ids: tuple[str, ...], everything: bool, limit: int) -> None:
    """Send dead letters to the workers again. A run that was started or refunded meanwhile is not started again."""
    from pyoco_server.actions.priced.dead_letters import list_pack_dead_letters, redrive_pack_dead_letters
    from pyoco_server.doors.cli.money import print_json

    if everything == bool(run_ids):
        raise UsageError("use either --run-id or --all")

    async def work(queue: PackQueue) -> tuple[int, int]:
        found = await list_pack_dead_letters(queue, limit)
        wanted = [each for each in found if each.message is not None and (everything or each.message.run_id in run_ids)]
        return len(found), await redrive_pack_dead_letters(queue, wanted)

    seen, sent = _with_queue(config(), work)
    print_json({"seen": seen, "sent": sent})


def _shown(dead_letter: PackDeadLetter) -> dict[str, object]:
    message = dead_letter.message
    if message is None:
        return {"run_id": None, "readable": False, "bytes": len(dead_letter.delivery.body)}
    return {
        "run_id": message.run_id,
        "tenant_id": message.tenant_id,
        "pack_type": message.pack_type,
        "enqueued_at": message.enqueued_at,
        "readable": True,
    }


def _with_queue(config: NatsBackendConfig, work: Callable[[PackQueue], Awaitable[T]]) -> T:
    import asyncio
    import logging

    from pyoco_server.config import priced_from_env
    from pyoco_server.wiring.priced import open_pack_queue

    logging.getLogger().addHandler(logging.NullHandler())  # errors are raised, so logs are not needed

    async def run_work() -> T:
        async with open_pack_queue(config, *priced_from_env()) as queue:
            return await work(queue)

    return asyncio.run(run_work())
