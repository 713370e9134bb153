"""List and redrive dead letters of the queue of priced runs."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from pyoco_server.core.priced.message import BadMessage, PackMessage, decode
from pyoco_server.logs import get_logger
from pyoco_server.ports.pack_queue.port import Delivery, PackQueue

__all__ = ["PackDeadLetter", "list_pack_dead_letters", "redrive_pack_dead_letters"]

log = get_logger(__name__)


@dataclass(frozen=True)
class PackDeadLetter:
    delivery: Delivery
    #: None: it is not one of our messages, and sending it again would change nothing.
    message: PackMessage | None


async def list_pack_dead_letters(queue: PackQueue, at_most: int) -> list[PackDeadLetter]:
    """Return up to `at_most` dead letters, oldest first if the queue is ordered. Raises DependencyUnavailable."""
    return [PackDeadLetter(each, _read(each)) for each in await queue.dead_letters(at_most)]


async def redrive_pack_dead_letters(queue: PackQueue, dead_letters: Collection[PackDeadLetter]) -> int:
    """Send the messages of these letters again, and return how many were sent.

    Safe for runs that were started or refunded meanwhile: no worker starts them again. Raises DependencyUnavailable;
    the messages before it are sent.
    """
    sent = 0
    for dead_letter in dead_letters:
        if dead_letter.message is None:
            continue
        await queue.redrive(dead_letter.delivery)
        sent += 1
        log.info("sent a priced run again", run_id=dead_letter.message.run_id, tenant_id=dead_letter.message.tenant_id)
    return sent


def _read(delivery: Delivery) -> PackMessage | None:
    try:
        return decode(delivery.body)
    except BadMessage:
        return None
