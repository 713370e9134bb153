"""One ticker for the worker: heartbeats, credits that wait, results that are said again, and the end of patience."""

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
from pyoco_server.loops.tcp_worker.session import Session

__all__ = ["Pulse"]

log = get_logger(__name__)


class Body(Protocol):
    """Whose pulse it is."""

    def heartbeat(self) -> bytes: ...

    async def look_at_programs(self) -> bool:
        """Whether the next heartbeat announces other programs than before."""

    def give_credit(self, session: Session) -> None:
        """As much as is due now."""


class Pulse(Loop):
    """Never waits for a door: what it cannot write now it writes at the next turn."""

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
        self._beaten_at = self._said_at = self._swept_at = clock()
        self._alone_since: float | None = None

    async def beat(self, session: Session) -> None:
        """GRID-106, GRID-110: the first thing a door hears after its HelloAck. Raises WireClosed."""
        self._beaten_at = self._clock()
        await session.wire.send(fresh(Type.HEARTBEAT, self._body.heartbeat()))

    async def turn(self) -> None:
        now, session = self._clock(), self._link.current
        if session is None:
            self._be_alone(now)
        else:
            self._alone_since = None
            self._body.give_credit(session)
            self._beat_if_due(session, now, has_news=await self._body.look_at_programs())
            if now - self._said_at >= LOOK_SECONDS:
                self._said_at = now
                self._saying.say_again(session)
        if now - self._swept_at >= SWEEP_SECONDS:
            self._swept_at = now
            await self._jobs.sweep()

    def _beat_if_due(self, session: Session, now: float, *, has_news: bool) -> None:
        """With jobs in hand every 5 s, and at once when its programs have changed; otherwise the wire says so after its
        own silence."""
        is_late = now - self._beaten_at >= self._config.worker_heartbeat_sec
        if not has_news and not (is_late and (self._jobs.unfinished or session.saying)):
            return
        if session.wire.send_soon(fresh(Type.HEARTBEAT, self._body.heartbeat())):
            self._beaten_at = now

    def _be_alone(self, now: float) -> None:
        """GRID-111"""
        if self._alone_since is None:
            self._alone_since = now
        if self._jobs.listed() and now - self._alone_since >= self._config.worker_orphan_sec:
            log.error("no door for too long; running programs are ended", seconds=round(now - self._alone_since))
            self._jobs.abandon()
