"""Output archives that a TCP worker sends in its report or uploads in parts."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from pyoco_server.core.frames.codec import LENGTH_MAX, Type
from pyoco_server.core.frames.messages import BinaryPart, ErrorMessage, Settled
from pyoco_server.core.programs.faults import Code, GridRefused
from pyoco_server.core.programs.report import Report
from pyoco_server.core.states import RunState
from support.grid.pretended_programs import PretendedExecutor, an_archive_file
from support.grid.scripted_door import an_assignment, open_door
from support.grid.worker_scenes import a_worker
from support.waiting import eventually

KIB, MIB = 1024, 1024 * 1024


def completed(stdout: bytes = b"", stderr: bytes = b"") -> Report:
    return Report(status=RunState.COMPLETED, exit_code=0, stdout=stdout, stderr=stderr)


@pytest.mark.parametrize("size", [0, 1 * KIB, 3_145_000])
async def test_an_archive_that_fits_travels_in_the_frame(tmp_path: Path, size: int) -> None:
    """GRID-143: the largest of these is just under what fits."""
    executor, data = PretendedExecutor(), os.urandom(size)
    async with open_door() as door, a_worker(tmp_path / "root", door, executor=executor):
        visitor = await door.welcomed()
        job = an_assignment()
        visitor.assign(job)
        (await executor.begun()).end(completed(b"out"), an_archive_file(tmp_path, data))
        result = await visitor.result(job)
        assert (result.output_archive, result.output_ref, result.stdout) == (data, None, "out")
        assert visitor.of(Type.OBJECT_PUT) == []
        assert len(visitor.of(Type.ACK_JOB)[0].payload) < LENGTH_MAX


@pytest.mark.parametrize("size", [3_145_700, 20 * MIB])
async def test_an_archive_that_does_not_fit_goes_ahead_in_parts(tmp_path: Path, size: int) -> None:
    """GRID-143, GRID-144: just over, and many parts; the rest of the result stays whole."""
    executor, data = PretendedExecutor(), os.urandom(size)
    async with open_door() as door, a_worker(tmp_path / "root", door, executor=executor) as worker:
        visitor = await door.welcomed()
        job = an_assignment()
        frame = visitor.assign(job)
        (await executor.begun()).end(completed(b"out"), an_archive_file(tmp_path, data))
        result = await visitor.result(job)
        assert visitor.uploads == {(job.job_id, "output.zip"): data}
        assert result.output_archive is None
        assert result.output_ref is not None
        assert (result.output_ref.size, result.output_ref.sha256) == (size, hashlib.sha256(data).hexdigest())
        assert result.output_ref.object == f"{job.job_id}/a1/output.zip"
        assert result.output_ref.href == f"/runs/{job.run_id}/artifacts"
        assert (result.stdout, result.stdout_truncated) == ("out", False)
        parts = [BinaryPart.read(each.payload) for each in visitor.of(Type.OBJECT_PUT)]
        assert all(part.token == job.token and len(part.data) <= MIB for part in parts)
        assert {each.corr_id for each in visitor.of(Type.OBJECT_PUT)} == {frame.msg_id}
        visitor.settle(visitor.of(Type.ACK_JOB)[0])
        await eventually(lambda: not worker.spool.due())


async def test_no_more_than_four_parts_are_unanswered(tmp_path: Path) -> None:
    """GRID-144; and the job stays listed while it is sent."""
    executor, data = PretendedExecutor(), bytes(9 * MIB)
    async with open_door() as door, a_worker(tmp_path / "root", door, executor=executor):
        visitor = await door.welcomed()
        visitor.acknowledges = False
        job = an_assignment()
        visitor.assign(job)
        (await executor.begun()).end(completed(), an_archive_file(tmp_path, data))
        for expected in (1, 5):  # the first part alone, then four at a time
            await visitor.heard(Type.OBJECT_PUT, expected)
            beats = len(visitor.of(Type.HEARTBEAT))
            await visitor.heard(Type.HEARTBEAT, beats + 2)
            assert len(visitor.of(Type.OBJECT_PUT)) == expected
            assert visitor.running() == {(job.job_id, job.token)}
            assert visitor.of(Type.ACK_JOB) == []
            if expected == 1:
                visitor.acknowledge(visitor.of(Type.OBJECT_PUT)[0])
        for number in range(1, 9):
            visitor.acknowledge((await visitor.heard(Type.OBJECT_PUT, number + 1))[number])
        await visitor.result(job)
        assert visitor.unanswered_most == 4


async def test_a_newer_token_that_comes_during_an_upload_gets_its_own_report(tmp_path: Path) -> None:
    """GRID-107: of the same result; and once it is reported, no heartbeat lists it."""
    executor, data = PretendedExecutor(), os.urandom(4 * MIB)
    async with open_door() as door, a_worker(tmp_path / "root", door, executor=executor):
        visitor = await door.welcomed()
        visitor.acknowledges = False
        old = an_assignment()
        visitor.assign(old)
        (await executor.begun()).end(completed(), an_archive_file(tmp_path, data))
        first = (await visitor.heard(Type.OBJECT_PUT))[0]
        new = an_assignment(job_id=old.job_id, attempt=2)
        visitor.assign(new)
        await eventually(lambda: visitor.running() == {(new.job_id, new.token)})
        visitor.acknowledges = True
        visitor.acknowledge(first)
        await visitor.heard(Type.ACK_JOB, 2)
        assert [each.token for each in visitor.results()] == [old.token, new.token]
        assert len(executor.programs) == 1
        other = an_assignment()
        visitor.assign(other)
        await eventually(lambda: visitor.running() == {(other.job_id, other.token)})


async def test_an_upload_that_the_door_refuses_begins_again(tmp_path: Path) -> None:
    """GRID-144: BAD_OBJECT"""
    executor, data = PretendedExecutor(), os.urandom(5 * MIB)
    async with open_door() as door, a_worker(tmp_path / "root", door, executor=executor):
        visitor = await door.welcomed()
        visitor.acknowledges = False
        job = an_assignment()
        visitor.assign(job)
        (await executor.begun()).end(completed(), an_archive_file(tmp_path, data))
        first = (await visitor.heard(Type.OBJECT_PUT))[0]
        visitor.acknowledges = True
        error = ErrorMessage.of(GridRefused(Code.BAD_OBJECT, "no", job_id=job.job_id))
        visitor.say(Type.ERROR, error.to_payload(), corr_id=first.msg_id)
        await visitor.result(job)
        offsets = [BinaryPart.read(each.payload).offset // MIB for each in visitor.of(Type.OBJECT_PUT)]
        assert offsets == [0, 0, 1, 2, 3, 4]
        assert visitor.uploads[job.job_id, "output.zip"] == data


async def test_an_archive_is_sent_again_at_the_next_door_and_its_job_is_listed_there(tmp_path: Path) -> None:
    """GRID-109, GRID-110, GRID-144: before the first part, the list says that the attempt lives."""
    executor, data = PretendedExecutor(), os.urandom(6 * MIB)
    async with open_door() as door, a_worker(tmp_path / "root", door, executor=executor):
        visitor = await door.welcomed()
        visitor.acknowledges = False
        job = an_assignment()
        visitor.assign(job)
        (await executor.begun()).end(completed(), an_archive_file(tmp_path, data))
        await visitor.heard(Type.OBJECT_PUT)
        visitor.cut()
        again = await door.welcomed(1)
        assert (job.job_id, job.token) in again.running()
        await again.result(job)
        assert again.uploads == {(job.job_id, "output.zip"): data}


async def test_an_archive_that_a_door_has_stored_is_not_sent_to_the_next_unless_it_asks(tmp_path: Path) -> None:
    """GRID-144, GRID-145: the objects are the group's, and a door that does not find one says BAD_OBJECT."""
    executor, data = PretendedExecutor(), os.urandom(4 * MIB)
    async with open_door() as door, a_worker(tmp_path / "root", door, executor=executor):
        visitor = await door.welcomed()
        job = an_assignment()
        visitor.assign(job)
        (await executor.begun()).end(completed(), an_archive_file(tmp_path, data))
        await visitor.result(job)
        visitor.cut()
        again = await door.welcomed(1)
        result = await again.result(job)
        assert (result.output_ref is not None, again.of(Type.OBJECT_PUT)) == (True, [])
        missing = ErrorMessage.of(GridRefused(Code.BAD_OBJECT, "not here", job_id=job.job_id))
        again.say(Type.ERROR, missing.to_payload(), corr_id=again.of(Type.ACK_JOB)[0].msg_id)
        await again.heard(Type.ACK_JOB, 2)
        assert again.uploads == {(job.job_id, "output.zip"): data}


@pytest.mark.parametrize(("code", "is_listed"), [(Code.UNAVAILABLE, True), (Code.FORBIDDEN, False)])
async def test_a_refused_upload_is_listed_as_long_as_it_may_work(tmp_path: Path, code: Code, is_listed: bool) -> None:
    """GRID-78, GRID-144: one that will never work lets its attempt time out, and the job is tried again."""
    executor, data = PretendedExecutor(), os.urandom(4 * MIB)
    async with open_door() as door, a_worker(tmp_path / "root", door, executor=executor):
        visitor = await door.welcomed()
        visitor.acknowledges = False
        job = an_assignment()
        visitor.assign(job)
        (await executor.begun()).end(completed(), an_archive_file(tmp_path, data))
        first = (await visitor.heard(Type.OBJECT_PUT))[0]
        error = ErrorMessage.of(GridRefused(code, "no", job_id=job.job_id))
        visitor.say(Type.ERROR, error.to_payload(), corr_id=first.msg_id)
        await eventually(lambda: visitor.credit == 3)
        other = an_assignment()
        visitor.assign(other)
        await eventually(lambda: (other.job_id, other.token) in visitor.running())
        assert ((job.job_id, job.token) in visitor.running()) == is_listed
        if is_listed:
            visitor.acknowledges = True
            await visitor.result(job)


async def test_an_upload_of_a_result_that_is_settled_meanwhile_is_given_up(tmp_path: Path) -> None:
    """GRID-144: a door that does not want it says so once."""
    executor, data = PretendedExecutor(), os.urandom(4 * MIB)
    async with open_door() as door, a_worker(tmp_path / "root", door, executor=executor) as worker:
        visitor = await door.welcomed()
        visitor.acknowledges = False
        job = an_assignment()
        visitor.assign(job)
        (await executor.begun()).end(completed(), an_archive_file(tmp_path, data))
        first = (await visitor.heard(Type.OBJECT_PUT))[0]
        settled = Settled(job_id=job.job_id, token=job.token, outcome="stale")
        visitor.say(Type.SETTLED, settled.to_payload(), corr_id=first.msg_id)
        await eventually(lambda: not worker.spool.due())
        error = ErrorMessage.of(GridRefused(Code.BAD_OBJECT, "another attempt", job_id=job.job_id))
        visitor.say(Type.ERROR, error.to_payload(), corr_id=first.msg_id)
        await eventually(lambda: visitor.credit == 3)
        assert len(visitor.of(Type.OBJECT_PUT)) == 1
        assert visitor.of(Type.ACK_JOB) == []


async def test_a_settled_archive_answers_a_repeated_assignment(tmp_path: Path) -> None:
    """GRID-107: all of it again."""
    executor, data = PretendedExecutor(), os.urandom(4 * MIB)
    async with open_door() as door, a_worker(tmp_path / "root", door, executor=executor) as worker:
        visitor = await door.welcomed()
        visitor.settles_all = True
        job = an_assignment()
        visitor.assign(job)
        (await executor.begun()).end(completed(), an_archive_file(tmp_path, data))
        await visitor.heard(Type.ACK_JOB)
        await eventually(lambda: not worker.spool.due())
        visitor.uploads.clear()
        new = an_assignment(job_id=job.job_id, attempt=2)
        visitor.assign(new)
        await visitor.heard(Type.ACK_JOB, 2)
        assert visitor.results()[1].token == new.token
        assert visitor.uploads == {(job.job_id, "output.zip"): data}
        assert len(executor.programs) == 1


ESCAPED = bytes([1])  # six bytes in JSON


@pytest.mark.parametrize(
    ("stdout", "stderr", "cut"),
    [
        (b"a" * MIB, b"b" * MIB, ()),
        (ESCAPED * MIB, b"few", ("stdout.txt",)),
        (b"few", ESCAPED * MIB, ("stderr.txt",)),
        (ESCAPED * MIB, b"\xff" * MIB, ("stdout.txt", "stderr.txt")),
    ],
    ids=["none", "stdout", "stderr", "both"],
)
async def test_outputs_that_do_not_fit_are_cut_and_sent_whole_beside(
    tmp_path: Path, stdout: bytes, stderr: bytes, cut: tuple[str, ...]
) -> None:
    """GRID-143, GRID-144: the last 64 KiB of each, and the flags."""
    executor = PretendedExecutor()
    async with open_door() as door, a_worker(tmp_path / "root", door, executor=executor):
        visitor = await door.welcomed()
        job = an_assignment()
        visitor.assign(job)
        (await executor.begun()).end(completed(stdout, stderr), an_archive_file(tmp_path, b"PK"))
        result = await visitor.result(job)
        expected = {"stdout.txt": stdout, "stderr.txt": stderr}
        outputs = {name: data for (_, name), data in visitor.uploads.items() if name != "output.zip"}
        assert outputs == {name: expected[name] for name in cut}
        assert result.stdout_truncated == ("stdout.txt" in cut)
        assert result.stderr_truncated == ("stderr.txt" in cut)
        for name, text in (("stdout.txt", result.stdout), ("stderr.txt", result.stderr)):
            whole = expected[name].decode("utf-8", "replace")
            assert text == whole if name not in cut else (whole.endswith(text) and len(text.encode()) <= 64 * KIB)
        if cut:  # the archive went first
            assert result.output_ref is not None
            assert bytes(visitor.uploads[job.job_id, "output.zip"]) == b"PK"


async def test_a_damaged_archive_is_set_aside_and_the_worker_goes_on(tmp_path: Path) -> None:
    """GRID-109: its job is tried again, because no worker lists it any more."""
    executor, data = PretendedExecutor(), os.urandom(5 * MIB)
    async with open_door() as door, a_worker(tmp_path / "root", door, executor=executor) as worker:
        visitor = await door.welcomed()
        archive = an_archive_file(tmp_path, data)
        archive.path.write_bytes(bytes(5 * MIB))
        visitor.assign(an_assignment())
        (await executor.begun()).end(completed(), archive)
        await eventually(lambda: visitor.credit == 3)
        assert worker.spool.due() == []
        assert visitor.of(Type.ACK_JOB) == []
        assert not visitor.is_gone
