"""Ask the stores of priced runs whether they answer (PRICED-178, SAFE-12, SAFE-13)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from pyoco_server.errors import PyocoError
from pyoco_server.ports.priced import Priced

__all__ = ["NOT_READY", "READY_SECONDS", "Readiness", "check_ready"]

READY_SECONDS: Final = 2


@dataclass(frozen=True, kw_only=True)
class Readiness:
    """Which of them answered in time."""

    ledger: bool
    budget: bool
    queue: bool
    #: What packs make, and what they read.
    results: bool
    #: The ledger is the one that the deployment uses.
    ledger_identity: bool

    @property
    def is_ready(self) -> bool:
        return self.queue and self.can_execute

    @property
    def can_execute(self) -> bool:
        """Whether a worker could end a run that it starts: it sends nothing to the queue."""
        return self.ledger and self.budget and self.results and self.ledger_identity

    def document(self) -> dict[str, Any]:
        """As every process shows it: no host names, no error texts."""
        return {
            "status": _word(self.is_ready),
            "checks": {
                "ledger": _word(self.ledger),
                "budget": _word(self.budget),
                "queue": _word(self.queue),
                "results": _word(self.results),
                "ledger_identity": _word(self.ledger_identity),
            },
        }


#: Of a process that has none of them.
NOT_READY = Readiness(ledger=False, budget=False, queue=False, results=False, ledger_identity=False)


async def check_ready(priced: Priced) -> Readiness:
    """All at once, each within `READY_SECONDS`. Never raises an outage: that is the answer."""
    ledger, budget, queue, results, inputs = await asyncio.gather(
        _answers(priced.ledger.probe),
        _answers(priced.budget.ping),
        _answers(priced.queue.probe),
        _answers(priced.results.ping),
        _answers(priced.inputs.ping),
    )
    return Readiness(
        ledger=ledger,
        budget=budget,
        queue=queue,
        results=results and inputs,
        ledger_identity=priced.owns_ledger(),
    )


async def _answers(ping: Callable[[], Awaitable[None]]) -> bool:
    try:
        async with asyncio.timeout(READY_SECONDS):
            await ping()
    except (PyocoError, TimeoutError):
        return False
    return True


def _word(is_well: bool) -> str:
    return "ok" if is_well else "fail"
