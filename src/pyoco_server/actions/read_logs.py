"""Read what a run has printed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field

from pyoco_server.actions.read import read_run
from pyoco_server.core.retries.course import try_of
from pyoco_server.core.run import Caller, Run
from pyoco_server.core.run_log.batch import decode_batch
from pyoco_server.core.run_log.line import Gap, Line, Why, gap_line
from pyoco_server.core.run_log.reading import Assembly
from pyoco_server.core.run_log.selection import LIMIT_DEFAULT, PAGE_CHARACTERS_MAX, LastLines, Selection
from pyoco_server.core.run_log.skipping import may_match, plan_of
from pyoco_server.errors import Corrupt, Unavailable
from pyoco_server.logs import get_logger
from pyoco_server.ports.backend import GatewayBackend
from pyoco_server.ports.run_logs.port import RunLogs, StoredBatch

__all__ = ["LogPage", "lines_in", "read_logs"]

log = get_logger(__name__)

#: Lines may arrive for this long after the end of their run. Without a last batch until then, some were lost.
_LATE_SECONDS = 10.0
#: A read that takes longer than this fails: its store is silent.
_SILENCE_SECONDS = 5.0
#: Lines are decoded in a thread, so that other requests are not delayed: this many batches at a time.
_BATCHES_AT_ONCE = 64


@dataclass(frozen=True)
class LogPage:
    lines: list[Line]
    #: More lines that match follow after the last one; with `tail`, there is no room for those before the first one.
    has_more: bool = False
    #: The try of the run, by attempt of the lines (LOG-8).
    tries: Mapping[int, int] = field(default_factory=dict)


async def read_logs(
    backend: GatewayBackend,
    caller: Caller,
    run_id: str,
    selection: Selection,
    *,
    tail: int | None = None,
    limit: int = LIMIT_DEFAULT,
) -> LogPage:
    """Return the selected lines of a run, by attempt and sequence; with `tail` the last ones, otherwise the first.

    Costs O(batches of this run), of which those near the page are decoded. With a filter by content also those between
    `after` and the page, and with `tail` all if the page is not found in the last quarter. Of these, only those that
    may contain the task, level or text.
    Raises RunNotFound, also for another tenant's run, and Unavailable.
    """
    run = (await read_run(backend, caller, run_id)).run
    if backend.logs is None:
        return LogPage([])
    batches = await _stored(backend.logs, run_id)
    if not batches:
        lines = await _forgotten(backend.logs, run, selection)
        return LogPage(lines, tries={line.attempt: try_of(run, line.attempt) for line in lines})
    # The last one of the selected attempts gets no more lines.
    is_over = run.is_terminal and backend.clock() - run.updated_at > _LATE_SECONDS
    page = await asyncio.to_thread(_Page, batches, selection, tail, limit, run.attempt, is_over=is_over)
    while not page.is_complete:
        await asyncio.to_thread(page.read_on)
    if page.attempt > run.attempt:  # an attempt began meanwhile: an earlier one may have ended a try
        run = (await read_run(backend, caller, run_id)).run
    tries = {attempt: try_of(run, attempt) for attempt in {line.attempt for line in page.lines}}
    return LogPage(page.lines, page.has_more, tries)


async def _stored(logs: RunLogs, run_id: str) -> list[StoredBatch]:
    """Return all batches, in the order in which they were stored."""
    found: list[StoredBatch] = []
    async with aclosing(logs.batches(run_id)) as batches:
        while True:
            try:
                async with asyncio.timeout(_SILENCE_SECONDS):
                    some = await anext(batches)
            except TimeoutError:
                raise Unavailable("cannot read the logs: their store is silent") from None
            found += some.items
            if some.caught_up:
                return found


class _Page:
    """The lines of one page, as they are found. Everything takes time: call it in a thread."""

    def __init__(
        self,
        batches: list[StoredBatch],
        selection: Selection,
        tail: int | None,
        limit: int,
        attempt: int,
        *,
        is_over: bool,
    ) -> None:
        """`attempt`: the newest one that is known. `is_over`: it gets no more lines."""
        self._selection, self._limit = selection, limit
        # By attempt: a worker that was fenced may have stored its last lines late.
        batches = sorted(batches, key=lambda each: (each.attempt, each.number))
        #: The newest attempt.
        self.attempt = max(attempt, batches[-1].attempt)
        self._batches = [each for each in batches if selection.attempt in (None, each.attempt)]
        is_over = is_over or (bool(self._batches) and self._batches[-1].attempt < self.attempt)
        self._plan = plan_of([(each.attempt, each.payload) for each in self._batches], selection, tail)
        self._is_over = not self._plan.is_cut and (is_over or self._plan.end < len(self._batches))
        self._assembly = Assembly()
        self._at = self._characters = 0
        self._last = None if tail is None else LastLines(tail)
        self.lines: list[Line] = []
        self.has_more = self.is_complete = False

    def read_on(self) -> None:
        """Read the next batches."""
        end = min(self._at + _BATCHES_AT_ONCE, self._plan.end)
        while self._at < end and not self.has_more:
            self._add(self._lines_of(self._at))
            self._at += 1
        if self._at >= self._plan.end and not self.has_more and self._is_over:
            self._add(self._assembly.end())
        self.is_complete = self.has_more or self._at >= self._plan.end
        if self.is_complete and self._last is not None:
            self.lines, self.has_more = self._last.lines(), self._last.is_cut

    def _lines_of(self, at: int) -> Iterable[Line]:
        batch, heads = self._batches[at], self._plan.joined.get(at)
        if heads is not None and (at in self._plan.skipped or not may_match(batch.payload, self._selection)):
            return self._assembly.skip(batch.attempt, *heads, batch.stored_at)
        return lines_in(self._assembly, batch)

    def _add(self, lines: Iterable[Line]) -> None:
        for line in filter(self._selection.has, lines):
            if self._last is not None:
                self._last.add(line)
            elif len(self.lines) >= self._limit or self._characters >= PAGE_CHARACTERS_MAX:
                self.has_more = True
                return
            else:
                self.lines.append(line)
                self._characters += line.characters


def lines_in(assembly: Assembly, batch: StoredBatch) -> Iterable[Line]:
    """Return the lines of a stored batch that have not been seen. One that cannot be decoded becomes a gap later."""
    try:
        decoded = decode_batch(batch.payload)
    except Corrupt as error:
        log.error("unreadable log lines; leaving them out", number=batch.number, error=error)
        return ()
    return assembly.add(batch.attempt, decoded, batch.stored_at)


async def _forgotten(logs: RunLogs, run: Run, selection: Selection) -> list[Line]:
    """LOG-20: a run without lines that is older than the logs shows that they are gone. It may have printed nothing."""
    ended_at = run.updated_at if run.is_terminal else None
    if ended_at is None:
        return []
    state = await logs.state()
    is_older = state.first_at is None or ended_at < state.first_at
    if not (state.has_forgotten and is_older and state.created_at <= ended_at):
        return []
    line = gap_line(max(run.attempt, 1), 0, ended_at, Gap(Why.RETENTION))
    return [line] if selection.has(line) else []
