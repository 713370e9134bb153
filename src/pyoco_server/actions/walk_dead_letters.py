"""Process every dead letter that matches a filter."""

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
#: The caller waits for an answer: letters not processed within this time are left for its next request.
SECONDS_MAX = 20.0


@dataclass(frozen=True)
class Span:
    """The limits of a walk: number of letters, highest id (exclusive), time."""

    limit: int
    before: int | None = None
    seconds: float = SECONDS_MAX


@dataclass
class Walked:
    #: Letters that matched and were processed.
    matched: int = 0
    #: Where the next walk continues; None: nothing is left.
    next_before: int | None = None


async def walk_dead_letters(
    backend: GatewayBackend,
    caller: Caller,
    wanted: DeadLetterFilter,
    span: Span,
    each: Callable[[StoredDeadLetter], Awaitable[None]],
) -> Walked:
    """Call `each` with every matching letter that the caller may see, newest first, up to 32 concurrently.

    Stops at the span's limit, when its time is over, and when `each` raises Unavailable; calls that are cut off then
    leave what a crash would. Letters that are written meanwhile are not included. Raises Unavailable only if nothing
    was done.
    """
    walked = Walked()
    own_dead_letters = only_own(caller, wanted)
    try:
        async with asyncio.timeout(span.seconds):
            before = span.before
            while True:
                page = await backend.dead_letter_index.page(
                    own_dead_letters, min(_PAGE, span.limit - walked.matched), before
                )
                # Until the page is complete, a next walk has to start with it again.
                walked.next_before = page.items[0].letter_id + 1 if page.items else None
                await _deal_with(page.items, each, walked)
                walked.next_before = before = page.next_before
                if before is None or walked.matched >= span.limit:
                    break
    except TimeoutError:
        log.info("walk through dead letters timed out", matched=walked.matched)
    except Unavailable as error:
        if not walked.matched:
            raise
        log.warning("walk through dead letters was cut off", matched=walked.matched, error=error)
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
