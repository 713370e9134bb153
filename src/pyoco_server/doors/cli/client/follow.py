"""`list --follow`: a list that stays up to date, by the refresh protocol of section 9.

Loads the list once, then requests what was updated since the newest known update minus five seconds (FLOW-190). Reloads
the list every minute, because deleted runs are not reported (FLOW-191). Waits while the server is unavailable.
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

#: FLOW-190: the allowance for clock differences.
_OVERLAP_SECONDS = 5.0
#: FLOW-191: reload at least every 60 s.
_RELOAD_SECONDS = 55.0
_PAGE_RUNS = 200
_DEFAULT_RUNS = 50
_REPORTED_MAX = 50_000

#: Fields that every heartbeat changes; a change of only these is not printed.
_HEARTBEAT_FIELDS = ("heartbeat_at", "updated_at")


class Listing:
    """The newest matching runs, merged by id, and what was last reported of each run, including runs no longer shown.

    Holds at most as many runs as are shown, plus 100 bytes for each of the last 50,000 changed runs.
    """

    def __init__(self, status: str | None, runs_max: int) -> None:
        self._status = status
        self._runs_max = runs_max
        self._runs: dict[str, Mapping[str, Any]] = {}
        #: Update time and content hash by run id; the most recently reported comes last.
        self._reported: dict[str, tuple[float, int]] = {}
        self._newest = 0.0

    @property
    def updated_after(self) -> float:
        return max(self._newest - _OVERLAP_SECONDS, 0.0)

    def runs(self) -> list[Mapping[str, Any]]:
        """Return the runs, the newest first (FLOW-110)."""
        return sorted(self._runs.values(), key=_place, reverse=True)

    def load(self, items: Sequence[Mapping[str, Any]], since: float = 0.0) -> list[Mapping[str, Any]]:
        """Replace the list. Return the runs that are new or have changed, the oldest first.

        `since`: updates before this time are never requested.
        """
        news = self._news(items)
        self._runs = {str(run["run_id"]): run for run in items}
        self._newest = max([self._newest, since, *(run["updated_at"] for run in items)])
        return news

    def merge(self, items: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """Merge updates into the list. A run that has left the filtered status is reported once, then dropped."""
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
        """Return whether the run is new or has changed, and remember it.

        An unknown run older than `after` has not changed: it moved up into the list because another run was removed.
        """
        run_id, updated_at = str(run["run_id"]), float(run["updated_at"])
        reported = self._reported.get(run_id)
        if reported is not None and updated_at < reported[0]:
            return False  # from a gateway whose index lags
        self._reported.pop(run_id, None)
        if not self._matches(run):
            return reported is not None
        self._reported[run_id] = (updated_at, _content_hash(run))
        if len(self._reported) > _REPORTED_MAX:
            del self._reported[next(iter(self._reported))]
        return updated_at > after if reported is None else reported[1] != self._reported[run_id][1]

    def _matches(self, run: Mapping[str, Any]) -> bool:
        return self._status is None or run["status"] == self._status


def _place(run: Mapping[str, Any]) -> tuple[float, str]:
    return float(run["updated_at"]), str(run["run_id"])


def _content_hash(run: Mapping[str, Any]) -> int:
    return hash(json.dumps({name: run[name] for name in sorted(run) if name not in _HEARTBEAT_FIELDS}))


def follow_runs(
    client: PyocoHttpClient, filters: Mapping[str, Any], interval_seconds: float, output: str | None
) -> None:
    """Print changes until Ctrl-C.

    The first load must succeed; later outages are reported and waited for. `output` is `json`, `table`, or None to
    choose by the type of stdout. Raises UsageError for a table where stdout is not a terminal.
    """
    if output == "table" and not is_terminal(sys.stdout):
        raise UsageError("a live table needs a terminal; use --output json, or omit --follow")
    limit = _DEFAULT_RUNS if filters.get("limit") is None else filters["limit"]
    listing = Listing(filters.get("status"), limit)
    changes = _changes(client, listing, {**filters, "limit": limit}, interval_seconds)
    if output != "json" and is_terminal(sys.stdout):
        from pyoco_server.doors.cli.client.live_list import draw_list

        draw_list(listing, changes)
        return
    is_unavailable = False
    for news in changes:
        if isinstance(news, Exception):
            if not is_unavailable:
                note(f"the server is unavailable; waiting for it ({news})")
        else:
            if is_unavailable:
                note("the server is available again")
            for run in news:
                print_line(run)
        is_unavailable = isinstance(news, Exception)


def _changes(
    client: PyocoHttpClient, listing: Listing, filters: Mapping[str, Any], interval_seconds: float
) -> Iterator[list[Mapping[str, Any]] | Exception]:
    """Yield the changes found by each poll, or the error if the server did not respond."""
    since = _newest(client, filters)  # before the load, so that no update falls between the two
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
    """Return when the newest run of any status was updated.

    The newest run of the filtered status may be a month old, and later updates of other runs are not changes of this
    list.
    """
    if filters.get("status") is None:
        return 0.0  # the load returns it
    items = client.list_runs_vnext(**{**filters, "status": None, "limit": 1})["items"]
    return items[0]["updated_at"] if items else 0.0


def _updated(client: PyocoHttpClient, filters: Mapping[str, Any], after: float) -> list[Mapping[str, Any]]:
    """Return all runs updated since, whatever their status: otherwise a run that left the filtered status would be
    missed."""
    asked = {**filters, "status": None, "limit": _PAGE_RUNS, "updated_after": after}
    found: list[Mapping[str, Any]] = []
    cursor = None
    while True:
        page = client.list_runs_vnext(**asked, cursor=cursor)
        found += page["items"]
        cursor = page["next_cursor"]
        if cursor is None:
            return found
