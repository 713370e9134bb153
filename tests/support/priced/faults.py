"""Ports of priced runs whose calls fail before or after they took effect, in the manner of `faulty_ports`."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any

from pyoco_server.errors import DependencyUnavailable
from pyoco_server.ports.priced import Priced

__all__ = ["AFTER", "BEFORE", "Trouble", "with_trouble"]

BEFORE = "before"
AFTER = "after"

_PORTS = ("ledger", "budget", "queue", "results", "inputs", "idempotency_locks")


@dataclass
class Trouble:
    """What is to go wrong, and what was called. A call is named `port.method`."""

    #: Call name to the fates of its next calls; "" lets one pass.
    plan: dict[str, list[str]] = field(default_factory=dict)
    #: Something that happens elsewhere right after a call took effect, and before its fate is known.
    meanwhile: dict[str, Callable[[], Awaitable[object]]] = field(default_factory=dict)
    #: Or: the call of this number, whichever it is.
    at: int | None = None
    fate: str = ""
    calls: list[str] = field(default_factory=list)

    async def go(self, name: str, call: Callable[[], Awaitable[Any]]) -> Any:
        fates = self.plan.get(name)
        fate = fates.pop(0) if fates else ""
        if len(self.calls) == self.at:
            fate = self.fate
        self.calls.append(name)
        if fate == BEFORE:
            raise DependencyUnavailable(f"injected: {name} got lost")
        answer = await call()
        happening = self.meanwhile.pop(name, None)
        if happening is not None:
            await happening()
        if fate == AFTER:
            raise DependencyUnavailable(f"injected: the answer to {name} got lost")
        return answer


class _Faulty:
    def __init__(self, name: str, port: object, trouble: Trouble) -> None:
        self._name, self._port, self._trouble = name, port, trouble

    def __getattr__(self, method: str) -> Any:
        real = getattr(self._port, method)
        if not inspect.iscoroutinefunction(real):
            return real

        async def call(*args: object, **more: object) -> object:
            return await self._trouble.go(f"{self._name}.{method}", lambda: real(*args, **more))

        return call


def with_trouble(priced: Priced, trouble: Trouble) -> Priced:
    """The same bundle, with every port open to trouble."""
    faulty: dict[str, Any] = {
        name: _Faulty(name, port, trouble) for name in _PORTS if (port := getattr(priced, name)) is not None
    }
    return replace(priced, **faulty)
