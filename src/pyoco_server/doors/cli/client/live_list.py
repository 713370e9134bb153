"""The table of `list --follow` on a terminal. Needs rich."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from pyoco_server.doors.cli.client.follow import Listing
from pyoco_server.doors.cli.client.output import STATUS_COLOURS, instant, safe
from pyoco_server.doors.cli.client.runs import COLUMNS

__all__ = ["draw_list"]

#: The header, the line below the table, and the cursor's own.
_OTHER_LINES = 4


def draw_list(listing: Listing, changes: Iterable[list[Mapping[str, Any]] | Exception]) -> None:
    """Redraws with each look, until Ctrl-C; the last table stays on the screen."""
    console = Console(file=sys.stdout, highlight=False)
    with Live(console=console, auto_refresh=False) as live:
        for news in changes:
            rows = max(console.size.height - _OTHER_LINES, 3)
            live.update(_page(listing.runs(), rows, news if isinstance(news, Exception) else None), refresh=True)


def _page(runs: list[Mapping[str, Any]], rows_max: int, problem: Exception | None) -> Group:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in COLUMNS:
        table.add_column(name, no_wrap=True, overflow="ellipsis", min_width=len(name) if name != "run_id" else 36)
    for run in runs[:rows_max]:
        status = str(run["status"])
        table.add_row(
            Text(safe(run["run_id"])),
            Text(status, style=STATUS_COLOURS.get(status, "")),
            Text(safe(run.get("flow_name", ""))),  # Text: a name may look like markup
            Text(safe(run.get("tag", ""))),
            Text(instant(run["updated_at"])),
        )
    more = f"{len(runs) - rows_max} more · " if len(runs) > rows_max else ""
    foot = Text(f"{more}{time.strftime('%H:%M:%S')} · Ctrl-C ends", style="dim")
    if problem is not None:
        foot = Text(f"{time.strftime('%H:%M:%S')} · nobody answers, still trying: {safe(problem)}", style="red")
    return Group(table, foot)
