"""Receives files that a worker uploads in parts, before its report (GRID-144)."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyoco_server.actions.authenticate import NOBODY
from pyoco_server.actions.read import read_run
from pyoco_server.core.frames.codec import Frame, Type
from pyoco_server.core.frames.messages import BinaryPart, ObjectAck, Settled
from pyoco_server.core.programs.faults import Code, GridRefused
from pyoco_server.core.programs.names import run_id_of
from pyoco_server.core.programs.record import artifact_object
from pyoco_server.doors.frames.faults import as_refusal
from pyoco_server.doors.frames.uploads import NAMES, SILENCE_SECONDS, IncomingUpload, bytes_max
from pyoco_server.errors import PyocoError, RunNotFound
from pyoco_server.frames.tasks import beating
from pyoco_server.frames.wire import fresh

if TYPE_CHECKING:
    from pyoco_server.doors.frames.worker_session import WorkerPeer

__all__ = ["Receiving"]

_Key = tuple[str, str]


@dataclass
class _Begun:
    upload: IncomingUpload
    token: str
    attempt: int


class Receiving:
    """Uploads of one connection, by run and name. A part out of sequence drops its upload, which must start again."""

    def __init__(self, peer: WorkerPeer) -> None:
        self._peer = peer
        self._begun: dict[_Key, _Begun] = {}

    async def take(self, frame: Frame) -> None:
        """Store a part. Waits until it is on disk, so that TCP slows down a faster worker. Raises PyocoError."""
        try:
            part = BinaryPart.read(frame.payload)
        except GridRefused as error:
            self._drop_all(error.job_id)
            raise
        run_id = run_id_of(part.job_id, self._peer.context.group)
        key = (run_id, part.name)
        try:
            begun = await self._followed(key, part, frame)
            await begun.upload.add(part, time.monotonic())
        except PyocoError as error:
            self._drop(key)
            raise as_refusal(error, part.job_id) from error
        self._peer.context.in_flight.seen(run_id, begun.token)
        if begun.upload.is_complete:
            self._peer.session.tasks.spawn(self._store(key, begun, part, frame))
        else:
            await self._acknowledge(part, frame, begun.upload.received)

    async def _followed(self, key: _Key, part: BinaryPart, frame: Frame) -> _Begun:
        """Return the upload that the part belongs to. A first part begins a new one and drops an earlier one."""
        begun = self._begun.get(key)
        if part.offset == 0:
            self._drop(key)
            begun = await self._begin(key, part, frame)
        if begun is None:
            raise GridRefused(Code.BAD_OBJECT, "no upload is under way that this part follows", field="Offset")
        if begun.token != part.token:
            raise GridRefused(Code.BAD_OBJECT, "the token is that of another attempt", field="Token")
        return begun

    async def _begin(self, key: _Key, part: BinaryPart, frame: Frame) -> _Begun:
        context = self._peer.context
        if part.name not in NAMES:
            raise GridRefused(Code.BAD_OBJECT, "an output is output.zip, stdout.txt or stderr.txt", field="Name")
        if part.size > bytes_max(part.name, context.programs.config.exec_output_max_bytes):
            raise GridRefused(Code.BAD_OBJECT, "the object is larger than outputs may be", field="Size")
        if part.token is None:
            raise GridRefused(Code.BAD_OBJECT, "the token of the attempt is missing", field="Token")
        attempt = await self._attempt_of(key[0], part.token)
        if attempt is None:
            # Its report would be stale, too: let the worker drop the result, so that it does not send all of this
            # again.
            settled = Settled(job_id=part.job_id, token=part.token, outcome="stale")
            await self._peer.session.wire.send(fresh(Type.SETTLED, settled.to_payload(), corr_id=frame.msg_id))
            raise GridRefused(Code.BAD_OBJECT, "the token is that of another attempt", field="Token")
        begun = self._begun[key] = _Begun(IncomingUpload(part, time.monotonic()), part.token, attempt)
        return begun

    async def _attempt_of(self, run_id: str, token: str) -> int | None:
        """Return the number of the attempt with this token.

        None: its result would not count any more. Raises Unavailable.
        """
        context = self._peer.context
        held = context.in_flight.get(run_id)
        if held is not None and held.attempt_id == token:
            return held.run.attempt
        try:
            run = (await read_run(context.backend, NOBODY, run_id)).run
        except RunNotFound:
            return None
        counts = run.is_owned_by(token) and not run.is_terminal and self._peer.may_have(run)
        return run.attempt if counts else None

    async def _store(self, key: _Key, begun: _Begun, part: BinaryPart, frame: Frame) -> None:
        """Store the object, and acknowledge it as Done only then."""
        peer = self._peer
        stored = artifact_object(key[0], begun.attempt, key[1])
        try:
            async with beating(lambda: peer.context.in_flight.seen(key[0], begun.token)):
                await begun.upload.store(peer.context.programs.artifacts, stored)
        except PyocoError as error:
            await peer.session.refuse(as_refusal(error, part.job_id), frame.msg_id)
        else:
            await self._acknowledge(part, frame, begun.upload.received, stored)
        finally:
            begun.upload.close()
            if self._begun.get(key) is begun:
                del self._begun[key]

    async def _acknowledge(self, part: BinaryPart, frame: Frame, received: int, stored: str | None = None) -> None:
        ack = ObjectAck(job_id=part.job_id, name=part.name, received=received, done=stored is not None, object=stored)
        await self._peer.session.wire.send(fresh(Type.OBJECT_ACK, ack.to_payload(), corr_id=frame.msg_id))

    def drop_silent(self) -> None:
        now = time.monotonic()
        for key, begun in list(self._begun.items()):
            upload = begun.upload
            if not upload.is_complete and not upload.is_writing and now - upload.heard_at > SILENCE_SECONDS:
                self._drop(key)

    def _drop(self, key: _Key) -> None:
        begun = self._begun.pop(key, None)
        if begun is not None and not begun.upload.is_complete:
            begun.upload.close()

    def _drop_all(self, job_id: str | None) -> None:
        """Drop all uploads of a job after an unreadable part: only its job is known, so they must start again."""
        if job_id is not None:
            run_id = run_id_of(job_id, self._peer.context.group)
            for key in [key for key in self._begun if key[0] == run_id]:
                self._drop(key)

    def close(self) -> None:
        for key in list(self._begun):
            self._drop(key)
