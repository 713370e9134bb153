"""Stop signals of long-running commands."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable

__all__ = ["StopSignal"]


class StopSignal:
    """Handles SIGINT, SIGTERM and a closed terminal from its creation on, which needs the main thread and a running
    loop.

    After the first signal `wait` returns. Every further signal calls `at_once`.
    """

    def __init__(self, at_once: Callable[[], None] | None = None) -> None:
        self.at_once = at_once
        self._first: signal.Signals | None = None
        self._heard = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # Under `nohup` SIGHUP is ignored, and stays ignored.
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                loop.add_signal_handler(number, self._on_signal, number)

    def _on_signal(self, number: signal.Signals) -> None:
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
        """130 after SIGINT, 0 after any other signal (FLOW-425, FLOW-469)."""
        return 130 if self._first is signal.SIGINT else 0
