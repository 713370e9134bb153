"""Takes the lines of programs from a worker, and stores them under its attempts (LOG-30)."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING
from uuid import UUID

from pyoco_server.actions.authenticate import NOBODY
from pyoco_server.actions.programs.attempt import ProgramAttempt
from pyoco_server.actions.read import read_run
from pyoco_server.core.frames.codec import Frame, Type
from pyoco_server.core.frames.messages import LOG_CREDITS, LogChunk, LogCredit, LogOutcome
from pyoco_server.core.programs.faults import Code, GridRefused
from pyoco_server.core.programs.names import run_id_of
from pyoco_server.core.run_log.batch import check_size
from pyoco_server.core.run_log.counts import LogTotals
from pyoco_server.doors.frames.session import unknown_type
from pyoco_server.errors import Corrupt, PyocoError, RunNotFound, Unavailable
from pyoco_server.executors.capture.port import Captured
from pyoco_server.frames.wire import fresh
from pyoco_server.logs import get_logger

if TYPE_CHECKING:
    from pyoco_server.doors.frames.worker_session import WorkerPeer
    from pyoco_server.loops.log_sender import LogSender

__all__ = ["LogChunks"]

log = get_logger(__name__)

#: Ended attempts of one connection whose last lines are accepted.
_ENDED_MAX = 1_000
#: Larger batches are checked in a thread, so that other connections are not delayed.
_LARGE_BYTES = 16_384
#: A compressed batch of a few lines may be larger than their text by this much.
_OVERHEAD_BYTES = 1024


class LogChunks:
    """The chunks of one connection, in order. Reading frames never waits for them.

    Memory: LOG_CREDITS chunks, and what the sender holds for all connections. While that has no room, or NATS is away
    when an attempt has to be looked up, the worker keeps its lines and sends them later.
    """

    def __init__(self, peer: WorkerPeer, sender: LogSender | None) -> None:
        """`sender` is None: this worker has not named the capability, or logs are disabled."""
        self._peer, self._sender = peer, sender
        #: What the worker's record reports: this connection is its start.
        self.totals = LogTotals()
        self._waiting: deque[tuple[UUID, LogChunk]] = deque()
        self._unanswered = 0
        self._working: asyncio.Task[None] | None = None
        #: Attempts that this connection has had, by token.
        self._ended: dict[str, int] = {}

    def take(self, frame: Frame) -> None:
        """Raises GridRefused."""
        if self._sender is None:
            raise unknown_type(frame)
        if self._unanswered >= LOG_CREDITS:
            raise GridRefused(Code.BAD_CREDIT, f"at most {LOG_CREDITS} chunks may be unanswered")
        chunk = LogChunk.read(frame.payload)
        self._unanswered += 1
        self._waiting.append((frame.msg_id, chunk))
        if self._working is None or self._working.done():
            self._working = self._peer.context.tasks.spawn(self._work(self._sender))

    def ended(self, attempt: ProgramAttempt) -> None:
        """Its worker has reported the attempt, or it was put back: the last lines may be on their way."""
        self._ended[attempt.attempt_id] = attempt.run.attempt
        if len(self._ended) > _ENDED_MAX:
            del self._ended[next(iter(self._ended))]

    def lost(self, attempt: ProgramAttempt) -> None:
        """Another worker owns the run."""
        self._ended.pop(attempt.attempt_id, None)

    async def _work(self, sender: LogSender) -> None:
        while self._waiting:
            msg_id, chunk = self._waiting.popleft()
            try:
                outcome = await self._pass_on(sender, msg_id, chunk)
            except Unavailable:
                outcome = LogOutcome.LATER
            except PyocoError as error:
                self._unanswered -= 1
                await self._peer.session.refuse(error, msg_id)
                continue
            if outcome is not None:
                self._answer(msg_id, outcome)

    async def _pass_on(self, sender: LogSender, msg_id: UUID, chunk: LogChunk) -> LogOutcome | None:
        """Return what became of a chunk; None: it will be stored. Raises GridRefused, Unavailable."""
        if sender.is_full:
            return LogOutcome.LATER
        run_id = run_id_of(chunk.job_id, self._peer.context.group)
        attempt = await self._attempt_of(run_id, chunk.token)
        if attempt is None:
            log.info("dropping lines of a stale attempt", run_id=run_id, worker_id=self._peer.worker_id)
            return LogOutcome.STALE
        payload = chunk.shipment.payload
        try:
            if len(payload) > _LARGE_BYTES:
                await asyncio.to_thread(check_size, payload)
            else:
                check_size(payload)
        except Corrupt as error:
            raise GridRefused(Code.BAD_OBJECT, str(error)) from error
        shipment = chunk.shipment
        if len(payload) > shipment.size + _OVERHEAD_BYTES:  # it counts for the bounds of the attempt as what it is
            shipment = replace(shipment, size=len(payload))
        self.totals.bytes += shipment.size
        self.totals.lines.update(stdout=shipment.streams[0], stderr=shipment.streams[1])
        sender.collect(Captured(run_id, attempt), shipment, partial(self._answer, msg_id, LogOutcome.STORED))
        return None

    async def _attempt_of(self, run_id: str, token: str) -> int | None:
        """Return the number of the attempt with this token. None: it is not one of this worker. Raises Unavailable."""
        held = self._peer.attempts.get(run_id)
        if held is not None and held.attempt_id == token:
            return held.run.attempt
        if token in self._ended:
            return self._ended[token]
        try:  # it is being attached, or its last lines were sent to another door first
            run = (await read_run(self._peer.context.backend, NOBODY, run_id)).run
        except RunNotFound:
            return None
        is_own = run.is_owned_by(token) and run.worker_id == self._peer.worker_id and self._peer.may_have(run)
        return run.attempt if is_own else None

    def _answer(self, msg_id: UUID, outcome: LogOutcome) -> None:
        self._unanswered -= 1
        if self._peer.is_open:
            answer = fresh(Type.LOG_CREDIT, LogCredit(outcome).to_payload(), corr_id=msg_id)
            self._peer.context.tasks.spawn(self._peer.session.wire.send(answer))
