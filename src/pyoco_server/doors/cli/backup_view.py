"""Terminal output of backups: progress bars, or one line per stream without a terminal, and a final summary table."""

from __future__ import annotations

import sys
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING

import click

from pyoco_server.actions.backup import BackupProgress
from pyoco_server.core.backup import LEDGER

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

    from pyoco_server.core.backup import Manifest

__all__ = ["Bars", "table"]


class Bars:
    """Progress on stderr; stdout is for the result. `is_quiet`: shown only on a terminal, for callers that read
    JSON."""

    def __init__(self, doing: str, *, is_quiet: bool) -> None:
        self._doing, self._is_quiet = doing, is_quiet
        self._rich: RichProgress | None = None
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Bars:
        if sys.stderr.isatty():
            from rich.console import Console  # only for a terminal
            from rich.progress import BarColumn, DownloadColumn, TextColumn, TransferSpeedColumn
            from rich.progress import Progress as RichProgress

            columns = (
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                DownloadColumn(),
                TransferSpeedColumn(),
            )
            self._rich = RichProgress(*columns, console=Console(stderr=True))
            self._rich.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._rich is not None:
            self._rich.stop()

    def show(self, progress: BackupProgress) -> None:
        if self._rich is None:
            if progress.is_done and not self._is_quiet:
                click.echo(f"{self._doing} {progress.stream}: {_size(progress.done_bytes)}", err=True)
            return
        if progress.stream not in self._tasks:
            self._tasks[progress.stream] = self._rich.add_task(progress.stream, total=progress.total_bytes or None)
        task = self._tasks[progress.stream]
        total = progress.done_bytes if progress.is_done else max(progress.total_bytes, progress.done_bytes)
        self._rich.update(task, completed=progress.done_bytes, total=total)


def table(manifest: Manifest, folder: str, what: str) -> str:
    made = datetime.fromtimestamp(manifest.made_at).astimezone().strftime("%Y-%m-%d %H:%M:%S %z")
    width = max((len(stream.name) for stream in manifest.streams), default=len(LEDGER))
    lines = [
        f"  {stream.name:<{width}}  {stream.messages:>12,} messages  {_size(stream.size_bytes):>10}"
        for stream in manifest.streams
    ]
    if manifest.ledger is not None:
        lines.append(f"  {LEDGER:<{width}}  {'':>12}           {_size(manifest.ledger.size_bytes):>10}")
    total = f"{_size(manifest.size_bytes)} in {folder}, of {made}, {what}."
    missing = [f"  {', '.join(manifest.missing)}: not there when it was made"] if manifest.missing else []
    return "\n".join([*lines, *missing, total])


def _size(count: float) -> str:
    for unit in ("B", "KB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.2f} GB"
