"""`list --follow`: a list that stays up to date, by the refresh protocol of section 9.

Load once; then ask for what was updated since the newest we know less five seconds (FLOW-190), and load anew every
minute, because removed runs are not reported (FLOW-191). A server that goes away is waited for.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyoco_server.doors.cli.client.calling import is_outage
from pyoco_server.doors.cli.client.output import is_terminal, note, print_line
from pyoco_server.errors import UsageError

if TYPE_CHECKING:
    from pyoco_server.http_client import PyocoHttpClient

__all__ = ["Listing", "follow_runs"]

#: FLOW-190: clocks may differ by so much.
_OVERLAP_SECONDS = 5.0
#: FLOW-191: at least every 60.
_RELOAD_SECONDS = 55.0
_PAGE_RUNS = 200
_DEFAULT_RUNS = 50
_TOLD_MAX = 50_000

#: What a heartbeat changes, and nobody wants to read a line about.
_RESTLESS = ("heartbeat_at", "updated_at")


class Listing:
    """The newest runs that match, merged by id; and what was told of runs, those that are not shown included. Holds at
    most as many runs as are shown, and 100 bytes for each of the last 50,000 that changed."""

    def __init__(self, status: str | None, runs_max: int) -> None:
        self._status = status
        self._runs_max = runs_max
        self._runs: dict[str, Mapping[str, Any]] = {}
        #: When it was updated and what it looked like, by id; the last one told of comes last.
        self._told: dict[str, tuple[float, int]] = {}
        self._newest = 0.0

    @property
    def updated_after(self) -> float:
        return max(self._newest - _OVERLAP_SECONDS, 0.0)

    def runs(self) -> list[Mapping[str, Any]]:
        """The newest first (FLOW-110)."""
        return sorted(self._runs.values(), key=_place, reverse=True)

    def load(self, items: Sequence[Mapping[str, Any]], since: float = 0.0) -> list[Mapping[str, Any]]:
        """Instead of what was there. Gives those that are new or have changed, the oldest first. `since`: nobody asks
        for what was updated before."""
        news = self._news(items)
        self._runs = {str(run["run_id"]): run for run in items}
        self._newest = max([self._newest, since, *(run["updated_at"] for run in items)])
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
        after = self.updated_after
        return [run for run in sorted(items, key=_place) if self._is_news(run, after)]

    def _is_news(self, run: Mapping[str, Any], after: float) -> bool:
        """And remembers it. What is unknown and older than `after` has not changed: it came up into the list because
        another one was removed."""
        run_id, updated_at = str(run["run_id"]), float(run["updated_at"])
        told = self._told.get(run_id)
        if told is not None and updated_at < told[0]:
            return False  # of a gateway that is behind
        self._told.pop(run_id, None)
        if not self._matches(run):
            return told is not None
        self._told[run_id] = (updated_at, _look_of(run))
        if len(self._told) > _TOLD_MAX:
            del self._told[next(iter(self._told))]
        return updated_at > after if told is None else told[1] != self._told[run_id][1]

    def _matches(self, run: Mapping[str, Any]) -> bool:
        return self._status is None or run["status"] == self._status


def _place(run: Mapping[str, Any]) -> tuple[float, str]:
    return float(run["updated_at"]), str(run["run_id"])


def _look_of(run: Mapping[str, Any]) -> int:
    return hash(json.dumps({name: run[name] for name in sorted(run) if name not in _RESTLESS}))


def follow_runs(
    client: PyocoHttpClient, filters: Mapping[str, Any], interval_seconds: float, output: str | None
) -> None:
    """Until Ctrl-C. The first load has to succeed; later an outage is told, and waited for. `output` is `json`,
    `table`, or None for what suits stdout. Raises UsageError for a table where nothing can move."""
    if output == "table" and not is_terminal(sys.stdout):
        raise UsageError("a table that is kept up to date needs a terminal; take --output json, or leave --follow out")
    limit = _DEFAULT_RUNS if filters.get("limit") is None else filters["limit"]
    listing = Listing(filters.get("status"), limit)
    changes = _changes(client, listing, {**filters, "limit": limit}, interval_seconds)
    if output != "json" and is_terminal(sys.stdout):
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
    since = _newest(client, filters)  # before the load: nothing falls between the two
    yield listing.load(client.list_runs_vnext(**filters)["items"], since)
    loaded_at = time.monotonic()
    while True:
        time.sleep(interval_seconds)
        try:
            yield listing.merge(_updated(client, filters, listing.updated_after))
            if time.monotonic() - loaded_at >= _RELOAD_SECONDS:
                yield listing.load(client.list_runs_vnext(**filters)["items"])
                loaded_at = time.monotonic()
        except Exception as error:
            if not is_outage(error):
                raise
            yield error


def _newest(client: PyocoHttpClient, filters: Mapping[str, Any]) -> float:
    """When the last run of any status was updated. The last one of ours may be a month old, and what happened since
    to all others is no news."""
    if filters.get("status") is None:
        return 0.0  # the load tells
    items = client.list_runs_vnext(**{**filters, "status": None, "limit": 1})["items"]
    return items[0]["updated_at"] if items else 0.0


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
