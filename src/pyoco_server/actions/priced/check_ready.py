"""Check whether the stores of priced runs answer (PRICED-178, SAFE-12, SAFE-13)."""

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
    """Which checks succeeded in time."""

    ledger: bool
    budget: bool
    queue: bool
    #: The stores of results and of inputs.
    results: bool
    #: The ledger is the one that the deployment uses.
    ledger_identity: bool

    @property
    def is_ready(self) -> bool:
        return self.queue and self.can_execute

    @property
    def can_execute(self) -> bool:
        """Whether a worker could end a run that it starts, which needs no queue."""
        return self.ledger and self.budget and self.results and self.ledger_identity

    def document(self) -> dict[str, Any]:
        """Return the readiness as every process shows it: without host names or error texts."""
        return {
            "status": _status(self.is_ready),
            "checks": {
                "ledger": _status(self.ledger),
                "budget": _status(self.budget),
                "queue": _status(self.queue),
                "results": _status(self.results),
                "ledger_identity": _status(self.ledger_identity),
            },
        }


#: For a process without stores of priced runs.
NOT_READY = Readiness(ledger=False, budget=False, queue=False, results=False, ledger_identity=False)


async def check_ready(priced: Priced) -> Readiness:
    """Run all checks concurrently, each within `READY_SECONDS`. Never raises for an outage: it returns it."""
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


def _status(is_well: bool) -> str:
    return "ok" if is_well else "fail"
