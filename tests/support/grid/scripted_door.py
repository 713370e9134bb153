"""A door by hand: it says to a worker what a test wants, over a real socket, and writes down what it hears."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from uuid import UUID, uuid4

from pyoco_server.core.frames.codec import NIL, Frame, FrameError, Type
from pyoco_server.core.frames.messages import (
    LOGS,
    AssignJob,
    BinaryPart,
    CancelJob,
    CreditGrant,
    Heartbeat,
    HelloAck,
    HelloWorker,
    JobResult,
    NotLeader,
    ObjectAck,
    Settled,
)
from pyoco_server.core.programs.job import InputFile
from pyoco_server.frames.wire import Timers, Wire, WireClosed, fresh
from support.waiting import eventually

__all__ = ["ScriptedDoor", "Visitor", "an_assignment"]

_TIMERS = Timers(hello=30, frame=30, idle=60, write=30, heartbeat=15)


def an_assignment(
    exec_name: str = "calcA",
    *,
    job_id: str = "",
    token: str = "",
    attempt: int = 1,
    args: tuple[str, ...] = (),
    files: Mapping[str, bytes] | None = None,
    refs: tuple[InputFile, ...] = (),
    timeout_sec: float = 60,
) -> AssignJob:
    job_id = job_id or str(uuid4())
    return AssignJob(
        job_id=job_id,
        client_id="clientA",
        exec_name=exec_name,
        args=args,
        files=files or {},
        timeout_sec=timeout_sec,
        run_id=job_id,
        attempt=attempt,
        token=token or str(uuid4()),
        input_refs=refs,
    )


class Visitor:
    """A worker's connection. Everything that came is in `frames`, in order."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        self.wire = Wire(reader, writer, _TIMERS)
        self.frames: list[Frame] = []
        self.hello: HelloWorker | None = None
        self.is_gone = False
        #: Called with each frame, before anybody else sees it.
        self.on_frame: Callable[[Frame], None] | None = None
        self.settles_all = False
        #: What came with ObjectPut, by JobId and name; parts that are acknowledged: all, unless a test says otherwise.
        self.uploads: dict[tuple[str, str], bytearray] = {}
        self.acknowledges = True
        self.unanswered_most = 0
        self._unanswered = 0

    async def listen(self) -> None:
        try:
            while True:
                with contextlib.suppress(FrameError):
                    self._take(await self.wire.receive())
        except WireClosed as closed:
            self.is_gone = True
            await self.wire.close(closed.reason)

    def _take(self, frame: Frame) -> None:
        self.frames.append(frame)
        if self.on_frame is not None:
            self.on_frame(frame)
        if frame.type == Type.HELLO_WORKER:
            self.hello = HelloWorker.read(frame.payload)
        elif frame.type == Type.OBJECT_PUT:
            self._store(frame)
        elif frame.type == Type.ACK_JOB and self.settles_all:
            self.settle(frame)

    def _store(self, frame: Frame) -> None:
        part = BinaryPart.read(frame.payload)
        data = self.uploads.setdefault((part.job_id, part.name), bytearray())
        self._unanswered += 1
        self.unanswered_most = max(self.unanswered_most, self._unanswered)
        if part.offset == 0:
            data.clear()
        assert part.offset == len(data)
        data += part.data
        if part.last:
            assert hashlib.sha256(data).hexdigest() == part.sha256
        if self.acknowledges:
            self.acknowledge(frame)

    def acknowledge(self, frame: Frame) -> None:
        part = BinaryPart.read(frame.payload)
        self._unanswered -= 1
        done = part.last
        received = part.offset + len(part.data)
        name = f"{part.job_id}/a1/{part.name}" if done else None
        ack = ObjectAck(job_id=part.job_id, name=part.name, received=received, done=done, object=name)
        self.say(Type.OBJECT_ACK, ack.to_payload(), corr_id=frame.msg_id)

    # What it says.

    def say(self, kind: Type, payload: bytes = b"", *, corr_id: UUID = NIL, subject: str = "") -> Frame:
        frame = fresh(kind, payload, corr_id=corr_id, subject=subject)
        assert self.wire.send_soon(frame)
        return frame

    def welcome(self, *, doors: tuple[str, ...] = (), warnings: tuple[str, ...] = (), log_credits: int = 0) -> None:
        ack = HelloAck(
            door_id="d1",
            group="default",
            session=str(uuid4()),
            doors=doors,
            warnings=warnings,
            capabilities=(LOGS,) if log_credits else (),
            log_credits=log_credits,
        )
        self.say(Type.HELLO_ACK, ack.to_payload(), corr_id=self.frames[0].msg_id)

    def assign(self, job: AssignJob) -> Frame:
        return self.say(
            Type.ASSIGN_JOB, job.to_payload(), corr_id=UUID(job.job_id), subject=f"job.assign.{job.exec_name}"
        )

    def settle(self, ack: Frame, outcome: str = "recorded") -> None:
        result = JobResult.read_ack(ack.payload)
        assert result.token is not None
        self.say(
            Type.SETTLED,
            Settled(job_id=result.job_id, token=result.token, outcome=outcome).to_payload(),
            corr_id=ack.msg_id,
        )

    def cancel(self, job: AssignJob, reason: str = "cancelled", token: str | None = None) -> None:
        message = CancelJob(job_id=job.job_id, reason=reason, token=token or job.token)
        self.say(Type.CANCEL_JOB, message.to_payload(), corr_id=UUID(job.job_id))

    def send_away(self, leader: str | None, *, reason: str = "draining", doors: tuple[str, ...] = ()) -> None:
        message = NotLeader(reason=reason, group="default", leader=leader, doors=doors, retry_after_ms=50)
        self.say(Type.NOT_LEADER, message.to_payload())

    def cut(self) -> None:
        """As a killed door does."""
        self.writer.transport.abort()

    # What it heard.

    def of(self, kind: Type) -> list[Frame]:
        return [frame for frame in self.frames if frame.type == kind]

    @property
    def credit(self) -> int:
        """The sum of all that came."""
        return sum(CreditGrant.read(frame.payload).count for frame in self.of(Type.CREDIT))

    def results(self) -> list[JobResult]:
        return [JobResult.read_ack(frame.payload) for frame in self.of(Type.ACK_JOB)]

    def running(self) -> set[tuple[str, str]]:
        """What the newest heartbeat lists."""
        beats = self.of(Type.HEARTBEAT)
        return {(each.job_id, each.token) for each in Heartbeat.read(beats[-1].payload).running} if beats else set()

    async def heard(self, kind: Type, count: int = 1) -> list[Frame]:
        """At least so many frames of this type. Waits for them."""
        await eventually(lambda: len(self.of(kind)) >= count)
        return self.of(kind)

    async def result(self, job: AssignJob) -> JobResult:
        """The newest for this job. Waits for the first."""
        await eventually(lambda: any(each.job_id == job.job_id for each in self.results()))
        return [each for each in self.results() if each.job_id == job.job_id][-1]

    async def gone(self) -> None:
        await eventually(lambda: self.is_gone)


class ScriptedDoor:
    """Listens on 127.0.0.1. `visitors` are all that ever came, in order."""

    def __init__(self) -> None:
        self.visitors: list[Visitor] = []
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def start(self, tls: ssl.SSLContext | None = None) -> None:
        """On the port it had before, if it had one."""
        self._server = await asyncio.start_server(self._met, "127.0.0.1", self.port, ssl=tls)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _met(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        visitor = Visitor(reader, writer)
        self.visitors.append(visitor)
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        await visitor.listen()
        self._tasks.discard(task)

    async def stop(self) -> None:
        """Disconnect without notice, like a killed door."""
        if self._server is not None:
            self._server.close()
        for visitor in self.visitors:
            visitor.cut()
        if self._tasks:
            await asyncio.wait(set(self._tasks))
        self._server = None

    async def visitor(self, number: int = 0) -> Visitor:
        """The one of this number, once it has said Hello."""
        await eventually(lambda: len(self.visitors) > number and bool(self.visitors[number].frames))
        return self.visitors[number]

    async def welcomed(self, number: int = 0, *, doors: tuple[str, ...] = (), log_credits: int = 0) -> Visitor:
        """The same, welcomed, its first credit in hand."""
        visitor = await self.visitor(number)
        visitor.welcome(doors=doors, log_credits=log_credits)
        await visitor.heard(Type.HEARTBEAT)
        return visitor


@contextlib.asynccontextmanager
async def open_door(tls: ssl.SSLContext | None = None) -> AsyncIterator[ScriptedDoor]:
    door = ScriptedDoor()
    await door.start(tls)
    try:
        yield door
    finally:
        await door.stop()
