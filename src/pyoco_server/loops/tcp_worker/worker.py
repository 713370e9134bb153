"""The worker over TCP: a link to a door, jobs whose programs run, and a spool of results (section 15)."""

from __future__ import annotations

import asyncio
import contextlib
import platform
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

from pyoco_server.config.grid import GridConfig
from pyoco_server.core.frames.codec import Frame
from pyoco_server.core.frames.messages import LOGS, PROGRAMS_MAX, Heartbeat, HelloWorker, RunningJob
from pyoco_server.core.programs.dedup import DedupCache
from pyoco_server.core.programs.job import InputFile
from pyoco_server.errors import UsageError
from pyoco_server.executors.program.port import ProgramExecutor
from pyoco_server.frames.addresses import Address, Addresses
from pyoco_server.frames.wire import Timers
from pyoco_server.logs import get_logger
from pyoco_server.loops.programs.cpu import HeldBack
from pyoco_server.loops.programs.shelf import ProgramShelf, allow_of
from pyoco_server.loops.tcp_worker.assigned_jobs import AssignedJobs, Origin
from pyoco_server.loops.tcp_worker.credits import CreditAccount
from pyoco_server.loops.tcp_worker.finished import FinishedJob
from pyoco_server.loops.tcp_worker.hearing import Hearing
from pyoco_server.loops.tcp_worker.identity import WorkerIdentity
from pyoco_server.loops.tcp_worker.inputs import fetch
from pyoco_server.loops.tcp_worker.link import Link
from pyoco_server.loops.tcp_worker.log_chunks import DoorLines
from pyoco_server.loops.tcp_worker.pulse import DoorPulse
from pyoco_server.loops.tcp_worker.saying import Saying
from pyoco_server.loops.tcp_worker.session import DoorSession
from pyoco_server.loops.tcp_worker.spool import Spool, SpooledResult

__all__ = ["CpuAndClock", "TcpWorker", "WorkerOptions"]

log = get_logger(__name__)

_LOOK_SECONDS = 0.5


@dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    """The options of the command line that are not settings."""

    patterns: tuple[str, ...]
    #: API key.
    key: str | None = field(default=None, repr=False)
    tls: ssl.SSLContext | None = None


@dataclass(frozen=True, kw_only=True)
class CpuAndClock:
    """Access to the clock and the CPU load of the machine."""

    #: The busy share of all its CPUs within the last second, 0 to 1.
    cpu: Callable[[], float]
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep


class TcpWorker:
    """The worker.

    `start` returns once it searches for a door, `drain` lets running programs finish, `stop` ends the rest.

    Limitation: it cannot withdraw the credits that a door has. During a drain a job may still arrive, and is run.
    """

    def __init__(
        self,
        executor: ProgramExecutor,
        identity: WorkerIdentity,
        config: GridConfig,
        options: WorkerOptions,
        addresses: Addresses,
        machine: CpuAndClock,
        lines: DoorLines | None = None,
    ) -> None:
        """`lines`: the sink of what its programs print. None: that is not captured."""
        self._executor, self._identity, self._config, self._options = executor, identity, config, options
        self._cpu, self._clock = machine.cpu, machine.clock
        clock = machine.clock
        self.spool = Spool(identity.spool, config.worker_spool_max_bytes)
        seen: DedupCache[None] = DedupCache(config.worker_dedup_ttl_sec, clock)
        self.jobs = AssignedJobs(self, executor, self.spool, seen, config.worker_max_par)
        self.link = Link(self, addresses, Timers.of(config), options.tls, machine.sleep)
        self.saying = Saying(self.spool, identity.worker_id, config.exec_artifacts_bucket, clock)
        self._capabilities = () if lines is None else (LOGS,)
        if lines is not None:
            lines.bind(lambda: self.link.current, self.jobs.key_of)
        self._hearing = Hearing(self.jobs, self.link, self.saying)
        self._shelf = ProgramShelf(executor, clock)
        #: The programs announced last.
        self._last_announced: tuple[str, ...] | None = None
        self._pulse = DoorPulse(self, self.jobs, self.link, self.saying, config, clock)
        self._linking: asyncio.Task[None] | None = None
        self._is_draining = self._is_stopped = False
        self._had_room = True
        self._freed = asyncio.Event()

    @property
    def worker_id(self) -> str:
        return self._identity.worker_id

    async def start(self) -> None:
        """Start the worker. The caller has started the executor; `stop` stops it."""
        left = await self.spool.load()
        self.jobs.remember(left)
        if left:
            log.info("sending results of an earlier worker first", results=len(left), worker_id=self.worker_id)
        await self._shelf.look()
        self._linking = asyncio.create_task(self.link.run(), name="link to a door")
        await self._pulse.start()

    async def first_door(self, seconds: float | None = None) -> Address:
        """Wait for a door. Raises UsageError if one refuses this worker permanently, or none was found in time."""
        assert self._linking is not None, "start first"
        finding = asyncio.ensure_future(self.link.session())
        await asyncio.wait({finding, self._linking}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if finding.done():
            return finding.result().address
        finding.cancel()
        if self._linking.done():
            self._linking.result()  # raises
        raise UsageError(f"no door could be reached within {seconds:g} seconds")

    async def until_unwelcome(self) -> None:
        """Never returns; raises the error that ended the link."""
        assert self._linking is not None, "start first"
        await asyncio.shield(self._linking)

    async def drain(self, seconds: float) -> None:
        """Stop granting credits, and let programs finish and results be settled within that time (GRID-113)."""
        self._is_draining = True
        deadline = self._clock() + seconds
        while self.jobs.unfinished or (self.link.current is not None and self.spool.due()):
            left = deadline - self._clock()
            if left <= 0:
                return
            self._freed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(left, _LOOK_SECONDS)):  # the loss of a door sets no event
                    await self._freed.wait()

    async def stop(self) -> None:
        """Kill running programs without reporting them: the door puts their jobs back. Idempotent."""
        if self._is_stopped:
            return
        self._is_draining = self._is_stopped = True
        self.jobs.abandon()
        if self._linking is not None:
            self._linking.cancel()
            await asyncio.wait({self._linking})
        await self._pulse.stop()
        await self._executor.stop()
        await self.jobs.stop()
        await self._hearing.stop()
        await self.saying.stop()
        await self.spool.close()
        self._identity.release()

    # Interface for the link.

    def hello(self) -> bytes:
        self._last_announced = self._announced()
        return HelloWorker(
            worker_id=self.worker_id,
            patterns=self._options.patterns,
            max_parallel=self._config.worker_max_par,
            token=self._options.key,
            agent=f"pyoco-grid worker, Python {platform.python_version()}",
            programs=self._last_announced,
            allow=allow_of(self._config),
            capabilities=self._capabilities,
        ).to_payload()

    def _announced(self) -> tuple[str, ...] | None:
        names = self._shelf.names
        return names if len(names) <= PROGRAMS_MAX else None

    async def look_at_programs(self) -> bool:
        """Return whether to announce other programs to the door."""
        await self._shelf.look()
        return self._announced() is not None and self._announced() != self._last_announced

    def heartbeat(self) -> bytes:
        """Return a heartbeat with all jobs (GRID-106), including those whose archives wait to be sent."""
        session = self.link.current
        waiting = self.saying.large(session) if session is not None else []
        listed = {each.job_id: each for each in (*waiting, *self.jobs.listed())}
        running: tuple[RunningJob, ...] = tuple(listed.values())
        programs = self._announced()
        changed = programs if programs != self._last_announced else None
        self._last_announced = programs
        return Heartbeat(running, round(min(max(self._cpu(), 0.0), 1.0), 3), changed).to_payload()

    def account(self) -> CreditAccount:
        config = self._config
        held = HeldBack(config.worker_cpu_cap, config.worker_cpu_wait_sec, self._cpu, self._clock)
        return CreditAccount(config.worker_max_par, lambda: self.jobs.unfinished, held, self._is_shut)

    def _is_shut(self) -> bool:
        if self._had_room != self.spool.has_room:
            self._had_room = self.spool.has_room
            if self._had_room:
                log.info("room for results again", worker_id=self.worker_id)
            else:
                log.warning(
                    "results wait for a door, or the disk is full; granting no more credits",
                    worker_id=self.worker_id,
                    results=len(self.spool.due()),
                    bytes=self.spool.bytes_due,
                )
        return self._is_draining or not self._had_room

    async def attached(self, session: DoorSession) -> None:
        """Report what is running, finished and free, in this order (GRID-110)."""
        await self._pulse.beat(session)
        await self.saying.say_all(session)
        session.has_reported = True
        session.give_credit(session.credits.first())

    async def heard(self, session: DoorSession, frame: Frame) -> None:
        await self._hearing.heard(session, frame)

    # Interface for the jobs.

    async def deliver(self, kept: SpooledResult, finished: FinishedJob, origin: Origin | None) -> None:
        session = self.link.current
        if session is not None:
            await self.saying.say(session, kept, finished, origin)

    def fetch(self, job_id: str, file: InputFile) -> AsyncIterator[bytes]:
        return fetch(self.link.session, job_id, file)

    def freed(self) -> None:
        self._freed.set()
        session = self.link.current
        if session is not None:
            self.give_credit(session)

    def give_credit(self, session: DoorSession) -> None:
        """Grant the credits that are due (GRID-69, GRID-70), unless the door lags with settling results.

        A new door first gets the reports that go before any credit (GRID-110); `attached` then grants the first.
        """
        if session.has_reported and self.saying.has_room(session):
            session.give_credit(session.credits.due())
