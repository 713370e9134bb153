"""Request the cancellation of many runs."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace

from pyoco_server.actions.cancel import cancel_if
from pyoco_server.core.programs.record import EXEC
from pyoco_server.core.run import FLOW, PACK, Caller, Run
from pyoco_server.core.states import RunState
from pyoco_server.errors import PyocoError, RunNotFound
from pyoco_server.logs import get_logger
from pyoco_server.ports.backend import GatewayBackend
from pyoco_server.ports.index.port import EVERYBODY, ListPosition, RunFilter, Summary

__all__ = ["CancelledRuns", "RunSelection", "cancel_many"]

log = get_logger(__name__)

_AT_ONCE = 64
_PAGE = 500
#: The caller waits for an answer: runs not reached within this time are left for its next request.
SECONDS_MAX = 20.0
#: The states from which a run can be cancelled (FLOW-16).
_OPEN = (RunState.PENDING, RunState.RUNNING)


@dataclass(frozen=True, kw_only=True)
class RunSelection:
    """The runs to cancel: the given ids, or all runs that have not ended and match the filter."""

    run_ids: tuple[str, ...] | None = None
    wanted: RunFilter = field(default_factory=RunFilter)
    #: Only runs submitted earlier than this.
    submitted_before: float | None = None
    #: Maximum number of runs to process.
    limit: int

    def fits(self, run: Run) -> bool:
        """Whether the current record of the run still matches. The index is only a cache, so the record decides."""
        wanted, tags = self.wanted, (run.tag, *run.tags)
        return (
            (wanted.status is None or run.status == wanted.status)
            and (wanted.flow is None or run.flow_name == wanted.flow)
            and (wanted.tag is None or wanted.tag in tags)
            and (wanted.kind is None or run.kind == wanted.kind)
            and self._fits_program(run)
            and (wanted.workflow_yaml_sha256 is None or run.workflow_yaml_sha256 == wanted.workflow_yaml_sha256)
            and (self.submitted_before is None or run.submitted_at < self.submitted_before)
        )

    def _fits_program(self, run: Run) -> bool:
        wanted, program = self.wanted, run.program
        asked = {"job_id": wanted.job_id, "client_id": wanted.client_id, "group": wanted.group}
        return all(value is None or getattr(program, name, None) == value for name, value in asked.items())


@dataclass
class CancelledRuns:
    """The outcome of a request, in numbers."""

    #: Runs whose cancellation was requested now.
    asked: int = 0
    already_cancelling: int = 0
    already_ended: int = 0
    not_found: int = 0
    #: The request failed, or its outcome is unknown; the log contains the reason.
    failed: int = 0
    #: There may be more matching runs: repeat the request.
    more: bool = False
    #: The highest revision that this request wrote.
    revision: int = 0

    @property
    def matched(self) -> int:
        """The number of runs that matched."""
        return self.asked + self.already_cancelling + self.already_ended + self.failed


async def cancel_many(
    backend: GatewayBackend, caller: Caller, selection: RunSelection, reason: str | None, seconds: float = SECONDS_MAX
) -> CancelledRuns:
    """Mark the selected runs CANCELLING, each by its own compare-and-set, up to 64 concurrently.

    A run that fails is counted and logged. Packs cannot be cancelled: a filter skips them unless it selects packs, and
    then they fail, as packs named by id do. Only the caller's own runs are affected. One index read per 500 runs, two
    round trips per run.

    Stops after `limit` runs or `seconds`, and then reports that there is more; requests still in flight at that time
    count as failed. A crash leaves some runs marked and others not; repeating the request marks the others. Raises
    Unavailable if the index cannot be read.
    """
    walk = _Walk(backend, caller, selection, reason)
    try:
        async with asyncio.timeout(seconds):
            await (walk.these(selection.run_ids) if selection.run_ids is not None else walk.all_that_fit())
    except TimeoutError:
        walk.done.more = True
    log.info("requested cancellation of many runs", matched=walk.done.matched, **asdict(walk.done))
    return walk.done


class _Walk:
    """The state of one request while it walks through the runs."""

    def __init__(self, backend: GatewayBackend, caller: Caller, selection: RunSelection, reason: str | None) -> None:
        self._backend, self._caller, self._selection, self._reason = backend, caller, selection, reason
        self._room = asyncio.Semaphore(_AT_ONCE)
        #: Each run is counted once, however often it moves within the list during the walk.
        self._seen: set[str] = set()
        self.done = CancelledRuns()

    async def these(self, run_ids: tuple[str, ...]) -> None:
        await self._cancel_each(run_ids)

    async def all_that_fit(self) -> None:
        """Process PENDING runs first: a run that starts meanwhile is found among the RUNNING ones."""
        wanted = replace(self._selection.wanted, tenant_id=self._caller.tenant_id or EVERYBODY)
        for status in _OPEN if wanted.status is None else (RunState(wanted.status),):
            for part in self._parts(replace(wanted, status=status)):
                await self._all_of(part)
                if self.done.more:
                    return

    async def _all_of(self, wanted: RunFilter) -> None:
        place: ListPosition | None = None
        while True:
            page = await self._backend.index.page(wanted, _PAGE, place)
            await self._cancel_each(line.run_id for line in page.items if self._is_selected(line))
            place = page.next
            if place is None or self.done.more:
                return

    def _parts(self, wanted: RunFilter) -> Iterator[RunFilter]:
        """Split the filter so that most runs are found without reading newer updates.

        Lists are ordered by update time. Most runs that were submitted early enough were also last updated before that
        time, so they are found without reading later updates, of which there may be too many for the time limit. The
        second part holds the runs updated since. Among PENDING runs only programs can be in it, because only they are
        put back into the queue.
        """
        before = self._selection.submitted_before
        if before is None:
            yield wanted
            return
        yield replace(wanted, updated_before=before)
        since = replace(wanted, updated_after=math.nextafter(before, -math.inf))
        if wanted.status != RunState.PENDING:
            yield since
        elif wanted.kind != FLOW:
            yield replace(since, kind=wanted.kind or EXEC)

    def _is_selected(self, line: Summary) -> bool:
        before = self._selection.submitted_before
        is_early = before is None or line.submitted_at < before
        return is_early and (line.kind != PACK or self._selection.wanted.kind == PACK)

    async def _cancel_each(self, run_ids: Iterable[str]) -> None:
        new = [run_id for run_id in dict.fromkeys(run_ids) if run_id not in self._seen]
        left = self._selection.limit - len(self._seen)
        self.done.more = len(new) > left
        new = new[:left]
        self._seen.update(new)
        await asyncio.gather(*map(self._cancel, new))

    async def _cancel(self, run_id: str) -> None:
        done = self.done
        async with self._room:
            try:
                answer = await cancel_if(self._backend, self._caller, run_id, self._reason, self._selection.fits)
            except RunNotFound:  # from a list: deleted since
                done.not_found += self._selection.run_ids is not None
                return
            except asyncio.CancelledError:  # time limit reached; the outcome of the request is unknown
                done.failed += 1
                log.warning("cancel request timed out", run_id=run_id)
                raise
            except PyocoError as error:
                done.failed += 1
                log.warning("cancel request failed", run_id=run_id, error=error)
                return
        run = answer.stored.run
        if answer.asked:
            done.asked += 1
            done.revision = max(done.revision, answer.stored.revision)
        elif run.is_terminal:
            done.already_ended += 1
        elif run.status is RunState.CANCELLING:
            done.already_cancelling += 1
