"""Do something with every dead letter that fits."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from pyoco_server.actions.list_dead_letters import only_own
from pyoco_server.core.run import Caller
from pyoco_server.errors import Unavailable
from pyoco_server.logs import get_logger
from pyoco_server.ports.backend import GatewayBackend
from pyoco_server.ports.dead_letters.port import DeadLetterFilter, StoredDeadLetter

__all__ = ["SECONDS_MAX", "Span", "Walked", "walk_dead_letters"]

log = get_logger(__name__)

_AT_ONCE = 32
_PAGE = 200
#: Whoever asked waits for an answer: what is not done by then is left for the next request.
SECONDS_MAX = 20.0


@dataclass(frozen=True)
class Span:
    """How far a walk goes: so many letters, below that id, in that time."""

    limit: int
    before: int | None = None
    seconds: float = SECONDS_MAX


@dataclass
class Walked:
    #: Letters that fit and were dealt with.
    matched: int = 0
    #: Where another walk would go on; None: nothing is left.
    next_before: int | None = None


async def walk_dead_letters(
    backend: GatewayBackend,
    caller: Caller,
    wanted: DeadLetterFilter,
    span: Span,
    each: Callable[[StoredDeadLetter], Awaitable[None]],
) -> Walked:
    """Call `each` with every letter the caller may see that fits, the newest first, up to 32 at once.

    Stops at the span's limit, when its time is over, and when `each` raises Unavailable; what is cut off then is as
    after a crash. Letters that come in meanwhile are not met. Raises Unavailable when nothing was done at all.
    """
    walked = Walked()
    mine = only_own(caller, wanted)
    try:
        async with asyncio.timeout(span.seconds):
            before = span.before
            while True:
                page = await backend.dead_letter_index.page(mine, min(_PAGE, span.limit - walked.matched), before)
                # Until all of it is done it would have to be walked again.
                walked.next_before = page.items[0].letter_id + 1 if page.items else None
                await _deal_with(page.items, each, walked)
                walked.next_before = before = page.next_before
                if before is None or walked.matched >= span.limit:
                    break
    except TimeoutError:
        log.info("a walk through the dead letters took too long", matched=walked.matched)
    except Unavailable as error:
        if not walked.matched:
            raise
        log.warning("a walk through the dead letters was cut off", matched=walked.matched, error=error)
    return walked


async def _deal_with(
    items: list[StoredDeadLetter], each: Callable[[StoredDeadLetter], Awaitable[None]], walked: Walked
) -> None:
    room = asyncio.Semaphore(_AT_ONCE)
    outages: list[Unavailable] = []

    async def one(item: StoredDeadLetter) -> None:
        async with room:
            if outages:
                return
            try:
                await each(item)
            except Unavailable as error:
                outages.append(error)
            else:
                walked.matched += 1

    await asyncio.gather(*map(one, items))
    if outages:
        raise outages[0]
