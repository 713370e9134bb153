"""The result that a client gets: complete if it fits into a frame, otherwise with the place of the rest."""

from __future__ import annotations

import hashlib
import random
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from pyoco_server.actions.programs.finish import Output, finish_job
from pyoco_server.actions.programs.reach import programs_of
from pyoco_server.actions.programs.result import job_result, open_artifact
from pyoco_server.core.frames.codec import LENGTH_MAX
from pyoco_server.core.programs.moves import program_of
from pyoco_server.core.programs.report import ErrorCode, Report
from pyoco_server.core.run import Run
from pyoco_server.core.states import RunState
from pyoco_server.errors import ArtifactExpired, Corrupt, ObjectNotFound
from pyoco_server.ports.backend import Backend
from support.grid.acts import DONE, FAILED, claimed, job_submitted, run_of


async def pieces(data: bytes) -> AsyncIterator[bytes]:
    for begin in range(0, len(data), 65_536):
        yield data[begin : begin + 65_536]


def output(name: str, data: bytes) -> Output:
    return Output(name, len(data), hashlib.sha256(data).hexdigest(), lambda: pieces(data))


async def ended(backend: Backend, report: Report = DONE, *outputs: Output) -> Run:
    run = (await job_submitted(backend)).run
    await finish_job(backend, await claimed(backend, run), report, outputs)
    return await run_of(backend, run.run_id)


def noise(size: int) -> bytes:
    return random.Random(size).randbytes(size)


async def test_a_small_result_is_whole(grid: Backend) -> None:
    """GRID-51, GRID-143"""
    run = await ended(grid, FAILED, output("output.zip", b"zip"))
    result = await job_result(grid, run)
    program = program_of(run)
    assert (result.job_id, result.client_id, result.exec_name) == (program.job_id, "clientA", "calcA")
    assert (result.status, result.exit_code, result.error_code) == (RunState.FAILED, 3, ErrorCode.EXIT_NONZERO)
    assert (result.error, result.output_archive, result.output_ref) == ("exit code 3", b"zip", None)
    assert (result.run_id, result.attempt, result.worker_id) == (run.run_id, 1, "w1")
    assert (result.started_at, result.ended_at, result.token) == (run.start_time, run.end_time, None)
    assert not result.stdout_truncated


async def test_what_was_printed_at_length_is_brought_along(grid: Backend) -> None:
    """GRID-145"""
    text = "日本語\n" * 5000
    result = await job_result(grid, await ended(grid, replace(DONE, stdout=text.encode(), stderr=b"short")))
    assert (result.stdout, result.stderr, result.stdout_truncated) == (text, "short", False)


async def test_an_archive_that_does_not_fit_is_named(grid: Backend) -> None:
    """GRID-143"""
    data = noise(3 * 2**20 + 60_000)
    run = await ended(grid, DONE, output("output.zip", data))
    result = await job_result(grid, run)
    assert result.output_archive is None
    assert result.output_ref is not None
    assert (result.output_ref.object, result.output_ref.size) == (f"{run.run_id}/a1/output.zip", len(data))
    assert result.output_ref.sha256 == hashlib.sha256(data).hexdigest()
    assert result.output_ref.href == f"/runs/{run.run_id}/artifacts"
    assert result.output_ref.bucket == "pyoco_artifacts"


async def test_any_result_fits_into_a_frame(grid: Backend) -> None:
    """GRID-21, GRID-143: control characters take six bytes each in JSON"""
    report = replace(DONE, stdout=b"\x01" * 2**20, stderr=b"\x02" * 2**20)
    result = await job_result(grid, await ended(grid, report, output("output.zip", noise(3_000_000))))
    assert len(result.to_payload()) < LENGTH_MAX - 200
    assert (result.stdout_truncated, result.stderr_truncated) == (True, True)
    assert result.output_ref is not None


class TestArtifacts:
    async def test_one_is_read_as_it_was(self, grid: Backend) -> None:
        data = noise(300_000)
        run = await ended(grid, DONE, output("output.zip", data))
        artifact, chunks = await open_artifact(grid, run, "output.zip")
        assert (artifact.size, b"".join([chunk async for chunk in chunks])) == (len(data), data)

    async def test_one_that_never_was_is_not_found(self, grid: Backend) -> None:
        with pytest.raises(ObjectNotFound):
            await open_artifact(grid, await ended(grid), "output.zip")

    async def test_one_that_expired_says_so_and_the_result_does_without(self, grid: Backend) -> None:
        """GRID-149"""
        run = await ended(grid, replace(DONE, stdout=b"x" * 9000 + b"end"), output("output.zip", b"zip"))
        for artifact in program_of(run).artifacts:
            await programs_of(grid).artifacts.delete(artifact.object)
        with pytest.raises(ArtifactExpired):
            await open_artifact(grid, run, "output.zip")
        result = await job_result(grid, run)
        assert (result.output_archive, result.stdout_truncated) == (None, True)
        assert result.stdout.endswith("xend")
        assert len(result.stdout) == 8192

    async def test_one_that_was_replaced_is_not_shown(self, grid: Backend) -> None:
        run = await ended(grid, DONE, output("output.zip", b"zip"))
        await programs_of(grid).artifacts.put(f"{run.run_id}/a1/output.zip", pieces(b"other"), 100)
        with pytest.raises(Corrupt):
            await open_artifact(grid, run, "output.zip")
        assert (await job_result(grid, run)).output_archive is None
