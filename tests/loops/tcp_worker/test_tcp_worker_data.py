"""Inputs that do not fit into AssignJob, outputs that do not fit into AckJob, and AssignJobs that cannot be."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from pyoco_server.core.frames.codec import Frame, Type
from pyoco_server.core.frames.messages import BinaryPart, ErrorMessage, ObjectGet
from pyoco_server.core.programs.faults import Code, GridRefused
from pyoco_server.core.programs.job import InputFile
from pyoco_server.core.programs.report import ErrorCode
from pyoco_server.core.states import RunState
from pyoco_server.errors import ObjectNotFound, Unavailable
from support.grid.pretended_programs import PretendedExecutor
from support.grid.scripted_door import Visitor, an_assignment, open_door
from support.grid.worker_scenes import a_worker
from support.waiting import eventually


def a_ref(data: bytes, name: str = "big.bin") -> InputFile:
    return InputFile(name, len(data), hashlib.sha256(data).hexdigest())


def send_chunks(visitor: Visitor, asked: Frame, data: bytes, most: int | None = None) -> None:
    """The answer to an ObjectGet; its first `most` parts."""
    ask = ObjectGet.read(asked.payload)
    starts = list(range(ask.offset, len(data), 100_000)) or [ask.offset]
    for start in starts[:most]:
        part = data[start : start + 100_000]
        last = start + len(part) == len(data)
        chunk = BinaryPart(
            job_id=ask.job_id,
            name=ask.name,
            offset=start,
            size=len(data),
            last=last,
            data=part,
            sha256=hashlib.sha256(data).hexdigest() if last else None,
        )
        visitor.say(Type.OBJECT_CHUNK, chunk.to_payload(), corr_id=asked.msg_id)


async def test_an_input_is_fetched_in_parts(tmp_path: Path) -> None:
    """GRID-147"""
    data, executor = os.urandom(950_000), PretendedExecutor()
    async with open_door() as door, a_worker(tmp_path, door, executor=executor):
        visitor = await door.welcomed()
        job = an_assignment(files={"small": b"here"}, refs=(a_ref(data), a_ref(b"", "empty")))
        visitor.assign(job)
        program = await executor.begun()
        assert [(file.name, file.size) for file in program.work.files] == [
            ("small", 4),
            ("big.bin", 950_000),
            ("empty", 0),
        ]
        reading = asyncio.create_task(program.read_inputs())
        asked = (await visitor.heard(Type.OBJECT_GET))[0]
        assert ObjectGet.read(asked.payload) == ObjectGet(job_id=job.job_id, name="big.bin", offset=0)
        send_chunks(visitor, asked, data)
        send_chunks(visitor, (await visitor.heard(Type.OBJECT_GET, 2))[1], b"")
        assert await reading == {"small": b"here", "big.bin": data, "empty": b""}


async def _pieces_of(pieces: AsyncIterator[bytes], most: int | None = None) -> bytes:
    """The next `most` of them; all that are left."""
    read = b""
    while most is None or most > 0:
        piece = await anext(pieces, None)
        if piece is None:
            break
        read += piece
        most = None if most is None else most - 1
    return read


async def test_a_lost_door_costs_only_what_it_had_not_sent(tmp_path: Path) -> None:
    """GRID-110, GRID-147"""
    data, executor = os.urandom(500_000), PretendedExecutor()
    async with open_door() as door, a_worker(tmp_path, door, executor=executor):
        visitor = await door.welcomed()
        visitor.assign(an_assignment(refs=(a_ref(data),)))
        pieces = (await executor.begun()).work.files[0].open()
        read = asyncio.create_task(_pieces_of(pieces, 3))
        send_chunks(visitor, (await visitor.heard(Type.OBJECT_GET))[0], data, most=3)
        first = await read
        visitor.cut()
        rest = asyncio.create_task(_pieces_of(pieces))
        again = await door.welcomed(1)
        asked = (await again.heard(Type.OBJECT_GET))[0]
        assert ObjectGet.read(asked.payload).offset == 300_000
        send_chunks(again, asked, data)
        assert first + await rest == data


async def test_other_frames_go_on_while_an_input_is_not_read(tmp_path: Path) -> None:
    """GRID-195: unread data is bounded, and a reader that gives up does not block the connection."""
    data, executor = bytes(3_000_000), PretendedExecutor()
    async with open_door() as door, a_worker(tmp_path, door, executor=executor) as worker:
        visitor = await door.welcomed()
        visitor.assign(an_assignment(refs=(a_ref(data),)))
        program = await executor.begun()
        pieces = program.work.files[0].open()
        first = asyncio.ensure_future(anext(pieces))
        send_chunks(visitor, (await visitor.heard(Type.OBJECT_GET))[0], data)
        assert len(await first) == 100_000
        session = await worker.link.session()
        [waiting] = session._waiting.values()
        await eventually(lambda: len(waiting._queue._putters) == 1)  # type: ignore[attr-defined]
        await pieces.aclose()  # type: ignore[attr-defined]
        job = an_assignment()
        visitor.assign(job)
        (await executor.begun(2)).end()
        await visitor.result(job)


@pytest.mark.parametrize(("code", "expected"), [(Code.NOT_FOUND, ObjectNotFound), (Code.FORBIDDEN, Unavailable)])
async def test_an_input_that_is_refused_ends_the_attempt(
    tmp_path: Path, code: Code, expected: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """GRID-101, GRID-146: one that is deleted, and one that is temporarily unavailable."""
    monkeypatch.setattr("pyoco_server.loops.tcp_worker.inputs._PAUSE_SECONDS", 0.01)
    executor = PretendedExecutor()
    async with open_door() as door, a_worker(tmp_path, door, executor=executor):
        visitor = await door.welcomed()

        def refuse(frame: Frame) -> None:
            if frame.type == Type.OBJECT_GET:
                error = ErrorMessage.of(GridRefused(code, "no"))
                visitor.say(Type.ERROR, error.to_payload(), corr_id=frame.msg_id)

        visitor.on_frame = refuse
        visitor.assign(an_assignment(refs=(a_ref(b"data"),)))
        program = await executor.begun()
        with pytest.raises(expected):
            await program.read_inputs()
        assert len(visitor.of(Type.OBJECT_GET)) == (1 if code is Code.NOT_FOUND else 5)


def assigned(**changes: Any) -> bytes:
    members = json.loads(an_assignment().to_payload()) | changes
    return json.dumps({name: value for name, value in members.items() if value is not ...}).encode()


@pytest.mark.parametrize(
    "changes",
    [
        {"TimeoutSec": ...},
        {"TimeoutSec": 0},
        {"Attempt": "1"},
        {"Attempt": 0},
        {"Args": [1]},
        {"Args": ["a"] * 257},
        {"Files": {"a": "not base64!"}},
        {"Files": []},
        {"ClientId": "a b"},
        {"RunId": ...},
        {"ExecName": 7},
        {"ExecName": "other"},
        {"InputRefs": [{"Name": "x"}]},
    ],
    ids=str,
)
async def test_an_assignment_that_cannot_be_is_answered_as_a_fault_of_the_worker(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    """Section 26.1: AckJob FAILED, the connection stays, and the credit comes back."""
    executor = PretendedExecutor()
    async with open_door() as door, a_worker(tmp_path, door, executor=executor):
        visitor = await door.welcomed()
        job_id = str(uuid4())
        payload = assigned(JobId=job_id, **changes)
        visitor.say(Type.ASSIGN_JOB, payload, corr_id=UUID(job_id), subject="job.assign.calcA")
        await visitor.heard(Type.ACK_JOB)
        result = visitor.results()[0]
        assert (result.job_id, result.status, result.error_code) == (
            job_id,
            RunState.FAILED,
            ErrorCode.WORKER_ERROR,
        )
        await eventually(lambda: visitor.credit == 3)
        assert executor.programs == []
        assert not visitor.is_gone


@pytest.mark.parametrize(
    "payload",
    [b"", b"{", b"[]", b"{}", assigned(JobId="x"), assigned(Token=...)],
    ids=["nothing", "no JSON", "no object", "no members", "no JobId", "no Token"],
)
async def test_an_assignment_that_names_no_attempt_only_gives_its_credit_back(tmp_path: Path, payload: bytes) -> None:
    """GRID-69, section 26.1: there is no receiver for the answer."""
    async with open_door() as door, a_worker(tmp_path, door):
        visitor = await door.welcomed()
        visitor.say(Type.ASSIGN_JOB, payload, subject="job.assign.calcA")
        await eventually(lambda: visitor.credit == 3)
        assert visitor.of(Type.ACK_JOB) == []
        assert not visitor.is_gone
