"""AckJobs: each result to the door the worker is at, until a door settles it (GRID-109, GRID-143, GRID-144)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from uuid import UUID

from pyoco_server.core.frames.codec import NIL, Type
from pyoco_server.core.frames.messages import ErrorMessage, RunningJob
from pyoco_server.core.programs.faults import Code, GridRefused
from pyoco_server.core.programs.names import is_exec_name
from pyoco_server.frames.tasks import Tasks
from pyoco_server.frames.wire import WireClosed, fresh
from pyoco_server.logs import get_logger
from pyoco_server.loops.tcp_worker.assigned_jobs import Origin
from pyoco_server.loops.tcp_worker.finished import Damaged, Finished
from pyoco_server.loops.tcp_worker.packing import ARCHIVE, Packed, pack
from pyoco_server.loops.tcp_worker.session import Key, Refused, Session
from pyoco_server.loops.tcp_worker.spool import Kept, Spool
from pyoco_server.loops.tcp_worker.uploads import put_object

__all__ = ["AGAIN_SECONDS", "UNSETTLED_MAX", "Saying"]

log = get_logger(__name__)

#: GRID-109: without a Settled for this long, a result is said again.
AGAIN_SECONDS = 30.0
#: Results that were said and are not settled. A door has so many in work at once and passes over the rest.
UNSETTLED_MAX = 48
#: Above this a result is sent beside the others; up to that one it is packed at once, and not in a thread.
_LARGE_BYTES = 1024 * 1024
_SMALL_BYTES = 32 * 1024
#: A door that has not what it was sent gets it again after this time.
_MISSING_SECONDS = 1.0
_STOP_SECONDS = 10.0


class Saying:
    """Says results. What does not get through stays in the spool and is said again: nothing here raises."""

    def __init__(self, spool: Spool, worker_id: str, bucket: str, clock: Callable[[], float]) -> None:
        self._spool, self._worker_id, self._bucket, self._clock = spool, worker_id, bucket, clock
        #: Results whose uploads a door has stored; with what its store calls the archive. Any door finds them there.
        self._uploaded: dict[Key, str | None] = {}
        self._tasks = Tasks()

    async def say(self, session: Session, kept: Kept, finished: Finished, origin: Origin | None) -> None:
        """One result, its uploads before it. Returns at once when it is on its way already."""
        if _begin(session, kept):
            await self._carry(session, kept, finished, origin)

    async def _carry(self, session: Session, kept: Kept, finished: Finished, origin: Origin | None) -> None:
        key = (kept.job_id, kept.token)
        session.said[key] = self._clock()
        try:
            await self._say(session, kept, finished, origin.corr_id(session) if origin is not None else NIL)
            session.said[key] = self._clock()
            session.unlisted.add(key)
        except WireClosed:
            pass
        except TimeoutError:
            log.warning("a result did not get through; it is sent again", job_id=kept.job_id, reason="silence")
            session.unlisted.add(key)
        except Refused as refused:
            log.warning("a result did not get through; it is sent again", job_id=kept.job_id, reason=str(refused))
            self.refused(session, refused.error, kept)
        except GridRefused as error:  # an answer that cannot be
            log.error("a door said something that cannot be", job_id=kept.job_id, reason=str(error))
            await session.wire.close("bad_frame")
        except (Damaged, OSError) as error:
            log.error("a result cannot be read from disk; its job is tried again", job_id=kept.job_id, error=error)
            await self._spool.set_aside(kept)
            self.settled(session, key)
        finally:
            session.saying.discard(key)

    async def _say(self, session: Session, kept: Kept, finished: Finished, corr_id: UUID) -> None:
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

    async def _packed(self, finished: Finished) -> Packed:
        report = finished.report
        if finished.archive is None and len(report.stdout) + len(report.stderr) <= _SMALL_BYTES:
            return pack(finished, self._worker_id, self._bucket)
        return await asyncio.to_thread(pack, finished, self._worker_id, self._bucket)

    async def say_all(self, session: Session) -> None:
        """After HelloAck: what is due, oldest first, as far as a door takes it at once; archives go beside."""
        session.backlog.extend(self._spool.due())
        while session.is_open and session.backlog and self.has_room(session):
            kept = session.backlog.popleft()
            if kept.size > _LARGE_BYTES:
                self._beside(session, kept)
            elif _begin(session, kept):
                await self._carry_kept(session, kept)

    def has_room(self, session: Session) -> bool:
        """False: the door has enough to settle."""
        return len((session.said.keys() | session.saying) - session.refused) < UNSETTLED_MAX

    def settled(self, session: Session, key: Key) -> None:
        """A door has it. There is room for another of the backlog."""
        session.said.pop(key, None)
        session.unlisted.discard(key)
        session.refused.discard(key)
        self._uploaded.pop(key, None)
        while session.backlog and self.has_room(session):
            self._beside(session, session.backlog.popleft())

    def say_again(self, session: Session) -> None:
        """What was said half a minute ago and is not settled. O(said)."""
        since = self._clock() - AGAIN_SECONDS
        for key in [key for key, said_at in session.said.items() if said_at <= since]:
            kept = self._spool.get(key[0])
            if kept is None or kept.token != key[1] or kept.is_settled:
                self.settled(session, key)  # by another door, or a newer attempt
            else:
                self._beside(session, kept)

    def large(self, session: Session) -> list[RunningJob]:
        """Results that go in parts: until its report is there, a door has nothing but the list of a heartbeat. One that
        it refused for good is not listed: then its attempt times out, and the job is tried again."""
        return [
            RunningJob(kept.job_id, kept.token)
            for kept in self._spool.due()
            if kept.size > _LARGE_BYTES and (kept.job_id, kept.token) not in session.unlisted
        ]

    def refused(self, session: Session, error: ErrorMessage, kept: Kept | None = None) -> None:
        """The door could not take a result: in half a minute, then, or as soon as it says."""
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
        """After the last connection is closed."""
        await self._tasks.settle(_STOP_SECONDS)

    def _beside(self, session: Session, kept: Kept) -> None:
        if _begin(session, kept):
            self._tasks.spawn(self._carry_kept(session, kept))

    async def _carry_kept(self, session: Session, kept: Kept) -> None:
        async with session.beside:
            finished = await self._spool.read(kept) if session.is_open else None
            if finished is None or kept.is_settled:
                session.saying.discard((kept.job_id, kept.token))
            else:
                await self._carry(session, kept, finished, None)


def _begin(session: Session, kept: Kept) -> bool:
    """False: somebody is saying it."""
    key = (kept.job_id, kept.token)
    if key in session.saying:
        return False
    session.saying.add(key)
    return True
