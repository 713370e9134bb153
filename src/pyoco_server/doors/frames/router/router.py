"""A router: many connections, and no state that must survive it (GRID-137)."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from pyoco_server.actions.programs.measure import ProgramFigures
from pyoco_server.client.frames.link import LinkSettings
from pyoco_server.core.frames.codec import Frame
from pyoco_server.core.frames.messages import HelloClient, HelloWorker
from pyoco_server.core.programs.faults import Code, GridRefused
from pyoco_server.doors.frames.budget import ByteBudget
from pyoco_server.doors.frames.faults import Leave
from pyoco_server.doors.frames.guard import Guard, Visitor
from pyoco_server.doors.frames.redirects import Redirects
from pyoco_server.doors.frames.router.peer import RouterPeer
from pyoco_server.doors.frames.router.plan import RouterPlan
from pyoco_server.doors.frames.session import Peer, Session
from pyoco_server.doors.frames.settings import DoorOptions
from pyoco_server.errors import Unavailable
from pyoco_server.frames.tasks import TaskSet
from pyoco_server.frames.wire import Wire
from pyoco_server.logs import get_logger
from pyoco_server.loops.loop import Loop
from pyoco_server.loops.programs.meter import Gauges, ProgramMeter
from pyoco_server.ports.backend import DoorBackend
from pyoco_server.ports.door_records.port import DoorState
from pyoco_server.ports.programs import Programs
from pyoco_server.ports.routes.port import Routes

__all__ = ["Router", "RouterContext"]

log = get_logger(__name__)

#: The delay until the connections of a revoked key are closed.
_REVIEW_SECONDS = 2.0
_SETTLE_SECONDS = 5.0
_IN_WORK_BYTES_MAX = 64 * 1024 * 1024
_HELD_BYTES_MAX = 512 * 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class RouterContext:
    """The state shared by all connections of a router."""

    backend: DoorBackend
    programs: Programs
    plan: RouterPlan
    router_id: str
    #: `host:port` for clients.
    address: str
    guard: Guard
    redirects: Redirects
    state: Callable[[], DoorState]
    meter: ProgramMeter
    link_settings: LinkSettings
    tasks: TaskSet = field(default_factory=TaskSet)
    #: SubmitJobs being parsed, and jobs without a result: limits over all connections.
    in_work: ByteBudget = field(default_factory=lambda: ByteBudget(_IN_WORK_BYTES_MAX))
    held: ByteBudget = field(default_factory=lambda: ByteBudget(_HELD_BYTES_MAX))
    #: A monotonic clock.
    now: Callable[[], float] = time.monotonic

    @property
    def routes(self) -> Routes:
        return self.programs.routes

    @property
    def grace_seconds(self) -> float:
        return self.programs.config.clientx_grace_sec

    def clock(self) -> float:
        return self.backend.clock()

    def guard_of(self, name: str) -> Guard:
        """Return the guard of one group."""
        return Guard(self.backend, self.programs, name)


class Router:
    """A router.

    Call `serve` for each connection, then `drain`. Placements are in NATS; all other state ends with the process.
    """

    def __init__(
        self, backend: DoorBackend, plan: RouterPlan, options: DoorOptions, link_settings: LinkSettings
    ) -> None:
        assert backend.programs is not None, "a router deals with programs"
        programs = backend.programs
        self._is_draining = False
        self.sessions: set[Session[RouterContext]] = set()
        self.meter = ProgramMeter("router")
        # A router belongs to no group: redirected clients try the other routers that `--peers` names.
        redirects = Redirects(
            programs.doors,
            group="",
            door_id=options.door_id,
            own=options.address,
            peers=options.peers,
            is_up=lambda: False,
        )
        self._context = RouterContext(
            backend=backend,
            programs=programs,
            plan=plan,
            router_id=options.door_id,
            address=options.address,
            guard=Guard(backend, programs, *(each.name for each in plan.backends)),
            redirects=redirects,
            state=lambda: DoorState.DRAINING if self._is_draining else DoorState.SERVING,
            meter=self.meter,
            link_settings=link_settings,
        )
        self._review = _Review(self)

    @property
    def context(self) -> RouterContext:
        return self._context

    def figures(self) -> ProgramFigures:
        """Return what its metrics show."""
        return self.meter.figures(Gauges(connections=Counter(session.role for session in self.sessions)))

    async def start(self) -> None:
        await self._review.start()

    async def serve(self, wire: Wire, certificate_name: str | None = None) -> None:
        """Serve one connection to its end. Never raises."""
        session = Session(self._context, wire, _begin, certificate_name)
        self.sessions.add(session)
        try:
            await session.run()
        finally:
            self.sessions.discard(session)

    async def drain(self) -> None:
        """Redirect all clients and close. Clients submit their unfinished jobs again at another router."""
        self._is_draining = True
        for session in list(self.sessions):
            session.wire.send_soon(session.not_leader(DoorState.DRAINING))
        await asyncio.gather(*(session.leave("draining") for session in list(self.sessions)))
        await asyncio.gather(*(session.over.wait() for session in list(self.sessions)))
        await self._context.tasks.settle(_SETTLE_SECONDS)
        await self._review.stop()

    async def review_all(self) -> None:
        for session in list(self.sessions):
            if session.peer is None:
                continue
            try:
                is_welcome = await self._context.guard.still_welcome(session.peer.visitor)
            except Unavailable:  # unknown: the next review checks again
                continue
            if is_welcome:
                await session.peer.review()
            else:
                self._context.tasks.spawn(session.leave("key_revoked"))


async def _begin(
    session: Session[RouterContext], visitor: Visitor, hello: HelloClient | HelloWorker, frame: Frame
) -> Peer:
    if isinstance(hello, HelloWorker):
        raise Leave("bad_hello", GridRefused(Code.FORBIDDEN, "a router takes no workers; they go to a door"))
    return await RouterPeer.begin(session, visitor, hello, frame)


class _Review(Loop):
    def __init__(self, router: Router) -> None:
        super().__init__(every_seconds=_REVIEW_SECONDS)
        self._router = router

    async def turn(self) -> None:
        await self._router.review_all()
