"""`list --follow`: a list that stays up to date, by the refresh protocol of section 9.

Load once; then ask for what was updated since the newest we know less five seconds (FLOW-190), and load anew every
minute, because removed runs are not reported (FLOW-191). A server that goes away is waited for.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyoco_server.doors.cli.client.calling import is_outage
from pyoco_server.doors.cli.client.output import is_terminal, note, print_line

if TYPE_CHECKING:
    from pyoco_server.http_client import PyocoHttpClient

__all__ = ["Listing", "follow_runs"]

#: FLOW-190: clocks may differ by so much.
_OVERLAP_SECONDS = 5.0
#: FLOW-191: at least every 60.
_RELOAD_SECONDS = 55.0
_PAGE_RUNS = 200
_DEFAULT_RUNS = 50

#: What a heartbeat changes, and nobody wants to read a line about.
_RESTLESS = ("heartbeat_at", "updated_at")


class Listing:
    """The newest runs that match, merged by id. Holds at most as many as are shown."""

    def __init__(self, status: str | None, runs_max: int) -> None:
        self._status = status
        self._runs_max = runs_max
        self._runs: dict[str, Mapping[str, Any]] = {}
        self._newest = 0.0

    @property
    def updated_after(self) -> float:
        return max(self._newest - _OVERLAP_SECONDS, 0.0)

    def runs(self) -> list[Mapping[str, Any]]:
        """The newest first (FLOW-110)."""
        return sorted(self._runs.values(), key=_place, reverse=True)

    def load(self, items: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """Instead of what was there. Gives those that are new or have changed, the oldest first."""
        news = self._news(items)
        self._runs = {str(run["run_id"]): run for run in items}
        self._newest = max([self._newest, *(run["updated_at"] for run in items)])
        return news

    def merge(self, items: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """On top of what was there. A run that has left the status we look for is news once, and then gone."""
        news = self._news(items)
        for run in items:
            self._newest = max(self._newest, run["updated_at"])
            if self._matches(run):
                self._runs[str(run["run_id"])] = run
            else:
                self._runs.pop(str(run["run_id"]), None)
        self._runs = {str(run["run_id"]): run for run in self.runs()[: self._runs_max]}
        return news

    def _news(self, items: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        return sorted(filter(self._is_news, items), key=_place)

    def _is_news(self, run: Mapping[str, Any]) -> bool:
        known = self._runs.get(str(run["run_id"]))
        return self._matches(run) if known is None else _settled(known) != _settled(run)

    def _matches(self, run: Mapping[str, Any]) -> bool:
        return self._status is None or run["status"] == self._status


def _place(run: Mapping[str, Any]) -> tuple[float, str]:
    return float(run["updated_at"]), str(run["run_id"])


def _settled(run: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in run.items() if name not in _RESTLESS}


def follow_runs(client: PyocoHttpClient, filters: Mapping[str, Any], interval_seconds: float) -> None:
    """Until Ctrl-C. The first load has to succeed; later an outage is told, and waited for."""
    limit = filters.get("limit") or _DEFAULT_RUNS
    listing = Listing(filters.get("status"), limit)
    changes = _changes(client, listing, {**filters, "limit": limit}, interval_seconds)
    if is_terminal(sys.stdout):
        from pyoco_server.doors.cli.client.live_list import draw_list  # noqa: PLC0415 - rich

        draw_list(listing, changes)
        return
    is_away = False
    for news in changes:
        if isinstance(news, Exception):
            if not is_away:
                note(f"the server has gone away; waiting for it ({news})")
        else:
            if is_away:
                note("the server is back")
            for run in news:
                print_line(run)
        is_away = isinstance(news, Exception)


def _changes(
    client: PyocoHttpClient, listing: Listing, filters: Mapping[str, Any], interval_seconds: float
) -> Iterator[list[Mapping[str, Any]] | Exception]:
    """What is new with each look; the error when nobody answered."""
    yield listing.load(client.list_runs_vnext(**filters)["items"])
    loaded_at = time.monotonic()
    while True:
        time.sleep(interval_seconds)
        try:
            if time.monotonic() - loaded_at >= _RELOAD_SECONDS:
                yield listing.load(client.list_runs_vnext(**filters)["items"])
                loaded_at = time.monotonic()
            else:
                yield listing.merge(_updated(client, filters, listing.updated_after))
        except Exception as error:
            if not is_outage(error):
                raise
            yield error


def _updated(client: PyocoHttpClient, filters: Mapping[str, Any], after: float) -> list[Mapping[str, Any]]:
    """Everything that was updated since, whatever its status is now: how else would we see a run leave?"""
    asked = {**filters, "status": None, "limit": _PAGE_RUNS, "updated_after": after}
    found: list[Mapping[str, Any]] = []
    cursor = None
    while True:
        page = client.list_runs_vnext(**asked, cursor=cursor)
        found += page["items"]
        cursor = page["next_cursor"]
        if cursor is None:
            return found
