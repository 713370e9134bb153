"""What the programs of a worker over TCP print, on its way to a door."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from pyoco_server.config.grid import GridConfig
from pyoco_server.core.frames.codec import Type
from pyoco_server.core.frames.messages import LOGS, LogChunk, LogCredit, LogOutcome
from pyoco_server.core.run_log.attempt_log import AttemptLog, Limits
from pyoco_server.core.run_log.batch import decode_batch
from pyoco_server.core.run_log.line import Line, Stream
from pyoco_server.core.run_log.reading import Assembly
from pyoco_server.executors.capture.port import Captured
from pyoco_server.executors.program.local import LocalPrograms
from pyoco_server.executors.program.settings import RunnerSettings
from pyoco_server.loops.log_sender import LogSender
from pyoco_server.loops.tcp_worker.log_chunks import DoorLines
from support.collected_lines import stored_lines
from support.grid.peers import ClientPeer, open_door
from support.grid.pretended_programs import PretendedExecutor
from support.grid.scripted_door import ScriptedDoor, Visitor, an_assignment
from support.grid.scripted_door import open_door as scripted_door
from support.grid.worker_scenes import a_worker
from support.waiting import eventually


class Scene:
    """A worker with pretended programs, whose lines a test prints."""

    def __init__(self, buffer_bytes: int = 2**20) -> None:
        self.lines, self.executor = DoorLines(), PretendedExecutor()
        self.sender = LogSender(self.lines, Limits(), 20, buffer_bytes, self.lines.is_up)

    @contextlib.asynccontextmanager
    async def working(self, root: Path, *doors: ScriptedDoor, **settings: Any) -> AsyncIterator[None]:
        async with a_worker(root, *doors, executor=self.executor, lines=self.lines, **settings):
            yield
            await self.sender.stop()

    def print(self, attempt: Captured, *texts: str, is_last: bool = True) -> None:
        """One batch for each text."""
        log = AttemptLog(Limits())
        for number, text in enumerate(texts, 1):
            log.feed(Stream.STDOUT, "exec", f"{text}\n".encode(), 1.0)
            if is_last and number == len(texts):
                log.finish(2.0)
            shipment = log.take(3.0)
            assert shipment is not None
            self.sender.collect(attempt, shipment)


def chunks(visitor: Visitor) -> list[LogChunk]:
    return [LogChunk.read(frame.payload) for frame in visitor.of(Type.LOG_CHUNK)]


def answer(visitor: Visitor, number: int, outcome: LogOutcome = LogOutcome.STORED) -> None:
    corr_id = visitor.of(Type.LOG_CHUNK)[number].msg_id
    visitor.say(Type.LOG_CREDIT, LogCredit(outcome).to_payload(), corr_id=corr_id)


def lines_in(*some: LogChunk) -> list[Line]:
    assembly = Assembly()
    return [line for each in some for line in assembly.add(1, decode_batch(each.shipment.payload), 5.0)]


async def test_unanswered_chunks_delay_neither_heartbeats_nor_results(tmp_path: Path) -> None:
    """LOG-5, LOG-30"""
    scene = Scene()
    async with scripted_door() as door, scene.working(tmp_path, door):
        visitor = await door.welcomed(log_credits=2)
        assert visitor.hello is not None
        assert visitor.hello.capabilities == (LOGS,)
        jobs = [an_assignment() for _ in range(2)]
        for job in jobs:
            visitor.assign(job)
        await scene.executor.begun(2)
        for job in jobs:
            scene.print(Captured(job.run_id, 1), "one", "two")
        await visitor.heard(Type.LOG_CHUNK, 2)
        beats = len(visitor.of(Type.HEARTBEAT))
        await visitor.heard(Type.HEARTBEAT, beats + 2)
        for program in scene.executor.programs:
            program.end()
        for job in jobs:
            await visitor.result(job)
        assert [(each.job_id, each.token) for each in chunks(visitor)] == [(job.job_id, job.token) for job in jobs]
        for number in range(4):
            await visitor.heard(Type.LOG_CHUNK, number + 1)
            answer(visitor, number)
    for job in jobs:
        own = [each for each in chunks(visitor) if each.job_id == job.job_id]
        assert [line.text for line in lines_in(*own)] == ["one", "two"]


async def test_without_a_door_lines_are_kept_within_a_bound_and_the_gap_is_marked(tmp_path: Path) -> None:
    """LOG-26, LOG-30: what the lost door has not answered is sent again"""
    scene = Scene(buffer_bytes=1500)
    async with scripted_door() as first, scripted_door() as second, scene.working(tmp_path, first, second):
        visitor = await first.welcomed(log_credits=2)
        job = an_assignment()
        visitor.assign(job)
        await scene.executor.begun()
        scene.print(Captured(job.run_id, 1), *(f"line {number}" for number in range(100)))
        await visitor.heard(Type.LOG_CHUNK)
        answer(visitor, 0)
        await visitor.heard(Type.LOG_CHUNK, 2)
        await first.stop()
        other = await second.welcomed(log_credits=1)
        number = 0
        while not any(each.shipment.is_last for each in chunks(other)):
            await other.heard(Type.LOG_CHUNK, number + 1)
            answer(other, number)
            number += 1
    lines = lines_in(chunks(visitor)[0], *chunks(other))
    gaps = [line.gap for line in lines if line.gap is not None]
    kept = [line.text for line in lines if line.gap is None]
    assert chunks(other)[0].shipment == chunks(visitor)[1].shipment
    assert (kept[-1], [gap.why for gap in gaps]) == ("line 99", ["buffer"])
    assert len(kept) < 20
    assert len(kept) + sum(gap.lines or 0 for gap in gaps) == 100


async def test_a_door_that_takes_them_later_gets_them_again_and_one_that_does_not_know_lines_gets_none(
    tmp_path: Path,
) -> None:
    """LOG-30"""
    scene = Scene()
    async with scripted_door() as door, scene.working(tmp_path, door):
        visitor = await door.welcomed(log_credits=2)
        job, other = an_assignment(), an_assignment()
        visitor.assign(job)
        await scene.executor.begun()
        scene.print(Captured(job.run_id, 1), "one")
        await visitor.heard(Type.LOG_CHUNK)
        answer(visitor, 0, LogOutcome.LATER)
        await visitor.heard(Type.LOG_CHUNK, 2)
        assert not scene.lines.is_up()
        answer(visitor, 1)
        await eventually(scene.lines.is_up)
        assert len({each.shipment.payload for each in chunks(visitor)}) == 1
        visitor.cut()
        older = await door.welcomed(1)
        older.assign(other)
        await scene.executor.begun(2)
        scene.print(Captured(other.run_id, 1), "nobody reads this")
        await eventually(lambda: not scene.sender._outboxes)
        assert chunks(older) == []


async def test_a_job_that_is_assigned_again_goes_on_with_the_new_token(tmp_path: Path) -> None:
    """GRID-107, LOG-30"""
    scene = Scene()
    async with scripted_door() as door, scene.working(tmp_path, door):
        visitor = await door.welcomed(log_credits=2)
        job = an_assignment()
        visitor.assign(job)
        await scene.executor.begun()
        visitor.assign(an_assignment(job_id=job.job_id, token="newer", attempt=2))
        await eventually(lambda: visitor.running() == {(job.job_id, "newer")})
        scene.print(Captured(job.run_id, 1), "one")
        await visitor.heard(Type.LOG_CHUNK)
        answer(visitor, 0)
        assert [each.token for each in chunks(visitor)] == ["newer"]


async def test_a_real_program_at_a_real_door(nats_url: str, tmp_path: Path) -> None:
    """LOG-1, LOG-3, LOG-30: its lines are stored while it runs"""
    programs, gate = tmp_path / "exe", tmp_path / "gate"
    programs.mkdir()
    (programs / "talks.sh").write_text(f"echo one; while [ ! -e {gate} ]; do sleep 0.01; done; echo two >&2\n")
    config = GridConfig(exec_dir=str(programs), work_root=str(tmp_path / "jobs"))
    lines = DoorLines()
    sender = LogSender(lines, Limits(), 20, 2**20, lines.is_up)
    executor = LocalPrograms(RunnerSettings.of(config, os.environ), os.environ, sender)
    async with (
        open_door(nats_url) as door,
        a_worker(tmp_path / "jobs", door, executor=executor, lines=lines),
        await ClientPeer.connect(door) as client,
    ):
        await client.hello()
        run_id = (await client.accepted(exec_name="talks")).run_id

        async def are_stored(*texts: str) -> bool:
            return [line.text for line in await stored_lines(door.backend, run_id)] == list(texts)

        await eventually(lambda: are_stored("one"))
        gate.touch()
        assert (await client.result()).stdout == "one\n"
        await eventually(lambda: are_stored("one", "two"))
        found = await stored_lines(door.backend, run_id)
    assert [(line.attempt, line.task, line.stream, line.text) for line in found] == [
        (1, "exec", "stdout", "one"),
        (1, "exec", "stderr", "two"),
    ]
