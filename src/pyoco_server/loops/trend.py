"""Records the trend of the last hour: from the tally's events, and from the index counts every few seconds."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from pyoco_server.core.run import Run
from pyoco_server.core.states import RunState
from pyoco_server.core.trend import STEP_SECONDS, Trend
from pyoco_server.errors import Unavailable
from pyoco_server.logs import get_logger
from pyoco_server.loops.loop import Loop
from pyoco_server.ports.backend import GatewayBackend

__all__ = ["TrendSampler"]

log = get_logger(__name__)

#: Twice per step, so that a slightly late turn leaves no step without a sample.
_EVERY_SECONDS = STEP_SECONDS / 2


class TrendSampler(Loop):
    """A listener of the tally and a loop that reads the index: O(statuses + tags with waiting runs), no round trip.

    What it cannot do: sample while the lists are not up to date. The step then has no sample rather than a wrong one.
    """

    def __init__(self, backend: GatewayBackend, trend: Trend, lists_are_true: Callable[[], Awaitable[bool]]) -> None:
        super().__init__(every_seconds=_EVERY_SECONDS, turn_seconds_max=STEP_SECONDS)
        self._backend, self._trend, self._lists_are_true = backend, trend, lists_are_true

    async def turn(self) -> None:
        if not await self._lists_are_true():
            return
        try:
            counts = await self._backend.index.counts()
        except Unavailable as error:  # the feeder reports it and reopens the index
            log.debug("could not read the counts", error=error)
            return
        in_flight = sum(counts.by_status.get(status, 0) for status in (RunState.RUNNING, RunState.CANCELLING))
        depths = {tag: waiting.count for tag, waiting in counts.waiting.items()}
        self._trend.sample(self._backend.clock(), in_flight, counts.by_status.get(RunState.PENDING, 0), depths)

    def on_submitted(self, run: Run) -> None:
        self._trend.submitted(self._backend.clock())

    def on_ended(self, run: Run) -> None:
        now = self._backend.clock()
        wait = duration = None
        if run.start_time is not None and run.end_time is not None:
            # Clocks may differ by seconds (FLOW-209), so negative durations are clamped to zero.
            wait = max(0.0, run.start_time - run.submitted_at)
            duration = max(0.0, run.end_time - run.start_time)
        self._trend.ended(now, run.status, wait, duration)
        if run.is_pack:
            return  # the name is a pack's and no worker serves the tag: a flow may have the same name
        self._trend.ended_of(now, run.status, _text(run.tenant_id or ""), _text(run.flow_name), _text(run.tag))


def _text(value: object) -> str:
    """Return a value that can be encoded: a foreign record may hold any type as a name, and lone surrogates."""
    if type(value) is str and value.isascii():  # the common case
        return value
    return str(value).encode("utf-8", "replace").decode()
