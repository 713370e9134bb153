"""Counts run events while this process watches the feed: durations, waiting times, redeliveries."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from pyoco_server.actions.measure import Lag
from pyoco_server.core.run import Run
from pyoco_server.core.run_log.counts import LogTotals
from pyoco_server.core.states import TERMINAL, RunState
from pyoco_server.ports.runs.port import Changes, Stored

__all__ = ["OTHER_FLOWS", "EndCounts", "Histogram", "Listener", "Tally"]

#: Number of flows counted separately. Users choose the names: without a limit each new one would cost memory forever.
_FLOWS_MAX = 200
#: All flows beyond the limit are counted under this name.
OTHER_FLOWS = "(other)"
#: Label values are truncated to this length; a foreign record may hold a name of any length.
_NAME_LENGTH_MAX = 512
#: Number of runs on a second or later attempt that are remembered. The oldest is forgotten first.
_REPEATED_MAX = 10_000
#: Number of flows and kinds of failures counted separately: tasks choose the names of exceptions.
_RETRIES_MAX = 1_000
#: Number of runs whose submission was reported last: about 1 MB. If the feed lags by more submissions than this, some
#: are missed.
_SUBMITTED_MAX = 5_000
#: The status of a run in its first record, and in no later one.
_FIRST = RunState.PENDING


class Histogram:
    """A histogram in seconds: the number of values per bucket, and their sum."""

    #: Upper bounds, from a flow that does nothing to one that takes an afternoon; the last bucket is unbounded.
    BOUNDS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 7200.0)

    def __init__(self) -> None:
        self.counts = [0] * (len(self.BOUNDS) + 1)
        self.total = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(self.BOUNDS, seconds)] += 1
        self.total += seconds


@dataclass
class EndCounts:
    """The runs of one flow with the same terminal status."""

    #: From the submission to the start of the last attempt.
    wait: Histogram = field(default_factory=Histogram)
    #: From the start of the last attempt to the end.
    duration: Histogram = field(default_factory=Histogram)


class Listener(Protocol):
    """Called twice for each run: when it is submitted, and when it has ended. Must be fast and must not raise."""

    def on_submitted(self, run: Run) -> None: ...

    def on_ended(self, run: Run) -> None: ...


class Tally:
    """Listens to the feed. Events from before this process started watching are not counted.

    Every run ends once in the feed, so each is counted once; repeated changes, after the index was reopened, are
    recognized by their revision. An outage loses nothing: the feed continues where it stopped.

    What it cannot do: count a run that ended while this gateway process was not running. Every gateway counts every
    run: the numbers of several gateways are views of the same runs and must not be summed.
    """

    def __init__(self, clock: Callable[[], float] = time.time, listener: Listener | None = None) -> None:
        self._clock, self._listener = clock, listener
        #: By flow and terminal status.
        self.ends: dict[tuple[str, str], EndCounts] = {}
        #: Attempts beyond a run's first.
        self.redeliveries = 0
        #: Failed tries after which another one was allowed, by flow and kind.
        self.retries: dict[tuple[str, str], int] = {}
        #: Number of those seen of a run that has not ended.
        self._retried: dict[str, int] = {}
        self.lag = Lag()
        #: The sum of what workers have reported.
        self.logs = LogTotals()
        self._flows: set[str] = set()
        #: The latest attempt seen, of runs on their second or a later one.
        self._attempts: dict[str, int] = {}
        self._epoch: str | None = None
        self._is_live = False
        self._live_since = 0.0
        #: Everything up to this revision has been counted or predates the tally.
        self._revision = 0
        #: Runs whose submission has been reported, with its time. Every submission up to `_submitted_until` has been
        #: reported, or predates the tally.
        self._submitted: dict[str, float] = {}
        self._submitted_until = 0.0

    def on_changes(self, changes: Changes) -> None:
        """Listener of the feeder: O(changes), with almost no cost for a run that has not ended. Never raises."""
        if changes.epoch != self._epoch:
            self._epoch, self._is_live, self._revision = changes.epoch, False, 0
            self._attempts.clear()
            self._retried.clear()
        items, counted = changes.items, self._revision
        if items:
            self._revision = max(counted, items[-1].revision)
        if not self._is_live:
            if changes.caught_up:
                self._is_live = True
                self._live_since = self._submitted_until = self._clock()
                self._submitted.clear()
            return
        for item in items:
            if item.revision <= counted:
                continue
            if type(item) is not Stored:
                self._attempts.pop(item.run_id, None)  # type: ignore[union-attr]  # faster than isinstance
                self._retried.pop(item.run_id, None)  # type: ignore[union-attr]
                continue
            run = item.run
            if run.attempt not in (1, 0) or run.tries:
                self._on_again(run)
            if self._listener is not None and (run.submitted_at > self._submitted_until or run.status is _FIRST):
                self._on_submission(run, self._listener)
            if run.status in TERMINAL:
                self._on_end(run)
                if self._listener is not None:
                    self._listener.on_ended(run)

    def _on_again(self, run: Run) -> None:
        self._on_repeat(run)
        if run.tries:
            self._on_tries(run)

    def _on_repeat(self, run: Run) -> None:
        if type(run.attempt) is not int or run.attempt < 2 or type(run.run_id) is not str:
            return  # a foreign record
        before = self._attempts.pop(run.run_id, None)
        if before is None:
            # First seen here: this attempt may have begun before we watched, and so may earlier ones.
            self.redeliveries += run.start_time is not None and run.start_time >= self._live_since
        else:
            self.redeliveries += max(0, run.attempt - before)
        if run.status not in TERMINAL:
            self._attempts[run.run_id] = run.attempt
            if len(self._attempts) > _REPEATED_MAX:
                del self._attempts[next(iter(self._attempts))]

    def _on_tries(self, run: Run) -> None:
        """Count the retries of a run that are new. The last failed try of a failed run was followed by no other."""
        if type(run.run_id) is not str:
            return  # a foreign record
        retried = run.tries[: len(run.tries) - (run.status is RunState.FAILED)]
        before = self._retried.pop(run.run_id, None)
        for entry in retried[before or 0 :]:
            ended_at = entry.get("ended_at")
            if before is not None or (isinstance(ended_at, int | float) and ended_at >= self._live_since):
                self._count_retry(run, str(entry.get("kind")))
        if run.status not in TERMINAL:
            self._retried[run.run_id] = len(retried)
            if len(self._retried) > _REPEATED_MAX:
                del self._retried[next(iter(self._retried))]

    def _count_retry(self, run: Run, kind: str) -> None:
        key = self._flow_of(run), kind[:_NAME_LENGTH_MAX].encode("utf-8", "replace").decode()
        if key not in self.retries and len(self.retries) >= _RETRIES_MAX:
            key = OTHER_FLOWS, OTHER_FLOWS
        self.retries[key] = self.retries.get(key, 0) + 1

    def _on_submission(self, run: Run, listener: Listener) -> None:
        """Report a submission once: from the run's first record, or from a later one, since the store keeps only the
        latest record and a fast worker may change a run before the feed has delivered the first."""
        if type(run.run_id) is not str or run.run_id in self._submitted:
            return
        self._submitted[run.run_id] = run.submitted_at
        if len(self._submitted) > _SUBMITTED_MAX:
            oldest = next(iter(self._submitted))
            # Not beyond the current time: one record with a future timestamp must not hide later submissions.
            until = min(self._submitted.pop(oldest), self._clock())
            self._submitted_until = max(self._submitted_until, until)
        listener.on_submitted(run)

    def _on_end(self, run: Run) -> None:
        if run.start_time is None or run.end_time is None:
            return  # it never began
        ends = self._ends_of(run)
        # Clocks of gateway and workers may differ by seconds (FLOW-209), so negative durations are clamped to zero.
        ends.wait.observe(max(0.0, run.start_time - run.submitted_at))
        ends.duration.observe(max(0.0, run.end_time - run.start_time))

    def _flow_of(self, run: Run) -> str:
        """Return the name under which the runs of a flow are counted."""
        flow = run.flow_name if type(run.flow_name) is str else str(run.flow_name)
        if run.is_pack:  # a flow may have the same name
            flow = f"pack:{flow}"
        if flow not in self._flows:
            # Lone surrogates, which a foreign JSON record may hold, cannot be encoded.
            flow = flow[:_NAME_LENGTH_MAX].encode("utf-8", "replace").decode()
            if flow not in self._flows:
                if len(self._flows) < _FLOWS_MAX:
                    self._flows.add(flow)
                else:
                    flow = OTHER_FLOWS
        return flow

    def _ends_of(self, run: Run) -> EndCounts:
        key = self._flow_of(run), run.status.value
        found = self.ends.get(key)
        if found is None:
            found = self.ends[key] = EndCounts()
        return found
