"""The ticker of a worker: heartbeats, delayed credits, repeated results, and the orphan timeout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from pyoco_server.config.grid import GridConfig
from pyoco_server.core.frames.codec import Type
from pyoco_server.core.programs.dedup import SWEEP_SECONDS
from pyoco_server.frames.wire import fresh
from pyoco_server.logs import get_logger
from pyoco_server.loops.loop import Loop
from pyoco_server.loops.programs.cpu import LOOK_SECONDS
from pyoco_server.loops.tcp_worker.assigned_jobs import AssignedJobs
from pyoco_server.loops.tcp_worker.link import Link
from pyoco_server.loops.tcp_worker.saying import Saying
from pyoco_server.loops.tcp_worker.session import DoorSession

__all__ = ["DoorPulse"]

log = get_logger(__name__)


class Body(Protocol):
    """The parts of the worker that the ticker uses."""

    def heartbeat(self) -> bytes: ...

    async def look_at_programs(self) -> bool:
        """Return whether the next heartbeat announces other programs than the last one."""

    def give_credit(self, session: DoorSession) -> None:
        """Grant the credits that are due now."""


class DoorPulse(Loop):
    """The ticker. Never waits for a door: what it cannot send now it sends in a later turn."""

    def __init__(
        self,
        body: Body,
        jobs: AssignedJobs,
        link: Link,
        saying: Saying,
        config: GridConfig,
        clock: Callable[[], float],
    ) -> None:
        super().__init__(every_seconds=min(LOOK_SECONDS, config.worker_heartbeat_sec / 2))
        self._body, self._jobs, self._link, self._saying = body, jobs, link, saying
        self._config, self._clock = config, clock
        self._beaten_at = self._resent_at = self._swept_at = clock()
        self._disconnected_since: float | None = None

    async def beat(self, session: DoorSession) -> None:
        """Send a heartbeat: the first frame after a HelloAck (GRID-106, GRID-110). Raises WireClosed."""
        self._beaten_at = self._clock()
        await session.wire.send(fresh(Type.HEARTBEAT, self._body.heartbeat()))

    async def turn(self) -> None:
        now, session = self._clock(), self._link.current
        if session is None:
            self._on_no_door(now)
        else:
            self._disconnected_since = None
            self._body.give_credit(session)
            self._beat_if_due(session, now, has_news=await self._body.look_at_programs())
            if now - self._resent_at >= LOOK_SECONDS:
                self._resent_at = now
                self._saying.say_again(session)
        if now - self._swept_at >= SWEEP_SECONDS:
            self._swept_at = now
            await self._jobs.sweep()

    def _beat_if_due(self, session: DoorSession, now: float, *, has_news: bool) -> None:
        """Send a heartbeat every 5 s while there are jobs, and immediately when the programs have changed.

        Otherwise the wire sends one after its own idle time.
        """
        is_late = now - self._beaten_at >= self._config.worker_heartbeat_sec
        if not has_news and not (is_late and (self._jobs.unfinished or session.saying)):
            return
        if session.wire.send_soon(fresh(Type.HEARTBEAT, self._body.heartbeat())):
            self._beaten_at = now

    def _on_no_door(self, now: float) -> None:
        """Kill running programs if there has been no door for WORKER_ORPHAN_SEC (GRID-111)."""
        if self._disconnected_since is None:
            self._disconnected_since = now
        if self._jobs.listed() and now - self._disconnected_since >= self._config.worker_orphan_sec:
            log.error("no door for too long; killing running programs", seconds=round(now - self._disconnected_since))
            self._jobs.abandon()
