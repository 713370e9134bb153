"""A door without a queue behind it: it acks, holds back, drops, redirects, delays and lies, as a test says."""

from __future__ import annotations

import asyncio
import hashlib
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from pyoco_server.core.frames.codec import NIL, Frame, Type
from pyoco_server.core.frames.messages import (
    BinaryPart,
    CancelJob,
    ErrorMessage,
    HelloAck,
    HelloClient,
    JobRequest,
    JobResult,
    NotLeader,
    ObjectGet,
    OutputRef,
    SubmitAck,
)
from pyoco_server.core.programs.faults import Code, GridRefused
from pyoco_server.core.programs.report import ErrorCode
from pyoco_server.core.states import RunState
from pyoco_server.frames.wire import Timers, Wire, WireClosed, fresh
from pyoco_server.grid_client import LinkSettings, Pace

__all__ = ["QUICK", "FakeDoor", "Talk", "fake_door", "reference_to"]

#: For clients: ten times as quick as a real one.
QUICK = LinkSettings(
    pace=Pace(
        clock=lambda: time.monotonic() * 10, chance=lambda: 0.5, sleep=lambda seconds: asyncio.sleep(seconds / 10)
    )
)

Answer = Callable[["Talk", Frame], Awaitable[None]]


def reference_to(data: bytes) -> OutputRef:
    return OutputRef(
        bucket="b",
        object="r/a1/output.zip",
        size=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
        href="/runs/r/artifacts",
    )


@dataclass(eq=False)
class Talk:
    """One connection of the door."""

    door: FakeDoor
    wire: Wire
    hello: HelloClient | None = None
    #: The latest SubmitJob of each job.
    asked: dict[str, Frame] = field(default_factory=dict)

    async def say(self, kind: Type, message: Any, to: Frame | None = None) -> None:
        await self.wire.send(fresh(kind, message.to_payload(), corr_id=NIL if to is None else to.msg_id))

    async def ack(self, frame: Frame) -> None:
        request = JobRequest.read(frame.payload)
        ack = SubmitAck(job_id=request.job_id, run_id=request.job_id, status=RunState.PENDING, duplicate=False)
        await self.say(Type.SUBMIT_ACK, ack, frame)

    async def refuse(self, frame: Frame, code: Code, retry_after_ms: int | None = None) -> None:
        message = ErrorMessage.of(GridRefused(code, "no"))
        await self.say(Type.ERROR, replace(message, retry_after_ms=retry_after_ms), frame)

    async def send_away(self, leader: str | None = None, doors: tuple[str, ...] = (), after_ms: int = 10) -> None:
        message = NotLeader(reason="draining", group="g", leader=leader, doors=doors, retry_after_ms=after_ms)
        await self.say(Type.NOT_LEADER, message)


class FakeDoor:
    def __init__(self, group: str = "g", timers: Timers | None = None) -> None:
        self.group = group
        self.port = 0
        self.hellos: list[HelloClient] = []
        #: Every SubmitJob, in the order in which they came; every CancelJob; every ObjectGet.
        self.submits: list[JobRequest] = []
        self.payloads: list[bytes] = []
        self.cancels: list[CancelJob] = []
        self.gets: list[ObjectGet] = []
        self.talks: list[Talk] = []
        #: Whether results are held back until `finish`.
        self.is_holding = False
        #: Archives too large for a frame, by job.
        self.objects: dict[str, bytes] = {}
        self.doors: tuple[str, ...] = ()
        self.on_hello: Answer = self.welcome
        self.on_submit: Answer = self.accept
        self.on_cancel: Answer = self.obey
        self.on_get: Answer = self.serve
        self._timers = timers or Timers()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def submitted(self) -> list[str]:
        return [request.job_id for request in self.submits]

    async def start(self, tls: ssl.SSLContext | None = None) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port, ssl=tls)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """As if it were killed. `start` brings it back at the same address."""
        if self._server is not None:
            self._server.close()
            self._server = None
        self.drop()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def drop(self) -> None:
        """Break every connection off."""
        for talk in self.talks:
            talk.wire._writer.transport.abort()

    async def finish(self, job_id: str, **changes: Any) -> None:
        """Send a result on every connection that asked for the job."""
        for talk in self.talks:
            if job_id in talk.asked:
                await self.end(talk, talk.asked[job_id], **changes)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        talk = Talk(self, Wire(reader, writer, self._timers))
        self.talks.append(talk)
        try:
            while True:
                await self._hear(talk, await talk.wire.receive())
        except (WireClosed, GridRefused):
            pass
        finally:
            self.talks.remove(talk)
            await talk.wire.close("peer_closed")

    async def _hear(self, talk: Talk, frame: Frame) -> None:
        match frame.type:
            case Type.HELLO_CLIENT:
                talk.hello = HelloClient.read(frame.payload)
                self.hellos.append(talk.hello)
                await self.on_hello(talk, frame)
            case Type.SUBMIT_JOB:
                request = JobRequest.read(frame.payload)
                self.submits.append(request)
                self.payloads.append(frame.payload)
                talk.asked[request.job_id] = frame
                await self.on_submit(talk, frame)
            case Type.CANCEL_JOB:
                self.cancels.append(CancelJob.read(frame.payload))
                await self.on_cancel(talk, frame)
            case Type.OBJECT_GET:
                self.gets.append(ObjectGet.read(frame.payload))
                await self.on_get(talk, frame)

    # What it does unless a test says otherwise.

    async def welcome(self, talk: Talk, frame: Frame) -> None:
        assert talk.hello is not None
        ack = HelloAck(door_id="d", group=self.group, session="s", cap=talk.hello.desired_parallelism, doors=self.doors)
        await talk.say(Type.HELLO_ACK, ack, frame)

    async def accept(self, talk: Talk, frame: Frame) -> None:
        await talk.ack(frame)
        if not self.is_holding:
            await self.end(talk, frame)

    async def end(self, talk: Talk, frame: Frame, **changes: Any) -> None:
        request = JobRequest.read(frame.payload)
        data = self.objects.get(request.job_id)
        result = JobResult(
            job_id=request.job_id,
            client_id=request.client_id,
            exec_name=request.exec_name,
            status=RunState.COMPLETED,
            stdout=" ".join(request.args),
            run_id=request.job_id,
            attempt=1,
            worker_id=self.group,
            exit_code=0,
            output_ref=None if data is None else reference_to(data),
        )
        await talk.say(Type.RESULT, replace(result, **changes), frame)

    async def obey(self, talk: Talk, frame: Frame) -> None:
        job_id = CancelJob.read(frame.payload).job_id
        asked = talk.asked.get(job_id)
        if asked is None:
            await talk.refuse(frame, Code.NOT_FOUND)
        else:
            await self.end(talk, asked, status=RunState.CANCELLED, error_code=ErrorCode.CANCELLED)

    async def serve(self, talk: Talk, frame: Frame) -> None:
        await self.send_parts(talk, frame, self.objects[ObjectGet.read(frame.payload).job_id])

    async def send_parts(self, talk: Talk, frame: Frame, data: bytes, size: int = 1024 * 1024) -> None:
        get = ObjectGet.read(frame.payload)
        for start in range(get.offset, max(len(data), 1), size):
            piece = data[start : start + size]
            is_last = start + len(piece) == len(data)
            part = BinaryPart(
                job_id=get.job_id,
                name=get.name,
                offset=start,
                size=len(data),
                last=is_last,
                data=piece,
                sha256=hashlib.sha256(data).hexdigest() if is_last else None,
            )
            await talk.say(Type.OBJECT_CHUNK, part, frame)


@asynccontextmanager
async def fake_door(group: str = "g", tls: ssl.SSLContext | None = None) -> AsyncIterator[FakeDoor]:
    door = FakeDoor(group)
    await door.start(tls)
    try:
        yield door
    finally:
        await door.stop()
