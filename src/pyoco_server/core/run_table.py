"""Runs as rows of a table for spreadsheets: CSV (RFC 4180), with every cell as text that no program executes."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from pyoco_server.core.run import Run
from pyoco_server.core.snapshot import encode
from pyoco_server.core.values.shown import shown_result

__all__ = ["param_names", "table_text"]

#: One column for each of so many params.
_PARAMS_MAX = 50
#: A longer value is cut.
_CELL_LENGTH_MAX = 1024
_COLUMNS = ("run_id", "status", "kind", "flow_name", "tag", "labels", "submitted_at", "start_time", "end_time", "error")
#: Spreadsheets execute cells that begin so.
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")


def param_names(runs: Iterable[Run]) -> list[str]:
    """Return the names of the params that have a column: those of these runs, in the order of their appearance."""
    names = dict.fromkeys(str(name) for run in runs for name in run.params)
    return list(names)[:_PARAMS_MAX]


def table_text(runs: Iterable[Run | Mapping[str, Any]], params: Sequence[str], *, with_head: bool) -> str:
    """Return the rows of these runs. Of a run of which only a few members may be shown, those are given."""
    text = io.StringIO()
    writer = csv.writer(text)
    if with_head:
        writer.writerow(_safe(name) for name in (*_COLUMNS, *(f"params.{name}" for name in params), "result"))
    for run in runs:
        writer.writerow(_row(run, params) if isinstance(run, Run) else [_safe(_text(run.get(n))) for n in _COLUMNS])
    return text.getvalue()


def _row(run: Run, params: Sequence[str]) -> list[str]:
    labels = " ".join(str(tag) for tag in run.tags if tag != run.tag)
    times = (_instant(run.submitted_at), _instant(run.start_time), _instant(run.end_time))
    values = (run.run_id, run.status.value, run.kind, run.flow_name, run.tag, labels, *times, run.error)
    return [_safe(_text(value)) for value in (*values, *(run.params.get(name) for name in params), _result(run))]


def _result(run: Run) -> Any:
    shown = shown_result(run, _CELL_LENGTH_MAX)
    if shown is None:
        return None
    error = shown.get("error")
    return error["message"] if error is not None else shown.get("value", shown.get("preview"))


def _instant(at: float | None) -> str | None:
    try:
        return None if at is None else datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return None


def _text(value: Any) -> str:
    if value is None:
        return ""
    text = value if isinstance(value, str) else encode(value).decode()
    return text if len(text) <= _CELL_LENGTH_MAX else f"{text[: _CELL_LENGTH_MAX - 1]}…"


def _safe(text: str) -> str:
    """A leading apostrophe makes a spreadsheet take the cell as text. Numbers stay numbers."""
    return f"'{text}" if text.startswith(_FORMULA) and not _is_number(text) else text


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return text.isascii() and not text[0].isspace()
