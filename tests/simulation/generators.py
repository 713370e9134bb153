"""Asynchronous generators of a simulated event loop: the hooks of the interpreter for their first step and end."""

from __future__ import annotations

import weakref
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simulation.loop import SimLoop
    from simulation.process import Process

__all__ = ["Generators"]


class Generators:
    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        #: By address, in the order of their first steps. The order of a set would differ between interpreters.
        self._known: dict[int, tuple[weakref.ref[AsyncGenerator[Any, Any]], Process]] = {}

    def add(self, generator: AsyncGenerator[Any, Any]) -> None:
        self._known.pop(id(generator), None)  # a freed generator had the same address
        self._known[id(generator)] = weakref.ref(generator), self._loop.current()

    def finish(self, generator: AsyncGenerator[Any, Any]) -> None:
        """Called when a suspended generator is about to be freed. The interpreter relies on this hook to execute its
        `finally` blocks, so doing nothing skips those of a dead process."""
        _, process = self._known.pop(id(generator), (None, self._loop.main))
        if process.is_alive and not self._loop.is_closed():
            process.call_soon(self._close, generator)

    def _close(self, generator: AsyncGenerator[Any, Any]) -> None:
        self._loop.create_task(generator.aclose())

    async def close_all(self) -> None:
        known = [(reference(), process) for reference, process in self._known.values()]
        self._known.clear()
        for generator, process in known:
            if generator is not None and process.is_alive:
                await generator.aclose()

    def forget_all(self) -> None:
        self._known.clear()
