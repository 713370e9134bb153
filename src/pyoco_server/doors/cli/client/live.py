"""The live view of a run: its tasks with states and times, and its errors. Needs rich."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, TextIO

from rich.cells import cell_len, set_cell_size
from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text
from rich.tree import Tree

from pyoco_server.doors.cli.client.output import STATUS_COLOURS, safe, span
from pyoco_server.doors.cli.client.run_text import NOT_RUN, task_states

__all__ = ["RunView", "picture", "run_view"]

_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_SIGNS = {
    "PENDING": "·",
    NOT_RUN: "·",
    "SUCCEEDED": "✓",
    "COMPLETED": "✓",
    "FAILED": "✗",
    "CANCELLED": "⊘",
    "CANCELLING": "⊘",
}
_PLAIN_SIGNS = {
    "PENDING": ".",
    NOT_RUN: ".",
    "SUCCEEDED": "+",
    "COMPLETED": "+",
    "FAILED": "x",
    "CANCELLED": "-",
    "CANCELLING": "-",
}
#: Which tasks are shown first if there is not room for all.
_RANK = {"FAILED": 0, "RUNNING": 1, "CANCELLED": 2, "PENDING": 3, "SUCCEEDED": 4}
#: Lines that are not tasks: the run, its facts, why it waits, its error, the count of hidden tasks.
_OTHER_LINES = 6
_LAST_TASKS_MAX = 200
_FRAMES_PER_SECOND = 8
_ERROR_LENGTH_MAX = 2000
#: The server sends an event at least every five seconds.
_NO_EVENT_SECONDS = 12.0


class RunView:
    """The last known state of the run and when it was received. Durations keep counting between two events."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._snapshot: Mapping[str, Any] | None = None
        self._waiting: str | None = None
        self._sent_at, self._received_at = 0.0, time.monotonic()
        self.has_ended = False

    def show(self, event: Mapping[str, Any], waiting: str | None = None) -> None:
        """Update the view with an `event` of `watch_run`; `waiting` is the reason why the run has not started."""
        self._snapshot, self._waiting = event["snapshot"], waiting
        # The server's clock: a wrong local clock must not change the displayed age.
        self._sent_at, self._received_at = float(event["ts"]), time.monotonic()

    def print(self, text: str) -> None:
        """Print text above the view, from any thread. It may contain colours, but no other escape sequences."""
        self._console.print(Text.from_ansi(text), soft_wrap=True)

    def render(self) -> RenderableType:
        seconds_without_event = time.monotonic() - self._received_at
        if self._snapshot is None:
            return Text("waiting for the server …" if seconds_without_event > _NO_EVENT_SECONDS else "", style="dim")
        rows = _LAST_TASKS_MAX if self.has_ended else max(self._console.size.height - _OTHER_LINES, 3)
        is_plain = self._console.options.ascii_only
        frame = ">" if is_plain else _FRAMES[int(time.monotonic() * _FRAMES_PER_SECOND) % len(_FRAMES)]
        now = self._sent_at + time.monotonic() - self._received_at
        signs = _PLAIN_SIGNS if is_plain else _SIGNS
        tree = picture(self._snapshot, self._waiting, now, rows, {**signs, "RUNNING": frame})
        if seconds_without_event > _NO_EVENT_SECONDS and not self.has_ended:
            tree.add(Text(f"no response from the server for {span(seconds_without_event)}; still trying", style="red"))
        return tree


@contextlib.contextmanager
def run_view(stream: TextIO, *, transient: bool) -> Iterator[RunView]:
    """Draw on `stream` until the end of the block, then erase the view if it is `transient`.

    Where the view cannot be redrawn, only the final state is printed.
    """
    console = Console(file=stream, highlight=False)
    view = RunView(console)
    with Live(console=console, get_renderable=view.render, refresh_per_second=_FRAMES_PER_SECOND, transient=transient):
        yield view
        view.has_ended = True


def picture(
    snapshot: Mapping[str, Any], waiting: str | None, now: float, rows_max: int, signs: Mapping[str, str]
) -> Tree:
    """Render the run with at most `rows_max` of its tasks. O(tasks)."""
    tree = Tree(_headline(snapshot, now, signs), guide_style="dim")
    if waiting:
        tree.add(Text(safe(waiting), style="yellow"))
    tasks = task_states(snapshot)
    shown = _worth_showing(tasks, rows_max)
    width = max((cell_len(safe(name)) for name in shown), default=0)
    records = snapshot.get("task_records") or {}
    for name in shown:
        record = records.get(name) or {}
        branch = tree.add(_task_line(set_cell_size(safe(name), width), tasks[name], record, now, signs))
        if tasks[name] == "FAILED" and record.get("error"):
            branch.add(_error(str(record["error"])))
    if len(shown) < len(tasks):
        tree.add(_fold([state for name, state in tasks.items() if name not in shown]))
    if snapshot.get("error"):
        tree.add(_error(str(snapshot["error"])))
    return tree


def _headline(snapshot: Mapping[str, Any], now: float, signs: Mapping[str, str]) -> Text:
    status = str(snapshot["status"])
    line = Text.assemble(
        (signs.get(status, " "), _style(status)),
        f" {safe(snapshot.get('flow_name', ''))} ",
        (status, _style(status, bold=True)),
    )
    if (run_time := _run_time(snapshot, now)) is not None:
        line.append(f" {run_time}")
    facts = [str(snapshot["run_id"])]
    facts += [f"tag {snapshot['tag']}"] if snapshot.get("tag") else []
    facts += [str(snapshot["worker_id"])] if snapshot.get("worker_id") else []
    facts += [f"attempt {snapshot['attempt']}"] if (snapshot.get("attempt") or 0) > 1 else []
    return line.append("\n" + " · ".join(map(safe, facts)), style="dim")


def _run_time(snapshot: Mapping[str, Any], now: float) -> str | None:
    began, ended = snapshot.get("start_time"), snapshot.get("end_time")
    if began is not None:
        return span((now if ended is None else ended) - began)
    submitted = snapshot.get("submitted_at")
    return None if submitted is None or ended is not None else f"for {span(now - submitted)}"


def _task_line(name: str, state: str, record: Mapping[str, Any], now: float, signs: Mapping[str, str]) -> Text:
    line = Text.assemble((signs.get(state, " "), _style(state)), f" {name}  ", (f"{state:<9}", _style(state)))
    began, ended = record.get("started_at"), record.get("ended_at")
    if began is not None and (ended is not None or state == "RUNNING"):
        line.append(f"  {span((now if ended is None else ended) - began)}", style="dim")
    return line


def _worth_showing(tasks: Mapping[str, str], rows_max: int) -> list[str]:
    if len(tasks) <= rows_max:
        return list(tasks)
    chosen = set(sorted(tasks, key=lambda name: _RANK.get(tasks[name], 3))[: rows_max - 1])
    return [name for name in tasks if name in chosen]


def _fold(states: list[str]) -> Text:
    counts = ", ".join(f"{count} {state}" for state, count in Counter(states).most_common())
    return Text(f"… and {len(states)} more: {counts}", style="dim")


def _error(text: str) -> Text:
    lines = [safe(line) for line in text[:_ERROR_LENGTH_MAX].splitlines()]
    return Text("\n".join(lines), style="red")


def _style(status: str, *, bold: bool = False) -> str:
    return f"{'bold ' if bold else ''}{STATUS_COLOURS.get(status, 'default')}"
