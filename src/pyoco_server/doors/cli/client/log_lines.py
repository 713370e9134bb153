"""Prints the log lines of a run while a command waits for its end (CLI-4)."""

from __future__ import annotations

import asyncio
import contextlib
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator

import httpx

from pyoco_server.client.connection import Asked, resolve
from pyoco_server.doors.cli.client.answers import misfit
from pyoco_server.doors.cli.client.output import note
from pyoco_server.doors.cli.client.run_text import shown_line
from pyoco_server.http_client import AnswerDamaged, AsyncPyocoHttpClient, LogLine

__all__ = ["LinePrinter"]

#: Lines that come within this time are printed together.
_GATHER_SECONDS = 0.05
#: How long to wait for a line after the end of the run. Workers send the last lines at once.
_QUIET_SECONDS = 0.5
#: How long to wait until the server reports that no more lines will follow.
_END_SECONDS = 5.0


class LinePrinter:
    """Follows the log of one run in a thread, on an event loop of its own: only there a read can be cancelled."""

    def __init__(self, asked: Asked, run_id: str, show: Callable[[str], None]) -> None:
        self._asked, self._run_id, self._show = asked, run_id, show
        self._pending: list[str] = []
        self._line_at = 0.0
        self._is_over = self._has_gap = False
        self._count = 0
        self._loop = asyncio.new_event_loop()
        self._task = self._loop.create_task(self._follow())
        self._thread = threading.Thread(target=self._run, name="follow log lines", daemon=True)

    @contextlib.contextmanager
    def following(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._loop.call_soon_threadsafe(self._task.cancel)
            self._thread.join()
            self._loop.close()

    def finish(self, *, is_patient: bool) -> None:
        """Wait for the last lines of a run that has ended: until no line comes for a moment, or, `is_patient`, until
        the server reports the end of the log."""
        ended_at = time.monotonic()
        while self._thread.is_alive():
            deadline = ended_at + _END_SECONDS if is_patient else max(ended_at, self._line_at) + _QUIET_SECONDS
            left = deadline - time.monotonic()
            if left <= 0:
                return
            self._thread.join(left)

    @property
    def has_printed_all(self) -> bool:
        """Whether lines were printed, and none is missing."""
        return self._is_over and self._count > 0 and not self._has_gap

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._task)
        except asyncio.CancelledError:
            pass
        except OSError:  # the terminal was closed
            self._pending.clear()
        except httpx.HTTPError as error:  # lines are an extra: the outcome of the run is still waited for
            note(f"cannot show what the run prints: {error}")
        self._flush()

    async def _follow(self) -> None:
        connection = resolve(self._asked)
        async with AsyncPyocoHttpClient(
            connection.server,
            api_key=connection.api_key,
            api_key_header=connection.api_key_header,
            timeout=connection.timeout_sec,
        ) as client:
            found = client.run_logs(self._run_id, follow=True, patience_sec=math.inf)
            async with contextlib.aclosing(found) as lines:
                async for line in lines:
                    self._take(line)
        self._is_over = True

    def _take(self, line: LogLine) -> None:
        """Raises AnswerDamaged."""
        found = misfit(line, LogLine, "a line")
        if found is not None:
            raise AnswerDamaged(found)
        self._count += 1
        self._has_gap = self._has_gap or line.get("event") == "gap"
        self._line_at = time.monotonic()
        if not self._pending:
            self._loop.call_later(_GATHER_SECONDS, self._flush)
        self._pending.append(shown_line(line))

    def _flush(self) -> None:
        texts, self._pending = self._pending, []
        if texts:
            self._show("\n".join(texts))
            sys.stdout.flush()
