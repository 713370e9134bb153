"""`app.testing()`."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from pyoco_server.core.durations import duration_of
from pyoco_server.testing.clients import TestingClients
from pyoco_server.testing.site import TestingSite

if TYPE_CHECKING:
    from pyoco_server.app.app import App

__all__ = ["AppTesting", "open_testing"]


class AppTesting:
    """A deployment for one app in this process. Its time stands still between two calls of `advance`.

    A submitted run begins at once, in a thread of this process. Whatever has to wait, a next try, a delay, a schedule,
    waits until `advance` has passed its time.
    """

    def __init__(self, site: TestingSite) -> None:
        self._site = site

    def __repr__(self) -> str:
        return f"<testing at {self.now.isoformat()}>"

    @property
    def now(self) -> datetime:
        """The virtual time, in UTC. It begins with that of this machine."""
        return datetime.fromtimestamp(self._site.clock.now(), UTC)

    def advance(self, duration: float | str | timedelta) -> None:
        """Let time pass: seconds, text such as `1h30m`, or a timedelta.

        Whatever falls due meanwhile happens at its own time, in order, and each run ends, or waits again, before time
        goes on. Returns when nothing is left to do. Raises ValueError for a bad duration.
        """
        given = duration.total_seconds() if isinstance(duration, timedelta) else duration
        try:
            seconds = duration_of(given)
        except ValueError as error:
            raise ValueError(f"advance {duration!r}: {error}") from None
        self._site.begin(self._site.advance(seconds)).result()

    def run_due(self) -> None:
        """Do what is due now, and wait until everything has ended or waits for its time. No time passes."""
        self.advance(0)


@contextlib.contextmanager
def open_testing(app: App) -> Iterator[AppTesting]:
    """Serve the app in this process until the end of the block."""
    with tempfile.TemporaryDirectory(prefix="pyoco-testing-") as directory:
        site = TestingSite(app, Path(directory))
        site.start()
        try:
            with app.served_by(TestingClients(site)):
                yield AppTesting(site)
        finally:
            site.stop()
