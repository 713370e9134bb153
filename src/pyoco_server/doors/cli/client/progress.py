"""Progress bars on stderr, on terminals only."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

from pyoco_server.doors.cli.client.output import is_terminal, safe

__all__ = ["counting", "looking", "transferring"]


@contextlib.contextmanager
def counting(what: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """Yield a function to call with the number of newly finished items."""
    if not is_terminal(sys.stderr):
        yield lambda more: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=total)
        yield lambda more: progress.advance(task, more)


@contextlib.contextmanager
def transferring(what: str) -> Iterator[Callable[[int, int | None], None] | None]:
    """Yield a function to call with the bytes so far and the total. None: stderr is not a terminal."""
    if not is_terminal(sys.stderr):
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


@contextlib.contextmanager
def looking(what: str) -> Iterator[Callable[[str], None]]:
    """Yield a function to call with the last seen state; the elapsed time is shown beside it."""
    if not is_terminal(sys.stderr):
        yield lambda state: None
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(safe(what), total=None)
        yield lambda state: progress.update(task, description=safe(f"{what} is {state}"))
