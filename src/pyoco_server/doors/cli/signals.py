"""How a long-lived command is told to stop."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable

__all__ = ["StopSignal"]


class StopSignal:
    """Hears SIGINT, SIGTERM and a closed terminal from the moment it is made; in the main thread of a running loop.

    The first signal is a request, and `wait` returns. Every further one calls `at_once`.
    """

    def __init__(self, at_once: Callable[[], None] | None = None) -> None:
        self.at_once = at_once
        self._first: signal.Signals | None = None
        self._heard = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # Under `nohup` SIGHUP is ignored, and stays so.
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                loop.add_signal_handler(number, self._hear, number)

    def _hear(self, number: signal.Signals) -> None:
        if self._first is None:
            self._first = number
            self._heard.set()
        elif self.at_once is not None:
            self.at_once()

    @property
    def heard(self) -> bool:
        return self._heard.is_set()

    async def wait(self) -> None:
        await self._heard.wait()

    @property
    def name(self) -> str:
        return self._first.name if self._first is not None else ""

    @property
    def exit_code(self) -> int:
        """130 after SIGINT, 0 after everything else (FLOW-425, FLOW-469)."""
        return 130 if self._first is signal.SIGINT else 0
