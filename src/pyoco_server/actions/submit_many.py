"""Accept many submissions in one call."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence

from pyoco_server.actions.submit import Accepted
from pyoco_server.actions.submit_once import submit_once
from pyoco_server.core.run import Caller, Submission
from pyoco_server.errors import NotStored, PyocoError, Unavailable
from pyoco_server.logs import get_logger
from pyoco_server.ports.backend import GatewayBackend

__all__ = ["submit_many"]

log = get_logger(__name__)

#: Submissions in flight. Enough to keep NATS busy; more would only delay other callers.
_AT_ONCE = 250
#: Once NATS has failed an item and this time has passed, the remaining items are not started: an outage is reported
#: after the patience for one item (2 s at least), not after the sum over all items. A refusal is reported sooner.
_PATIENCE_SECONDS = 1.0


async def submit_many(
    backend: GatewayBackend, caller: Caller, asks: Sequence[tuple[Submission, str | None]]
) -> list[Accepted | PyocoError]:
    """Return the outcome of each submission, in order; each is independent, under its own idempotency key if it has
    one.

    Each costs what `submit_once` costs, many of them concurrently. A crash leaves each of them where a crash of its own
    submission would; keys make it safe to send all of them again. Raises Unavailable if there were submissions and NATS
    failed all of them: one outage is one error.
    """
    outcomes: list[Accepted | PyocoError] = [_NOT_BEGUN] * len(asks)
    batch = _Batch(backend, caller, iter(enumerate(asks)), outcomes)
    async with asyncio.TaskGroup() as tasks:
        for _ in range(min(_AT_ONCE, len(asks))):
            tasks.create_task(batch.work())
    if batch.trouble is not None:
        failed = sum(isinstance(outcome, Unavailable) for outcome in outcomes)
        if failed == len(outcomes):
            raise batch.trouble
        log.warning("NATS failed some submissions of a batch", failed=failed, of=len(outcomes), error=batch.trouble)
    return outcomes


_NOT_BEGUN = NotStored("not begun, because NATS failed others of the same batch")


class _Batch:
    def __init__(
        self,
        backend: GatewayBackend,
        caller: Caller,
        asks: Iterator[tuple[int, tuple[Submission, str | None]]],
        outcomes: list[Accepted | PyocoError],
    ) -> None:
        self._backend, self._caller = backend, caller
        self._asks, self._outcomes = asks, outcomes
        self._began = time.monotonic()
        #: The first failure that was not caused by an item itself.
        self.trouble: Unavailable | None = None

    async def work(self) -> None:
        """Process submissions one after the other, until none is left. Many of these run concurrently."""
        for index, (ask, key) in self._asks:
            if self.trouble is not None and time.monotonic() - self._began > _PATIENCE_SECONDS:
                return
            try:
                self._outcomes[index] = await submit_once(self._backend, self._caller, ask, key)
            except PyocoError as error:
                self._outcomes[index] = error
                if isinstance(error, Unavailable):
                    self.trouble = self.trouble or error
