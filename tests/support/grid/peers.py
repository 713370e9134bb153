"""A door in this process, and peers that speak frames to it by hand."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import ssl
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from pyoco_server.config import GridConfig, NatsBackendConfig
from pyoco_server.core.frames.codec import NIL, Decoder, Frame, FrameError, Type, encode
from pyoco_server.core.frames.messages import (
    AssignJob,
    BinaryPart,
    CancelJob,
    CreditGrant,
    ErrorMessage,
    Heartbeat,
    HelloAck,
    HelloClient,
    HelloWorker,
    JobRequest,
    JobResult,
    NotLeader,
    ObjectAck,
    ObjectGet,
    RunningJob,
    Settled,
    SubmitAck,
)
from pyoco_server.core.frames.subjects import ack_subject, submit_subject
from pyoco_server.core.programs.report import ErrorCode
from pyoco_server.core.states import RunState
from pyoco_server.doors.cli.claims import open_port
from pyoco_server.doors.frames.door import Door
from pyoco_server.doors.frames.server import FrameServer
from pyoco_server.doors.frames.settings import DoorOptions
from pyoco_server.doors.frames.tls import ServerTls
from pyoco_server.ports.backend import DoorBackend
from pyoco_server.ports.nats.link import open_link
from pyoco_server.ports.runs.port import Stored
from pyoco_server.wiring.backend import open_door_backend
from pyoco_server.wiring.logs import open_log_sender
from support.servers import config_for, forget, unique

__all__ = [
    "ClientPeer",
    "OpenDoor",
    "Peer",
    "WorkerPeer",
    "a_job_id",
    "grid_config",
    "new_client_id",
    "open_door",
    "open_second_door",
]

_SECONDS = 100.0


def a_job_id() -> str:
    return str(uuid.uuid4())


def new_client_id(prefix: str = "c") -> str:
    return unique(prefix)


def grid_config(**more: Any) -> GridConfig:
    """Settings of a group of its own: the streams of the grid are shared by all tests of one server."""
    return GridConfig(**{"exec_group": unique("g"), "exec_events": False, **more})


@dataclass(frozen=True)
class OpenDoor:
    door: Door
    server: FrameServer
    backend: DoorBackend
    port: int
    tls: ServerTls | None = None

    @property
    def group(self) -> str:
        return self.door.context.group

    async def run(self, run_id: str) -> Any:
        """The record."""
        found = await self.backend.runs.find(run_id)
        assert isinstance(found, Stored), found
        return found.run


@contextlib.asynccontextmanager
async def open_door(
    nats_url: str,
    grid: GridConfig | None = None,
    config: NatsBackendConfig | None = None,
    *,
    tls: ServerTls | None = None,
    **options: Any,
) -> AsyncIterator[OpenDoor]:
    """A whole door on 127.0.0.1. Without `config`, its buckets are its own and are deleted afterwards."""
    grid = grid or grid_config()
    names = config or config_for(nats_url)
    async with open_door_backend(names, grid) as backend, opened(backend, grid, tls, **options) as opened_door:
        yield opened_door
    if config is None:
        link = await open_link(nats_url, "tests")
        await forget(link, names)
        await link.close()


@contextlib.asynccontextmanager
async def opened(
    backend: DoorBackend, grid: GridConfig, tls: ServerTls | None = None, **options: Any
) -> AsyncIterator[OpenDoor]:
    listening = open_port("127.0.0.1", 0)
    port = int(listening.getsockname()[1])
    given = DoorOptions(door_id=unique("door"), address=f"127.0.0.1:{port}")
    async with open_log_sender(backend) as lines:
        door = Door(backend, replace(given, **options), lines=lines)
        server = FrameServer(listening, grid, door.serve, tls, door.meter.error)
        await door.start()
        server.open()
        try:
            yield OpenDoor(door, server, backend, port, tls)
        finally:
            server.close()
            await door.stop()
            await server.stop()


@contextlib.asynccontextmanager
async def open_second_door(first: OpenDoor, **options: Any) -> AsyncIterator[OpenDoor]:
    """Another door of the same group, with a connection of its own."""
    grid = first.door.context.programs.config
    async with (
        open_door_backend(first.backend.config, grid) as backend,
        opened(backend, grid, first.tls, **options) as second,
    ):
        yield second


class Peer:
    """One connection. `next` passes heartbeats over."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._decoder = Decoder()
        self._frames: list[Frame] = []
        self.heartbeats = 0

    @classmethod
    async def connect(cls, door: OpenDoor | int, tls: ssl.SSLContext | None = None, name: str | None = None) -> Self:
        port = door if isinstance(door, int) else door.port
        server_name = name or ("127.0.0.1" if tls is not None else None)
        return cls(*await asyncio.open_connection("127.0.0.1", port, ssl=tls, server_hostname=server_name))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    def abort(self) -> None:
        """As a killed process leaves it."""
        self._writer.transport.abort()

    async def raw(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def send(self, kind: int, payload: bytes = b"", *, corr_id: uuid.UUID = NIL, subject: str = "") -> uuid.UUID:
        """The msgId."""
        frame = Frame(kind, payload, uuid.uuid4(), corr_id, subject)
        await self.raw(encode(frame))
        return frame.msg_id

    async def send_json(self, kind: int, value: object, **more: Any) -> uuid.UUID:
        return await self.send(kind, json.dumps(value).encode(), **more)

    async def next(self, kind: Type | None = None, seconds: float = _SECONDS) -> Frame:
        """The next frame, which must be of this kind."""
        async with asyncio.timeout(seconds):
            while True:
                if not self._frames:
                    data = await self._reader.read(65_536)
                    assert data, f"the door closed the connection; {kind!r} was expected"
                    self._feed(data)
                    continue
                frame = self._frames.pop(0)
                if frame.type == Type.HEARTBEAT:
                    self.heartbeats += 1
                    continue
                assert kind is None or frame.type == kind, f"{Type(frame.type)!r} {frame.payload[:300]!r}, not {kind!r}"
                return frame

    def _feed(self, data: bytes) -> None:
        for found in self._decoder.feed(data):
            assert not isinstance(found, FrameError)
            self._frames.append(found)

    async def next_of(self, kind: Type, seconds: float = _SECONDS) -> Frame:
        """The next of this kind; those before it stay where they are."""
        async with asyncio.timeout(seconds):
            while True:
                for place, frame in enumerate(self._frames):
                    if frame.type == kind:
                        return self._frames.pop(place)
                data = await self._reader.read(65_536)
                assert data, f"the door closed the connection; {kind!r} was expected"
                self._feed(data)

    async def error(self, code: str) -> tuple[Frame, ErrorMessage]:
        frame = await self.next(Type.ERROR)
        message = ErrorMessage.read(frame.payload)
        assert message.code == code, message
        return frame, message

    async def is_silent(self, seconds: float = 0.3) -> bool:
        """Whether nothing but heartbeats comes for so long."""
        try:
            frame = await self.next(seconds=seconds)
        except TimeoutError:
            return True
        self._frames.insert(0, frame)
        return False

    async def ended(self, seconds: float = _SECONDS) -> list[Frame]:
        """Waits for the end of the connection; the frames that came before it."""
        async with asyncio.timeout(seconds):
            with contextlib.suppress(ConnectionError):
                while data := await self._reader.read(65_536):
                    self._feed(data)
        found, self._frames = self._frames, []
        return [frame for frame in found if frame.type != Type.HEARTBEAT]

    async def not_leader(self) -> NotLeader:
        return NotLeader.read((await self.next(Type.NOT_LEADER)).payload)


class ClientPeer(Peer):
    client_id = ""

    async def hello(self, client_id: str | None = None, cap: int = 4, token: str | None = None) -> HelloAck:
        self.client_id = client_id or new_client_id()
        hello = HelloClient(client_id=self.client_id, desired_parallelism=cap, token=token)
        await self.send(Type.HELLO_CLIENT, hello.to_payload())
        return HelloAck.read((await self.next(Type.HELLO_ACK)).payload)

    def request(self, exec_name: str = "calcA", **more: Any) -> JobRequest:
        return JobRequest(**{"job_id": a_job_id(), "client_id": self.client_id, "exec_name": exec_name, **more})

    async def submit(self, request: JobRequest | None = None, **more: Any) -> tuple[JobRequest, uuid.UUID]:
        """The msgId of the SubmitJob beside it. The answer is not waited for."""
        request = request or self.request(**more)
        payload = request.to_payload()
        return request, await self.send(Type.SUBMIT_JOB, payload, subject=submit_subject(request.exec_name))

    async def accepted(self, request: JobRequest | None = None, **more: Any) -> SubmitAck:
        """Submitted, and acknowledged."""
        sent, msg_id = await self.submit(request, **more)
        frame = await self.next_of(Type.SUBMIT_ACK)
        assert frame.corr_id == msg_id
        ack = SubmitAck.read(frame.payload)
        assert ack.job_id == sent.job_id
        return ack

    async def result(self, seconds: float = _SECONDS) -> JobResult:
        return JobResult.read((await self.next_of(Type.RESULT, seconds)).payload)

    async def cancel(self, job_id: str, reason: str | None = None) -> uuid.UUID:
        return await self.send(Type.CANCEL_JOB, CancelJob(job_id=job_id, reason=reason).to_payload())

    async def fetched(self, job_id: str, name: str, offset: int = 0) -> bytes:
        """An object, whole, with its sha256 checked when it was asked for from its beginning."""
        return await fetched(self, job_id, name, offset)


async def fetched(peer: Peer, job_id: str, name: str, offset: int = 0) -> bytes:
    ask = ObjectGet(job_id=job_id, name=name, offset=offset)
    msg_id = await peer.send(Type.OBJECT_GET, ask.to_payload())
    data = bytearray()
    while True:
        frame = await peer.next(Type.OBJECT_CHUNK)
        assert frame.corr_id == msg_id
        part = BinaryPart.read(frame.payload)
        assert (part.job_id, part.name, part.offset) == (job_id, name, offset + len(data))
        data += part.data
        if part.last:
            assert part.size == offset + len(data)
            if not offset:
                assert part.sha256 == hashlib.sha256(data).hexdigest()
            return bytes(data)


class WorkerPeer(Peer):
    worker_id = ""

    async def hello(
        self,
        worker_id: str | None = None,
        patterns: Sequence[str] = ("job.assign.*",),
        *,
        token: str | None = None,
        credit: int = 0,
        capabilities: tuple[str, ...] = (),
    ) -> HelloAck:
        self.worker_id = worker_id or unique("w")
        hello = HelloWorker(
            worker_id=self.worker_id,
            patterns=tuple(patterns),
            max_parallel=4,
            token=token,
            capabilities=capabilities,
        )
        await self.send(Type.HELLO_WORKER, hello.to_payload())
        ack = HelloAck.read((await self.next(Type.HELLO_ACK)).payload)
        if credit:
            await self.credit(credit)
        return ack

    async def credit(self, count: int) -> None:
        await self.send(Type.CREDIT, CreditGrant(count).to_payload())

    async def assigned(self, seconds: float = _SECONDS) -> AssignJob:
        frame = await self.next_of(Type.ASSIGN_JOB, seconds)
        job = AssignJob.read(frame.payload)
        assert frame.corr_id == uuid.UUID(job.job_id)
        assert frame.subject == f"job.assign.{job.exec_name}"
        return job

    async def beat(self, *jobs: AssignJob) -> None:
        running = tuple(RunningJob(each.job_id, each.token) for each in jobs)
        await self.send(Type.HEARTBEAT, Heartbeat(running, 0.25).to_payload())

    def report(self, job: AssignJob, **more: Any) -> JobResult:
        values: dict[str, Any] = {
            "job_id": job.job_id,
            "client_id": job.client_id,
            "exec_name": job.exec_name,
            "status": RunState.COMPLETED,
            "exit_code": 0,
            "run_id": job.run_id,
            "attempt": job.attempt,
            "worker_id": self.worker_id,
            "token": job.token,
            "started_at": 1.0,
            "ended_at": 2.0,
            "run_seconds": 1.0,
        }
        values |= more
        if values["status"] is not RunState.COMPLETED:
            values.setdefault("error_code", ErrorCode.EXIT_NONZERO)
        return JobResult(**values)

    async def ack(self, job: AssignJob, **more: Any) -> uuid.UUID:
        """Report it; the answer is not waited for."""
        payload = self.report(job, **more).to_payload()
        return await self.send(Type.ACK_JOB, payload, subject=ack_subject(job.exec_name))

    async def settled(self, job: AssignJob, **more: Any) -> str:
        """Report it, and hear what became of it."""
        msg_id = await self.ack(job, **more)
        frame = await self.next_of(Type.SETTLED)
        settled = Settled.read(frame.payload)
        assert (frame.corr_id, settled.job_id, settled.token) == (msg_id, job.job_id, job.token)
        return settled.outcome

    async def put(
        self, job: AssignJob, name: str, data: bytes, *, offset: int = 0, part: bytes | None = None, **more: Any
    ) -> uuid.UUID:
        """One part of `data`: `part`, or all of it."""
        piece = data if part is None else part
        last = offset + len(piece) == len(data)
        values: Mapping[str, Any] = {
            "job_id": job.job_id,
            "token": job.token,
            "name": name,
            "offset": offset,
            "size": len(data),
            "last": last,
            "data": piece,
            "sha256": hashlib.sha256(data).hexdigest() if last else None,
            **more,
        }
        return await self.send(Type.OBJECT_PUT, BinaryPart(**values).to_payload())

    async def stored(self, job: AssignJob, name: str, data: bytes, part_bytes: int = 1024 * 1024) -> str:
        """All of it, part by part, each one acknowledged; its name in the store."""
        for offset in range(0, max(len(data), 1), part_bytes):
            part = data[offset : offset + part_bytes]
            msg_id = await self.put(job, name, data, offset=offset, part=part)
            frame = await self.next_of(Type.OBJECT_ACK)
            ack = ObjectAck.read(frame.payload)
            assert (frame.corr_id, ack.received) == (msg_id, offset + len(part))
        assert ack.done
        assert ack.object is not None
        return ack.object

    async def cancelled(self) -> CancelJob:
        frame = await self.next_of(Type.CANCEL_JOB)
        cancel = CancelJob.read(frame.payload)
        assert frame.corr_id == uuid.UUID(cancel.job_id)
        return cancel
