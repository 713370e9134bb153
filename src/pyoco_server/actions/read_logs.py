"""Read what a run has printed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field

from pyoco_server.actions.read import read_run
from pyoco_server.core.retries.course import try_of
from pyoco_server.core.run import Caller, Run
from pyoco_server.core.run_log.batch import decode_batch
from pyoco_server.core.run_log.line import Gap, Line, Why, gap_line
from pyoco_server.core.run_log.reading import Assembly
from pyoco_server.core.run_log.selection import LIMIT_DEFAULT, Selection, last_lines
from pyoco_server.core.run_log.skipping import Plan, plan_of
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
#: Larger batches are decoded in a thread, so that other requests are not delayed.
_LARGE_BYTES = 16_384


@dataclass(frozen=True)
class LogPage:
    lines: list[Line]
    #: More lines that match follow after the last one.
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

    Costs O(batches of this run), of which those near the page are decoded; all of them with a filter by content.
    Raises RunNotFound, also for another tenant's run, and Unavailable.
    """
    run = (await read_run(backend, caller, run_id)).run
    if backend.logs is None:
        return LogPage([])
    batches = await _stored(backend.logs, run_id)
    if not batches:
        lines = await _forgotten(backend.logs, run, selection)
        return LogPage(lines, tries={line.attempt: try_of(run, line.attempt) for line in lines})
    wanted = [each for each in batches if selection.attempt in (None, each.attempt)]
    # The last one of the selected attempts gets no more lines.
    is_over = run.is_terminal and backend.clock() - run.updated_at > _LATE_SECONDS
    is_over = is_over or (bool(wanted) and wanted[-1].attempt < max(run.attempt, batches[-1].attempt))
    plan = plan_of([(each.attempt, each.payload) for each in wanted], selection, tail)
    is_over = not plan.is_cut and (is_over or plan.end < len(wanted))
    found: list[Line] = []
    async with aclosing(_selected(wanted, selection, plan, is_over=is_over)) as some_lines:
        async for some in some_lines:
            found += some
            if tail is not None:
                found = list(last_lines(found, tail))
            elif len(found) > limit:
                break
    if batches[-1].attempt > run.attempt:  # an attempt began meanwhile: an earlier one may have ended a try
        run = (await read_run(backend, caller, run_id)).run
    tries = {attempt: try_of(run, attempt) for attempt in {line.attempt for line in found}}
    if tail is not None:
        return LogPage(found, tries=tries)
    return LogPage(found[:limit], len(found) > limit, tries)


async def _stored(logs: RunLogs, run_id: str) -> list[StoredBatch]:
    """Return all batches, by attempt: a worker that was fenced may have stored its last lines late."""
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
                return sorted(found, key=lambda each: (each.attempt, each.number))


async def _selected(
    batches: list[StoredBatch], selection: Selection, plan: Plan, *, is_over: bool
) -> AsyncGenerator[list[Line], None]:
    assembly = Assembly()
    for at, batch in enumerate(batches[: plan.end]):
        if (heads := plan.skipped.get(at)) is not None:
            yield [line for line in assembly.skip(batch.attempt, *heads, batch.stored_at) if selection.has(line)]
        elif len(batch.payload) > _LARGE_BYTES:
            yield await asyncio.to_thread(_wanted_of, assembly, batch, selection)
        else:
            yield _wanted_of(assembly, batch, selection)
    if is_over:
        yield [line for line in assembly.end() if selection.has(line)]


def _wanted_of(assembly: Assembly, batch: StoredBatch, selection: Selection) -> list[Line]:
    return [line for line in lines_in(assembly, batch) if selection.has(line)]


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
