"""Ports whose n-th call fails before or after it took effect. Whatever an action does must be right at each of them."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from pyoco_server.errors import NotStored, Unavailable
from pyoco_server.ports.backend import Backend

__all__ = ["AFTER", "BEFORE", "UNHEARD", "Faulty", "Trouble", "with_trouble"]

#: The call is lost on its way; its caller cannot know that.
BEFORE = "before"
#: The call took effect, and its answer is lost.
AFTER = "after"
#: The call is lost, and its caller knows it.
UNHEARD = "unheard"

B = TypeVar("B", bound=Backend)


@dataclass
class Trouble:
    """What is to go wrong, and what was called. A call is named `port.method`."""

    #: Call name to the fates of its next calls; "" lets one pass.
    plan: dict[str, list[str]] = field(default_factory=dict)
    #: Something that happens elsewhere right after a call took effect, and before its fate is known.
    meanwhile: dict[str, Callable[[], Awaitable[object]]] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)

    async def go(self, name: str, call: Callable[[], Awaitable[Any]]) -> Any:
        self.calls.append(name)
        fates = self.plan.get(name)
        fate = fates.pop(0) if fates else ""
        if fate == UNHEARD:
            raise NotStored(f"injected: nobody heard {name}")
        if fate == BEFORE:
            raise Unavailable(f"injected: {name} got lost")
        answer = await call()
        happening = self.meanwhile.pop(name, None)
        if happening is not None:
            await happening()
        if fate == AFTER:
            raise Unavailable(f"injected: the answer to {name} got lost")
        return answer


class Faulty:
    def __init__(self, name: str, port: object, trouble: Trouble) -> None:
        self._name, self._port, self._trouble = name, port, trouble

    def __getattr__(self, method: str) -> Any:
        real = getattr(self._port, method)
        if not inspect.iscoroutinefunction(real):
            return real

        async def call(*args: object, **more: object) -> object:
            return await self._trouble.go(f"{self._name}.{method}", lambda: real(*args, **more))

        return call


def with_trouble(backend: B, trouble: Trouble, *ports: str) -> B:
    """The same backend, with these ports (all: none named) open to trouble."""
    names = ports or ("runs", "queue", "registry")
    faulty: dict[str, Any] = {name: Faulty(name, getattr(backend, name), trouble) for name in names}
    return replace(backend, **faulty)
