"""The table of `list --follow` on a terminal. Needs rich."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping
from typing import Any

from rich.cells import cell_len
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from pyoco_server.core.states import RunState
from pyoco_server.doors.cli.client.follow import Listing
from pyoco_server.doors.cli.client.output import STATUS_COLOURS, instant, safe
from pyoco_server.doors.cli.client.runs import COLUMNS

__all__ = ["draw_list"]

#: The header, the footer and the cursor's line.
_OTHER_LINES = 4
#: Below this terminal width, timestamps are shown without the date, to leave room for names.
_WIDE = 110
#: These columns are never cut: ids are copied, and statuses must be readable. The names share the remaining width.
_ID, _STATUS = 36, max(map(len, RunState))
_GAPS = 2 * (len(COLUMNS) - 1)


def draw_list(listing: Listing, changes: Iterable[list[Mapping[str, Any]] | Exception]) -> None:
    """Redraw after each poll, until Ctrl-C; the last table stays on the screen."""
    console = Console(file=sys.stdout, highlight=False)
    with Live(console=console, auto_refresh=False) as live:
        for news in changes:
            rows = max(console.size.height - _OTHER_LINES, 3)
            problem = news if isinstance(news, Exception) else None
            live.update(_page(listing.runs(), rows, problem, console.size.width), refresh=True)


def _widths(columns: int, runs: Iterable[Mapping[str, Any]]) -> tuple[int, ...]:
    """Return the maximum width of each of COLUMNS for a terminal. Width unused by flow names goes to the tag."""
    instant_columns = len("2026-01-31T12:00:00Z" if columns >= _WIDE else "12:00:00Z")
    names = max(columns - _ID - _STATUS - instant_columns - _GAPS, 12)
    longest = max((cell_len(safe(run.get("flow_name", ""))) for run in runs), default=0)
    flow = min(max(longest, len("flow_name")), names - names // 3)
    return _ID, _STATUS, flow, names - flow, instant_columns


def _page(runs: list[Mapping[str, Any]], rows_max: int, problem: Exception | None, columns: int) -> Group:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    widths = _widths(columns, runs[:rows_max])
    for name, width in zip(COLUMNS, widths, strict=True):
        table.add_column(name, no_wrap=True, overflow="ellipsis", max_width=width)
    for run in runs[:rows_max]:
        status = str(run["status"])
        table.add_row(
            Text(safe(run["run_id"])),
            Text(status, style=STATUS_COLOURS.get(status, "")),
            Text(safe(run.get("flow_name", ""))),  # Text: a name may contain markup
            Text(safe(run.get("tag", ""))),
            Text(instant(run["updated_at"])[-widths[-1] :]),
        )
    more = f"{len(runs) - rows_max} more · " if len(runs) > rows_max else ""
    foot = Text(f"{more}{time.strftime('%H:%M:%S')} · Ctrl-C ends", style="dim")
    if problem is not None:
        foot = Text(f"{time.strftime('%H:%M:%S')} · no response, still trying: {safe(problem)}", style="red")
    return Group(table, foot)
