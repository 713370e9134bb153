"""One delivery of a flow in a worker, from receipt to acknowledgement, as the pulse sees it."""

from __future__ import annotations

import time

from pyoco_server.actions.attempt import Standing
from pyoco_server.actions.beat import beat_run, report_overdue_cancel
from pyoco_server.actions.claim import FlowAttempt
from pyoco_server.errors import CATALOGUE
from pyoco_server.executors.port import Execution
from pyoco_server.logs import get_logger
from pyoco_server.loops.pulse import Live, Rhythm
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.queue.port import Delivery

__all__ = ["FlowLive"]

log = get_logger(__name__)


class FlowLive(Live):
    """It is held from its receipt on, because imports may be slow (FLOW-314); heartbeats begin with the execution."""

    def __init__(self, backend: Backend, delivery: Delivery, hold_seconds: float) -> None:
        super().__init__(Rhythm(beat=backend.config.run_heartbeat_interval_sec, hold=hold_seconds))
        self._backend, self.delivery = backend, delivery
        self.attempt: FlowAttempt | None = None
        self.execution: Execution | None = None
        self._cancel_seen_at: float | None = None
        self._is_overdue = False

    def execute(self, attempt: FlowAttempt, execution: Execution) -> None:
        self.attempt, self.execution = attempt, execution
        self.beaten_at = time.monotonic()  # the claim was the first heartbeat

    @property
    def run_id(self) -> str | None:
        return None if self.attempt is None else self.attempt.run.run_id

    @property
    def is_executing(self) -> bool:
        return self.execution is not None

    async def hold(self) -> None:
        await self.delivery.hold()

    async def beat(self) -> Standing:
        attempt, execution = self.attempt, self.execution
        if attempt is None or execution is None:  # it has ended meanwhile
            return Standing.OURS
        return await beat_run(self._backend, attempt, await execution.progress())

    async def on_cancel(self) -> None:
        """Request cancellation at every heartbeat (FLOW-180); after the grace period, kill the execution if
        possible."""
        attempt, execution = self.attempt, self.execution
        if attempt is None or execution is None:
            return
        given = attempt.run.cancel_grace_seconds
        now, grace = time.monotonic(), self._backend.config.cancel_grace_period_sec if given is None else given
        if self._cancel_seen_at is None:
            self._cancel_seen_at = now
            log.info("stopping a run on request", run_id=self.run_id)
        execution.ask_cancel()
        if self._is_overdue or now - self._cancel_seen_at < grace:
            return
        self._is_overdue = True  # FLOW-185: once per run
        text = CATALOGUE[21]
        log.warning(text.en, run_id=self.run_id, err_id=text.err_id, msg_id=text.msg_id, grace_seconds=grace)
        if not execution.kill():
            await report_overdue_cancel(self._backend, attempt, grace)

    def on_fenced(self) -> None:
        """FLOW-311: stop the work, write nothing more, acknowledge nothing."""
        log.warning("the run has a new owner; stopping its execution", run_id=self.run_id)
        if self.execution is not None:
            self.execution.ask_cancel()
            self.execution.kill()
