"""`pyoco-grid worker` as a process: its first line, its exit codes, and what is left when it is killed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from pyoco_server.core.frames.codec import Type
from pyoco_server.core.frames.messages import ErrorMessage
from pyoco_server.core.programs.faults import Code, GridRefused
from pyoco_server.core.programs.report import ErrorCode
from pyoco_server.core.states import RunState
from pyoco_server.doors.cli.grid import cli
from pyoco_server.doors.cli.shell import outcome
from support.grid.scripted_door import ScriptedDoor, an_assignment, open_door
from support.timers import timers
from support.waiting import eventually

PROGRAMS = {
    # Writes down that it was started, and waits until a file lets it go.
    "once.sh": 'echo "$$" >> "$SIDE"; while [ ! -e "$GATE" ]; do sleep 0.05; done; echo ended; echo made > made.txt',
    # Three processes that would live for ten minutes.
    "family.sh": 'for i in 1 2; do sleep 600 & echo $! >> "$SIDE"; done; echo $$ >> "$SIDE"; wait; wait',
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "exe").mkdir()
    for name, text in PROGRAMS.items():
        (tmp_path / "exe" / name).write_text(text + "\n")
    return tmp_path


def peer(folder: Path) -> list[int]:
    path = folder / "side"
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def is_alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


class Process:
    """A worker. `lines` are what it has said so far."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.lines: list[str] = []
        self.reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            self.lines.append(line.decode())

    def tell(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def end(self) -> int:
        async with asyncio.timeout(120):
            code = await self.process.wait()
            await self.reading
        return code


@contextlib.asynccontextmanager
async def a_process(folder: Path, door: ScriptedDoor, *options: str) -> AsyncIterator[Process]:
    variables = {
        "PATH": os.environ["PATH"],
        "EXEC_DIR": str(folder / "exe"),
        "WORK_ROOT": str(folder / "jobs"),
        **timers(worker_heartbeat_sec=0.2),
        "WORKER_ENV_PASS": "SIDE,GATE",
        "SIDE": str(folder / "side"),
        "GATE": str(folder / "gate"),
        "PYOCO_API_KEY": "pyoco_0123456789abcdef_secretsecret",
        **{name: text for name, text in os.environ.items() if name in {"PYTHONPATH", "COVERAGE_PROCESS_START"}},
    }
    command = ["-m", "pyoco_server.doors.cli.grid", "worker", "127.0.0.1", str(door.port), "--id", "w1", *options]
    process = Process(
        await asyncio.create_subprocess_exec(
            sys.executable,
            *command,
            env=variables,
            cwd=folder,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.process.kill()
        await process.end()


async def test_ten_times_the_same_job_is_one_start_and_a_drain_ends_with_zero(folder: Path) -> None:
    """GRID-107, GRID-113, GRID-169, GRID-190, P19"""
    async with open_door() as door, a_process(folder, door) as process:
        visitor = await door.welcomed()
        assert visitor.hello is not None
        assert visitor.hello.token == "pyoco_0123456789abcdef_secretsecret"
        job = an_assignment("once", args=("private-argument",))
        for _ in range(10):
            visitor.assign(job)
        await eventually(lambda: len(peer(folder)) == 1)
        await eventually(lambda: visitor.credit == 4 + 9)
        process.tell(signal.SIGTERM)
        (folder / "gate").touch()
        result = await visitor.result(job)
        assert (result.status, result.stdout) == (RunState.COMPLETED, "ended\n")
        assert result.output_archive is not None
        visitor.settle(visitor.of(Type.ACK_JOB)[0])
        assert await process.end() == 0
        assert len(peer(folder)) == 1
        assert visitor.credit == 4 + 9
        assert f"READY worker {door.address}\n" in process.lines
        said = "".join(process.lines)
        assert "secretsecret" not in said
        assert "private-argument" not in said
        assert job.token not in said
        assert list((folder / "jobs").glob("*-*-*-*-*")) == []


async def test_a_killed_worker_leaves_no_process_and_its_successor_sends_what_it_had(folder: Path) -> None:
    """GRID-95, GRID-98, GRID-109, P10: kill -9, whole families, and an id that comes back."""
    (folder / "gate").touch()
    async with open_door() as door:
        async with a_process(folder, door) as process:
            visitor = await door.welcomed()
            done, lost = an_assignment("once"), an_assignment("family")
            visitor.assign(done)
            await visitor.result(done)
            visitor.assign(lost)
            await eventually(lambda: len(peer(folder)) == 4)
            assert all(map(is_alive, peer(folder)[1:]))
            process.tell(signal.SIGKILL)
            await process.end()
        await eventually(lambda: not any(map(is_alive, peer(folder))), seconds=10)
        async with a_process(folder, door, "--max-par", "1") as process:
            again = await door.welcomed(1)
            assert (await again.result(done)).token == done.token
            await again.heard(Type.CREDIT)
            assert (again.running(), again.credit) == (set(), 1)
            new = an_assignment("family", job_id=lost.job_id, attempt=2)
            again.assign(new)
            await eventually(lambda: len(peer(folder)) == 7)
            again.cancel(new)
            result = await again.result(new)
            assert (result.status, result.error_code) == (RunState.CANCELLED, ErrorCode.CANCELLED)
            assert not any(map(is_alive, peer(folder)))
            process.tell(signal.SIGINT)
            again.settle(again.of(Type.ACK_JOB)[0])
            again.settle(again.of(Type.ACK_JOB)[1])
            assert await process.end() == 130


async def test_a_second_signal_ends_what_runs_at_once(folder: Path) -> None:
    """GRID-113, section 25.3"""
    async with open_door() as door, a_process(folder, door) as process:
        visitor = await door.welcomed()
        visitor.assign(an_assignment("family"))
        await eventually(lambda: len(peer(folder)) == 3)
        process.tell(signal.SIGINT)
        await eventually(lambda: any("worker stopping" in line for line in process.lines))
        process.tell(signal.SIGINT)
        assert await process.end() == 130
        assert visitor.results() == []
        assert not any(map(is_alive, peer(folder)))


async def test_a_worker_that_is_refused_says_why_and_ends_with_one(folder: Path) -> None:
    """GRID-167, section 25.3; and a program that is not there, or may not be run, is a result."""
    async with open_door() as door, a_process(folder, door) as process:
        visitor = await door.visitor()
        error = ErrorMessage.of(GridRefused(Code.UNAUTHENTICATED, "the API key does not open this door"))
        visitor.say(Type.ERROR, error.to_payload())
        assert await process.end() == 1
        assert "UNAUTHENTICATED" in process.lines[-2]
        assert process.lines[-1].startswith("example: pyoco-grid worker")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["127.0.0.1"], "PORT"),
        (["127.0.0.1", "port"], "PORT"),
        (["127.0.0.1", "0"], "PORT"),
        (["127.0.0.1", "5000", "job..x"], "job..x"),
        (["127.0.0.1", "5000", "job.assign.a*"], "job.assign.a*"),
        (["127.0.0.1", "5000", *["job.assign.a"] * 33], "32"),
        (["127.0.0.1", "5000", "--id", "a b"], "--id"),
        (["127.0.0.1", "5000", "--door", "nowhere"], "nowhere"),
        (["127.0.0.1", "5000", "--max-par", "0"], "--max-par"),
        (["127.0.0.1", "5000", "--max-par", "many"], "--max-par"),
        (["127.0.0.1", "5000", "--tls-cert", "x.crt"], "--tls-key"),
        (["127.0.0.1", "5000", "--tls-ca", "/nowhere/ca.crt"], "--tls-ca"),
        (["127.0.0.1", "5000", "--exec-dir", "/nowhere/exe"], "/nowhere/exe"),
    ],
)
def test_a_command_line_that_cannot_be_obeyed_says_what_is_wrong(
    arguments: Sequence[str], expected: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """GRID-190: exit code 1, and one correct example."""
    assert outcome(cli, "pyoco-grid", ["worker", *arguments, "--work-root", str(tmp_path / "jobs")]) == 1
    said = capsys.readouterr().err
    assert expected in said
    assert "example:" in said


@pytest.mark.parametrize("variable", ["WORKER_MAX_PAR", "WORKER_DRAIN_SEC", "WORKER_SPOOL_MAX_BYTES"])
def test_a_bad_variable_stops_the_command_and_is_named(
    variable: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """GRID-193"""
    monkeypatch.setenv(variable, "many")
    assert outcome(cli, "pyoco-grid", ["worker", "127.0.0.1", "5000"]) == 1
    assert variable in capsys.readouterr().err
