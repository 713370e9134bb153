"""How a worker finds a door, leaves it, and what it does with one that talks nonsense."""

from __future__ import annotations

import asyncio
import logging
import ssl
import struct
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest

from pyoco_server.core.frames.codec import NIL, Frame, Type, encode
from pyoco_server.core.frames.messages import ErrorMessage, NotLeader, Settled
from pyoco_server.core.programs.faults import Code, GridRefused
from pyoco_server.errors import UsageError
from pyoco_server.frames.addresses import Address
from pyoco_server.frames.tls import client_context
from pyoco_server.loops.tcp_worker.link import Unwelcome
from support.grid import worker_scenes
from support.grid.pretended_programs import PretendedExecutor
from support.grid.scripted_door import ScriptedDoor, Visitor, an_assignment, open_door
from support.grid.worker_scenes import a_worker
from support.priced.url_sites import Authority
from support.waiting import eventually


def an_error(code: Code) -> bytes:
    return ErrorMessage.of(GridRefused(code, "no")).to_payload()


async def test_a_dead_door_is_passed_over_for_the_next(tmp_path: Path) -> None:
    """GRID-110"""
    async with open_door() as dead, open_door() as door, a_worker(tmp_path, dead, door) as worker:
        first = await dead.welcomed()
        await dead.stop()
        await first.gone()
        await door.welcomed()
        assert await worker.first_door() == Address("127.0.0.1", door.port)


async def test_a_worker_that_was_replaced_waits_before_it_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """SAFE-17: five seconds, with one line in the log"""
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    def told() -> list[str]:
        return [record.message for record in caplog.records if record.levelname == "WARNING"]

    monkeypatch.setattr(worker_scenes, "_hasty", sleep)
    async with open_door() as door, a_worker(tmp_path, door):
        first = await door.welcomed()
        first.say(Type.ERROR, an_error(Code.TOO_MANY_CONNECTIONS))
        await eventually(lambda: told() == ["the door closes this connection"])
        first.cut()
        (await door.welcomed(1)).cut()
        await door.welcomed(2)
    assert pauses == [5.0, 1.0]
    assert told() == ["the door closes this connection"]


async def test_doors_that_a_door_has_named_are_tried_too(tmp_path: Path) -> None:
    """GRID-110: HelloAck.Doors"""
    async with open_door() as first, open_door() as second, a_worker(tmp_path, first):
        await first.welcomed(doors=("nonsense", second.address))
        await first.stop()
        await second.welcomed()


async def test_a_standby_sends_the_worker_on_at_once(tmp_path: Path) -> None:
    """GRID-42, GRID-45"""
    async with open_door() as standby, open_door() as door, a_worker(tmp_path, standby):
        visitor = await standby.visitor()
        visitor.send_away(door.address, reason="standby")
        await door.welcomed()
        await visitor.gone()
        assert len(standby.visitors) == 1


async def test_without_a_leader_the_worker_stays_and_asks_again(tmp_path: Path) -> None:
    """GRID-42, section 5.6"""
    async with open_door() as door, a_worker(tmp_path, door):
        (await door.visitor()).send_away(None, reason="no_quorum")
        await door.welcomed(1)


async def test_two_doors_that_name_each_other_do_not_make_a_storm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GRID-45: five jumps, then the delays of GRID-123."""
    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        await asyncio.Event().wait()

    monkeypatch.setattr(worker_scenes, "_hasty", pause)
    async with open_door() as a, open_door() as b, a_worker(tmp_path, a):
        for turn in range(3):
            (await a.visitor(turn)).send_away(b.address)
            (await b.visitor(turn)).send_away(a.address)
        await eventually(lambda: pauses != [])
        assert len(a.visitors) + len(b.visitors) == 6


async def test_a_draining_door_is_left_after_the_worker_is_at_another(tmp_path: Path) -> None:
    """GRID-41, GRID-45: attach first, close then; programs go on, and nothing is started twice."""
    executor = PretendedExecutor()
    async with open_door() as old, open_door() as new, a_worker(tmp_path, old, executor=executor):
        leaving = await old.welcomed()
        job = an_assignment()
        leaving.assign(job)
        await executor.begun()
        leaving.send_away(new.address)
        arriving = await new.visitor()
        assert not leaving.is_gone
        arriving.welcome()
        await arriving.heard(Type.CREDIT)
        assert arriving.running() == {(job.job_id, job.token)}
        assert arriving.credit == 1
        await leaving.gone()
        executor.programs[0].end()
        assert (await arriving.result(job)).token == job.token
        assert leaving.results() == []
        assert len(executor.programs) == 1


async def test_a_draining_door_that_is_the_only_one_is_used_to_its_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """GRID-41, GRID-45: no leader is named, so what ends meanwhile still goes there."""
    caplog.set_level(logging.INFO)
    executor = PretendedExecutor()
    async with open_door() as door, a_worker(tmp_path, door, executor=executor):
        visitor = await door.welcomed()
        job = an_assignment()
        visitor.assign(job)
        program = await executor.begun()
        visitor.send_away(None)
        await eventually(lambda: "door redirects this worker" in caplog.messages)
        program.end()
        assert (await visitor.result(job)).token == job.token
        visitor.cut()
        await door.welcomed(1)


async def test_a_new_door_that_does_not_answer_leaves_the_worker_where_it_is(tmp_path: Path) -> None:
    """GRID-45"""
    executor = PretendedExecutor()
    async with (
        open_door() as old,
        open_door() as dead,
        open_door() as third,
        a_worker(tmp_path, old, executor=executor),
    ):
        visitor = await old.welcomed()
        await dead.stop()
        visitor.send_away(dead.address, doors=(dead.address, third.address))
        arriving = await third.visitor()
        assert not visitor.is_gone
        arriving.welcome()
        await arriving.heard(Type.CREDIT)
        await visitor.gone()


@pytest.mark.parametrize("code", [Code.BAD_HELLO, Code.UNAUTHENTICATED, Code.FORBIDDEN])
async def test_a_worker_that_was_never_welcome_says_so_and_ends(tmp_path: Path, code: Code) -> None:
    """GRID-167, section 25.3"""
    async with open_door() as door, a_worker(tmp_path, door) as worker:
        visitor = await door.visitor()
        visitor.say(Type.ERROR, an_error(code), corr_id=visitor.frames[0].msg_id)
        with pytest.raises(Unwelcome, match=code):
            await worker.first_door()


async def test_a_worker_that_was_welcome_once_asks_on(tmp_path: Path) -> None:
    """GRID-110: after the key is corrected, its results are still there."""
    async with open_door() as door, a_worker(tmp_path, door):
        (await door.welcomed()).cut()
        (await door.visitor(1)).say(Type.ERROR, an_error(Code.UNAUTHENTICATED))
        await door.welcomed(2)


async def test_a_door_that_is_full_is_asked_again(tmp_path: Path) -> None:
    """GRID-36"""
    async with open_door() as door, a_worker(tmp_path, door):
        visitor = await door.visitor()
        message = ErrorMessage(code=Code.TOO_MANY_CONNECTIONS, message="full", retry=True, retry_after_ms=100)
        visitor.say(Type.ERROR, message.to_payload())
        await door.welcomed(1)


async def test_no_door_within_the_time_for_it_is_an_error(tmp_path: Path) -> None:
    """GRID-123: --connect-timeout"""
    door = ScriptedDoor()
    await door.start()
    await door.stop()
    async with a_worker(tmp_path, door) as worker:
        with pytest.raises(UsageError, match="no door"):
            await worker.first_door(0.1)


BAD: dict[str, Callable[[Visitor], bytes]] = {
    "too long": lambda _: b"\x01\0\x40\0",
    "too short": lambda _: b"\x26\0\0\0",
    "HTTP": lambda _: b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "lengths that do not add up": lambda _: struct.pack("<IB32xH", 39, Type.HEARTBEAT, 1) + bytes(4),
    "a bad subject": lambda _: struct.pack("<IB32xH", 41, Type.HEARTBEAT, 2) + b"\xc3\x28" + bytes(4),
    "Settled that is no JSON": lambda _: encode(Frame(Type.SETTLED, b"{", uuid4())),
    "Settled of an unknown outcome": lambda _: encode(
        Frame(Type.SETTLED, Settled(job_id=str(uuid4()), token="t", outcome="lost").to_payload(), uuid4())
    ),
    "CancelJob without a JobId": lambda _: encode(Frame(Type.CANCEL_JOB, b"{}", uuid4())),
    "NotLeader for no reason": lambda _: encode(
        Frame(Type.NOT_LEADER, NotLeader(reason="tired", group="g").to_payload(), uuid4())
    ),
    "an Error that is none": lambda _: encode(Frame(Type.ERROR, b"[]", uuid4())),
}


@pytest.mark.parametrize("name", BAD)
async def test_a_bad_frame_from_a_door_ends_the_connection_and_not_the_work(tmp_path: Path, name: str) -> None:
    """GRID-195, section 26.1: logged, closed, connected again; the program runs on."""
    executor = PretendedExecutor()
    async with open_door() as door, a_worker(tmp_path, door, executor=executor):
        visitor = await door.welcomed()
        job = an_assignment()
        visitor.assign(job)
        program = await executor.begun()
        visitor.writer.write(BAD[name](visitor))
        again = await door.welcomed(1)
        await visitor.gone()
        program.end()
        assert (await again.result(job)).token == job.token
        assert len(executor.programs) == 1


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        (Type.SUBMIT_ACK, b"{}"),
        (Type.RESULT, b"{}"),
        (Type.HELLO_ACK, b"{}"),
        (0x7F, b""),
        (Type.OBJECT_ACK, b"{}"),
        (Type.OBJECT_CHUNK, b"{}"),
        (Type.HEARTBEAT, b"anything"),
    ],
)
async def test_a_frame_that_is_not_for_a_worker_is_dropped(tmp_path: Path, kind: int, payload: bytes) -> None:
    """GRID-26: an answer that matches nothing; and what a newer door may say."""
    executor = PretendedExecutor(ends_at_once=True)
    async with open_door() as door, a_worker(tmp_path, door, executor=executor):
        visitor = await door.welcomed()
        assert visitor.wire.send_soon(Frame(kind, payload, uuid4(), NIL))
        job = an_assignment()
        visitor.assign(job)
        await visitor.result(job)
        assert not visitor.is_gone


@pytest.mark.parametrize(
    "answer",
    [b"\xff\xff\xff\xff", encode(Frame(Type.HELLO_ACK, b"{}", uuid4()))],
    ids=["no frame", "no members"],
)
async def test_nonsense_instead_of_a_welcome_is_tried_again(tmp_path: Path, answer: bytes) -> None:
    """GRID-195"""
    async with open_door() as door, a_worker(tmp_path, door):
        (await door.visitor()).writer.write(answer)
        await door.welcomed(1)


async def test_an_error_about_a_result_sends_it_again_when_the_door_says(tmp_path: Path) -> None:
    """GRID-109, section 26.2: UNAVAILABLE after a second, and not after half a minute."""
    executor = PretendedExecutor(ends_at_once=True)
    async with open_door() as door, a_worker(tmp_path, door, executor=executor) as worker:
        visitor = await door.welcomed()
        job = an_assignment()
        visitor.assign(job)
        await visitor.result(job)
        await eventually(lambda: visitor.credit == 3)
        refused = ErrorMessage(
            code=Code.UNAVAILABLE, message="no quorum", job_id=job.job_id, retry=True, retry_after_ms=0
        )
        visitor.say(Type.ERROR, refused.to_payload(), corr_id=visitor.of(Type.ACK_JOB)[0].msg_id)
        await visitor.heard(Type.ACK_JOB, 2)
        assert len(worker.spool.due()) == 1


def an_authority(folder: Path) -> Authority:
    folder.mkdir()
    return Authority(folder)


def serving(chain: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(chain)
    return context


async def test_tls_is_spoken_with_a_door_of_the_right_name_and_authority_alone(tmp_path: Path) -> None:
    """GRID-45, GRID-166: also when a door sends the worker on; the wrong ones hear nothing of it."""
    right, wrong = an_authority(tmp_path / "right"), an_authority(tmp_path / "wrong")
    async with (
        open_door(serving(wrong.chain("127.0.0.1"))) as stranger,
        open_door(serving(right.chain("elsewhere.example"))) as misnamed,
        open_door(serving(right.chain("127.0.0.1"))) as draining,
        open_door(serving(right.chain("127.0.0.1"))) as good,
        a_worker(
            tmp_path / "jobs",
            stranger,
            misnamed,
            draining,
            executor=PretendedExecutor(ends_at_once=True),
            tls=client_context(ca=str(right.ca_file)),
        ),
    ):
        visitor = await draining.welcomed()
        visitor.send_away(stranger.address, doors=(stranger.address, good.address))
        arriving = await good.welcomed()
        await visitor.gone()
        job = an_assignment()
        arriving.assign(job)
        await arriving.result(job)
        assert stranger.visitors == misnamed.visitors == []


async def test_a_plain_worker_at_a_door_with_tls_goes_on_trying(tmp_path: Path) -> None:
    """GRID-166, GRID-195"""
    authority = an_authority(tmp_path / "ca")
    async with (
        open_door(serving(authority.chain("127.0.0.1"))) as door,
        open_door() as plain,
        a_worker(tmp_path / "jobs", door, plain),
    ):
        await plain.welcomed()
        assert door.visitors == []
