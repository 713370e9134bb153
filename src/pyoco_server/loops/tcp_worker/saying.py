"""Sends each result to the current door in an AckJob, until it is settled (GRID-109, GRID-143, GRID-144)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from uuid import UUID

from pyoco_server.core.frames.codec import NIL, Type
from pyoco_server.core.frames.messages import ErrorMessage, RunningJob
from pyoco_server.core.programs.faults import Code, GridRefused
from pyoco_server.core.programs.names import is_exec_name
from pyoco_server.frames.tasks import TaskSet
from pyoco_server.frames.wire import WireClosed, fresh
from pyoco_server.logs import get_logger
from pyoco_server.loops.tcp_worker.assigned_jobs import Origin
from pyoco_server.loops.tcp_worker.finished import Damaged, FinishedJob
from pyoco_server.loops.tcp_worker.packing import ARCHIVE, PackedResult, pack
from pyoco_server.loops.tcp_worker.session import DoorRefused, DoorSession, Key
from pyoco_server.loops.tcp_worker.spool import Spool, SpooledResult
from pyoco_server.loops.tcp_worker.uploads import put_object

__all__ = ["AGAIN_SECONDS", "UNSETTLED_MAX", "Saying"]

log = get_logger(__name__)

#: GRID-109: a result is sent again if it is not settled within this time.
AGAIN_SECONDS = 30.0
#: Limit of results sent and not settled. A door skips reports when it is processing more of one connection (64).
UNSETTLED_MAX = 48
#: Larger results are sent in separate tasks; results up to the second size are packed without a thread.
_LARGE_BYTES = 1024 * 1024
_SMALL_BYTES = 32 * 1024
#: Delay before an upload that a door does not have is sent again.
_MISSING_SECONDS = 1.0
_STOP_SECONDS = 10.0


class Saying:
    """Sends results. What is not delivered stays in the spool and is sent again: nothing here raises."""

    def __init__(self, spool: Spool, worker_id: str, bucket: str, clock: Callable[[], float]) -> None:
        self._spool, self._worker_id, self._bucket, self._clock = spool, worker_id, bucket, clock
        #: Results whose uploads a door has stored, with the archive's name in its store. Every door finds them there.
        self._uploaded: dict[Key, str | None] = {}
        self._tasks = TaskSet()

    async def say(
        self, session: DoorSession, kept: SpooledResult, finished: FinishedJob, origin: Origin | None
    ) -> None:
        """Send one result, its uploads first. Returns immediately if it is being sent already."""
        if _begin(session, kept):
            await self._carry(session, kept, finished, origin)

    async def _carry(
        self, session: DoorSession, kept: SpooledResult, finished: FinishedJob, origin: Origin | None
    ) -> None:
        key = (kept.job_id, kept.token)
        session.said[key] = self._clock()
        try:
            await self._send(session, kept, finished, origin.corr_id(session) if origin is not None else NIL)
            session.said[key] = self._clock()
            session.unlisted.add(key)
        except WireClosed:
            pass
        except TimeoutError:
            log.warning("result not delivered; sending it again", job_id=kept.job_id, reason="silence")
            session.unlisted.add(key)
        except DoorRefused as refused:
            log.warning("result not delivered; sending it again", job_id=kept.job_id, reason=str(refused))
            self.refused(session, refused.error, kept)
        except GridRefused as error:  # an invalid answer
            log.error("invalid frame from a door", job_id=kept.job_id, reason=str(error))
            await session.wire.close("bad_frame")
        except (Damaged, OSError) as error:
            log.error("cannot read a result from disk; its job is retried", job_id=kept.job_id, error=error)
            await self._spool.set_aside(kept)
            self.settled(session, key)
        finally:
            session.saying.discard(key)

    async def _send(self, session: DoorSession, kept: SpooledResult, finished: FinishedJob, corr_id: UUID) -> None:
        """Raises WireClosed, Refused, TimeoutError, GridRefused, Damaged, OSError."""
        packed = await self._packed(finished)
        key = (finished.job_id, finished.token)
        if packed.uploads and key not in self._uploaded:
            name = None
            async with session.uploads:
                for each in packed.uploads:
                    stored = await put_object(session, key, each, corr_id, lambda: not kept.is_settled)
                    name = stored if each.name == ARCHIVE else name
            self._uploaded[key] = name
        packed = packed.with_object(self._uploaded.get(key))
        subject = f"job.ack.{finished.exec_name}" if is_exec_name(finished.exec_name) else ""
        await session.wire.send(fresh(Type.ACK_JOB, packed.result.to_payload(), corr_id=corr_id, subject=subject))

    async def _packed(self, finished: FinishedJob) -> PackedResult:
        report = finished.report
        if finished.archive is None and len(report.stdout) + len(report.stderr) <= _SMALL_BYTES:
            return pack(finished, self._worker_id, self._bucket)
        return await asyncio.to_thread(pack, finished, self._worker_id, self._bucket)

    async def say_all(self, session: DoorSession) -> None:
        """Send the due results after a HelloAck, oldest first.

        Sends as many as a door accepts at once; archives go in separate tasks.
        """
        session.backlog.extend(self._spool.due())
        while session.is_open and session.backlog and self.has_room(session):
            kept = session.backlog.popleft()
            if kept.size > _LARGE_BYTES:
                self._send_in_task(session, kept)
            elif _begin(session, kept):
                await self._carry_kept(session, kept)

    def has_room(self, session: DoorSession) -> bool:
        """Return False if the door has enough results to settle."""
        return len((session.said.keys() | session.saying) - session.refused) < UNSETTLED_MAX

    def settled(self, session: DoorSession, key: Key) -> None:
        """Note that a result is settled, and send others of the backlog."""
        session.said.pop(key, None)
        session.unlisted.discard(key)
        session.refused.discard(key)
        self._uploaded.pop(key, None)
        while session.backlog and self.has_room(session):
            self._send_in_task(session, session.backlog.popleft())

    def say_again(self, session: DoorSession) -> None:
        """Send again what was sent half a minute ago and is not settled. O(said)."""
        since = self._clock() - AGAIN_SECONDS
        for key in [key for key, said_at in session.said.items() if said_at <= since]:
            kept = self._spool.get(key[0])
            if kept is None or kept.token != key[1] or kept.is_settled:
                self.settled(session, key)  # by another door, or a newer attempt
            else:
                self._send_in_task(session, kept)

    def large(self, session: DoorSession) -> list[RunningJob]:
        """Return the results sent in parts, for the heartbeat.

        Until the report arrives, a door has no other sign of life. A permanently refused result is not listed: its
        attempt then times out, and the job is retried.
        """
        return [
            RunningJob(kept.job_id, kept.token)
            for kept in self._spool.due()
            if kept.size > _LARGE_BYTES and (kept.job_id, kept.token) not in session.unlisted
        ]

    def refused(self, session: DoorSession, error: ErrorMessage, kept: SpooledResult | None = None) -> None:
        """Schedule another try for a refused result: after half a minute, or the delay that the door requests."""
        if kept is None and error.job_id is not None:
            kept = self._spool.get(error.job_id)
        if kept is None or kept.is_settled:
            return
        key = (kept.job_id, kept.token)
        wait = (error.retry_after_ms or 0) / 1_000 if error.retry else AGAIN_SECONDS
        if error.code == Code.BAD_OBJECT and self._uploaded.pop(key, None):
            wait = _MISSING_SECONDS
        if wait >= AGAIN_SECONDS:
            session.unlisted.add(key)
            session.refused.add(key)
        session.said[key] = self._clock() - AGAIN_SECONDS + min(wait, AGAIN_SECONDS)

    async def stop(self) -> None:
        """To be called after the last connection is closed."""
        await self._tasks.settle(_STOP_SECONDS)

    def _send_in_task(self, session: DoorSession, kept: SpooledResult) -> None:
        if _begin(session, kept):
            self._tasks.spawn(self._carry_kept(session, kept))

    async def _carry_kept(self, session: DoorSession, kept: SpooledResult) -> None:
        async with session.beside:
            finished = await self._spool.read(kept) if session.is_open else None
            if finished is None or kept.is_settled:
                session.saying.discard((kept.job_id, kept.token))
            else:
                await self._carry(session, kept, finished, None)


def _begin(session: DoorSession, kept: SpooledResult) -> bool:
    """Returns False if the result is being sent already."""
    key = (kept.job_id, kept.token)
    if key in session.saying:
        return False
    session.saying.add(key)
    return True
