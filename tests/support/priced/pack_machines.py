"""An executor of packs without processes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from pyoco_server.core.packs.ability import Ability
from pyoco_server.core.priced.envelope import PackResult
from pyoco_server.executors.packs.port import Call, Executed, Outcome

__all__ = ["Machine"]


class Machine:
    """Executes in this very process; what it lacks is set by the test."""

    restarts = 0

    def __init__(self, pack: str = "ocr") -> None:
        self.packs = frozenset({pack})
        self.found: dict[str, Ability] = {}
        self.probes = 0
        self.outcome_of: Outcome = Executed(PackResult(data={}, actual_cost_usd_micros=10_000))
        self.calls: list[Call] = []
        self.when_called: Callable[[], None] = lambda: None

    def probe(self, packs: Collection[str]) -> Mapping[str, Ability]:
        assert set(packs) == self.packs
        self.probes += 1
        return dict(self.found)

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def reserve_process(self) -> Any:
        return self

    def leave(self) -> None: ...

    async def begin(self, call: Call) -> Any:
        self.calls.append(call)
        self.when_called()
        return self

    async def outcome(self) -> Outcome:
        return self.outcome_of

    def cancel(self) -> None: ...

    def kill(self) -> None: ...
