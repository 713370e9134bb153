"""Results on disk: what a crash leaves, what damage does, what a full disk does."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest

from pyoco_server.core.programs.report import ErrorCode, Report
from pyoco_server.core.states import RunState
from pyoco_server.loops.tcp_worker.finished import Damaged, FinishedArchive, FinishedJob, decode, encode
from pyoco_server.loops.tcp_worker.spool import Spool

MIB = 1024 * 1024


def a_result(
    *, stdout: bytes = b"out", archive: FinishedArchive | None = None, job_id: str = "", code: ErrorCode | None = None
) -> FinishedJob:
    return FinishedJob(
        job_id=job_id or str(uuid4()),
        run_id=str(uuid4()),
        client_id="clientA",
        exec_name="calcA",
        attempt=1,
        token=str(uuid4()),
        report=Report(
            status=RunState.FAILED if code else RunState.COMPLETED,
            exit_code=None if code else 0,
            error_code=code,
            stdout=stdout,
            stderr=b"err\xff\x00",
            stdout_truncated=True,
            started_at=1.5,
            ended_at=2.5,
            run_seconds=1.0,
        ),
        archive=archive,
    )


def an_archive(folder: Path, data: bytes = b"PK zip") -> FinishedArchive:
    path = folder / f"{uuid4()}.zip"
    path.write_bytes(data)
    return FinishedArchive(path, len(data), hashlib.sha256(data).hexdigest())


@pytest.fixture
async def spool(tmp_path: Path) -> AsyncIterator[Spool]:
    spool = Spool(tmp_path / "spool", 10 * MIB)
    await spool.load()
    yield spool
    await spool.close()


async def reopened(folder: Path) -> Spool:
    spool = Spool(folder / "spool", 10 * MIB)
    await spool.load()
    return spool


def has_room(spool: Spool) -> bool:
    """A call: a type checker takes a property that was false once to be false for ever."""
    return spool.has_room


def names_in(folder: Path) -> list[str]:
    return sorted(path.suffix for path in (folder / "spool").iterdir())


@pytest.mark.parametrize(
    "stdout", [b"", b"plain\n", b"\x00\xff\n\n", bytes(range(256)) * 300], ids=["empty", "a line", "odd bytes", "many"]
)
def test_a_result_survives_its_encoding(tmp_path: Path, stdout: bytes) -> None:
    """GRID-109"""
    archive = FinishedArchive(tmp_path / "x.zip", 7, "0" * 64)
    for result in (a_result(stdout=stdout, archive=archive), a_result(code=ErrorCode.RUN_TIMEOUT)):
        assert decode(encode(result), tmp_path / "x.zip") == result


def test_every_changed_byte_is_noticed(tmp_path: Path) -> None:
    """GRID-109"""
    data = encode(a_result(stdout=b"a"))
    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] ^= 1
        with pytest.raises(Damaged):
            decode(bytes(changed), tmp_path)
        with pytest.raises(Damaged):
            decode(data[:place], tmp_path)


async def test_a_restarted_worker_finds_what_was_not_settled(spool: Spool, tmp_path: Path) -> None:
    """GRID-109"""
    first, second, third = a_result(archive=an_archive(tmp_path)), a_result(), a_result()
    kept = [(await spool.put(each))[0] for each in (first, second, third)]
    await spool.settle(kept[1])
    again = await reopened(tmp_path)
    assert [each.job_id for each in again.due()] == [first.job_id, third.job_id]
    read = await again.read(again.due()[0])
    assert read is not None
    assert read.archive is not None
    assert read.archive.path.read_bytes() == b"PK zip"
    assert replace(read, archive=None) == replace(first, archive=None)
    assert names_in(tmp_path) == [".result", ".result", ".zip"]
    await again.close()


async def test_a_settled_result_answers_again_until_it_is_forgotten(spool: Spool, tmp_path: Path) -> None:
    """GRID-107"""
    result = a_result(archive=an_archive(tmp_path))
    kept, _ = await spool.put(result)
    await spool.settle(kept)
    await spool.settle(kept)
    assert spool.due() == []
    assert spool.bytes_due == 0
    read = await spool.read(kept)
    assert read is not None
    assert read.report == result.report
    await spool.forget([result.job_id])
    assert spool.get(result.job_id) is None
    assert names_in(tmp_path) == []


async def test_a_newer_attempt_makes_a_result_due_again(spool: Spool, tmp_path: Path) -> None:
    """GRID-107: with the new token, on disk, too."""
    result = a_result(archive=an_archive(tmp_path))
    kept, _ = await spool.put(result)
    await spool.settle(kept)
    again = await spool.retoken(kept, "new", 2)
    assert again is not None
    await spool.settle(kept)  # the answer to the old one comes late, and means nothing
    assert [each.token for each in spool.due()] == ["new"]
    assert names_in(tmp_path) == [".result", ".zip"]
    loaded = await reopened(tmp_path)
    read = await loaded.read(loaded.due()[0])
    assert read is not None
    assert (read.token, read.attempt, read.report) == ("new", 2, result.report)
    assert names_in(tmp_path) == [".result", ".zip"]
    await loaded.close()


@pytest.mark.parametrize("what", ["settle", "forget"])
async def test_an_old_answer_does_not_touch_what_is_being_written(spool: Spool, tmp_path: Path, what: str) -> None:
    """GRID-109: it comes while the newer one is on its way to the disk, and both have one name there."""
    old, _ = await spool.put(a_result())
    writing = asyncio.create_task(spool.put(a_result(job_id=old.job_id, archive=an_archive(tmp_path))))
    await asyncio.sleep(0)  # it has begun
    await (spool.settle(old) if what == "settle" else spool.forget([old.job_id]))
    new, _ = await writing
    assert spool.due() == [new]
    assert names_in(tmp_path) == [".result", ".zip"]
    assert await spool.read(new) is not None


async def test_a_new_result_takes_the_place_of_the_old_one(spool: Spool, tmp_path: Path) -> None:
    """GRID-109: a fault of the worker, then an attempt that worked, and an archive that is no longer there."""
    old = a_result(archive=an_archive(tmp_path), code=ErrorCode.WORKER_ERROR)
    await spool.put(old)
    await spool.put(a_result(job_id=old.job_id))
    assert len(spool.due()) == 1
    assert names_in(tmp_path) == [".result"]
    assert 0 < spool.bytes_due < 1_000


async def test_what_is_damaged_is_set_aside_and_the_rest_is_loaded(
    spool: Spool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """GRID-109: cut off, changed, without its archive, with a shorter one, of another job."""
    results = [a_result(archive=an_archive(tmp_path) if number in {2, 3} else None) for number in range(6)]
    for each in results:
        await spool.put(each)
    folder = tmp_path / "spool"
    paths = [folder / f"{each.job_id}.result" for each in results]
    paths[0].write_bytes(paths[0].read_bytes()[:-1])
    paths[1].write_bytes(b"")
    paths[2].with_suffix(".zip").unlink()
    paths[3].with_suffix(".zip").write_bytes(b"PK")
    paths[4].replace(folder / f"{uuid4()}.result")
    again = await reopened(tmp_path)
    assert [each.job_id for each in again.due()] == [results[5].job_id]
    assert names_in(tmp_path).count(".damaged") == 6
    assert sum("set aside" in record.message for record in caplog.records) == 5
    await again.close()


async def test_what_a_crash_left_half_written_is_cleared(spool: Spool, tmp_path: Path) -> None:
    """GRID-109: an archive without its result, a result that was not renamed, one that was settled."""
    kept, _ = await spool.put(a_result(archive=an_archive(tmp_path)))
    folder = tmp_path / "spool"
    (folder / f"{uuid4()}.zip").write_bytes(b"PK")
    (folder / f"{uuid4()}.part").write_bytes(b"half")
    (folder / f"{uuid4()}.done").write_bytes(b"done")
    again = await reopened(tmp_path)
    assert [each.job_id for each in again.due()] == [kept.job_id]
    assert names_in(tmp_path) == [".result", ".zip"]
    await again.close()


async def test_a_result_is_forced_to_disk_before_it_has_its_name(
    spool: Spool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GRID-109"""
    steps: list[str] = []
    force, rename = os.fsync, Path.replace

    def forced(handle: int) -> None:
        steps.append("force " + Path(f"/proc/self/fd/{handle}").readlink().suffix)
        force(handle)

    def renamed(path: Path, target: Path) -> Path:
        steps.append("rename " + Path(target).suffix)
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", forced)
    monkeypatch.setattr(Path, "replace", renamed)
    await spool.put(a_result(archive=an_archive(tmp_path)))
    assert steps == ["force .zip", "rename .zip", "force .part", "rename .result"]


async def test_a_full_disk_keeps_the_result_in_memory_and_asks_for_no_more(
    spool: Spool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GRID-109, GRID-195"""

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    archive = an_archive(tmp_path)
    result = a_result(archive=archive)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        kept, placed = await spool.put(result)
    assert not has_room(spool)
    assert placed.archive == archive
    assert await spool.read(kept) == result
    await spool.settle(kept)
    assert has_room(spool)
    assert spool.get(result.job_id) is None
    assert not archive.path.exists()


async def test_the_limit_counts_what_is_due_and_settled_ones_make_room(tmp_path: Path) -> None:
    """GRID-109"""
    spool = Spool(tmp_path / "spool", 3 * MIB)
    await spool.load()
    kept = [(await spool.put(a_result(stdout=bytes(MIB))))[0] for _ in range(4)]
    assert not has_room(spool)
    await spool.settle(kept[0])
    assert not has_room(spool)  # three, and a few bytes
    assert spool.surplus() == [kept[0].job_id]
    await spool.settle(kept[1])
    assert has_room(spool)
    assert spool.surplus() == [kept[0].job_id, kept[1].job_id]
    await spool.forget(spool.surplus())
    assert spool.surplus() == []
    await spool.close()
