"""Clients whose time limit counts from the first answer about their run.

A command with a limit of a second may get no answer within that second on a busy machine. What it says then is another
subject than what it says of a run that it has heard of.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pyoco_server.client import sync_wire
from pyoco_server.client.pack_waiting import PackWaiting
from pyoco_server.client.resuming import Clocks
from pyoco_server.client.waiting import Waiting
from pyoco_server.client.watching import Watching

__all__ = ["client_command", "start_when_heard"]

_TESTS = str(Path(__file__).parents[1])


class _Clock:
    """Stands still until `start`."""

    def __init__(self) -> None:
        self._started_at: float | None = None

    def __call__(self) -> float:
        return 0.0 if self._started_at is None else time.monotonic() - self._started_at

    def start(self) -> None:
        if self._started_at is None:
            self._started_at = time.monotonic()


def start_when_heard(patch: Callable[[object, str, Any], None] = setattr) -> None:
    """The clock of each synchronous client that is made from now on starts with the first event or look of a wait."""

    def clocks(**given: Any) -> Clocks:
        return dataclasses.replace(Clocks(**given), steady=_Clock())

    patch(sync_wire, "Clocks", clocks)
    for kind, method in ((Watching, "_note"), (Waiting, "ends_with"), (PackWaiting, "ends_with")):
        patch(kind, method, _starting(getattr(kind, method)))


def _starting(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def heard(self: Any, *words: Any) -> Any:
        if isinstance(self.clocks.steady, _Clock):
            self.clocks.steady.start()
        return method(self, *words)

    return heard


def client_command() -> Sequence[str]:
    """`pyoco-client` in a process of its own, with such clocks."""
    code = (
        f"import sys; sys.path.insert(0, {_TESTS!r}); sys.argv[0] = 'pyoco-client'\n"
        "from support.client_clocks import start_when_heard; start_when_heard()\n"
        "from pyoco_server.doors.cli.client import main; sys.exit(main())"
    )
    return [sys.executable, "-c", code]
