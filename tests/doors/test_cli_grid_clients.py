"""`pyoco-grid client` and `clientx` against a door in another thread: lines, files, exit codes."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import threading
import zipfile
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from pyoco_server.core.frames.codec import Frame, Type
from pyoco_server.core.frames.messages import JobResult
from pyoco_server.core.programs.faults import Code
from pyoco_server.core.programs.report import ErrorCode
from pyoco_server.core.states import RunState
from pyoco_server.doors.cli.grid import cli
from pyoco_server.doors.cli.shell import outcome
from support.grid.fake_door import FakeDoor, Talk
from support.priced.url_sites import Authority


class Doors:
    """Doors in a loop of their own, in a thread of its own: a command has its own loop, and wants the main thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._doors: list[FakeDoor] = []

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def open(self, name: str = "g", **start: Any) -> FakeDoor:
        door = FakeDoor(name)
        self._doors.append(door)
        self.do(door.start(**start))
        return door

    @contextmanager
    def running(self) -> Iterator[Doors]:
        self._thread.start()
        try:
            yield self
        finally:
            for door in self._doors:
                self.do(door.stop())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()


@pytest.fixture
def doors() -> Iterator[Doors]:
    with Doors().running() as doors:
        yield doors


@pytest.fixture
def door(doors: Doors) -> FakeDoor:
    return doors.open()


Run = Callable[..., tuple[int, list[dict[str, Any]], str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Exit code, lines of stdout, stderr."""
    for name in ("CLIENT_DESIRED_PAR", "CLIENTX_GRACE_SEC", "PYOCO_API_KEY"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: object) -> tuple[int, list[dict[str, Any]], str]:
        code = outcome(cli, "pyoco-grid", [str(each) for each in arguments])
        said = capsys.readouterr()
        return code, [json.loads(line) for line in said.out.splitlines()], said.err

    return run


def zipped(**files: bytes) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return target.getvalue()


def test_without_options_three_sample_jobs_are_run(door: FakeDoor, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """GRID-120"""
    monkeypatch.setenv("PYOCO_API_KEY", "pyoco_k.secret")
    code, lines, said = run("client", "127.0.0.1", door.port, "clientA", 8)
    assert code == 0
    assert [(line["Status"], line["ExecName"], line["ClientId"]) for line in lines] == [
        ("COMPLETED", "calcA", "clientA")
    ] * 3
    assert sorted(line["JobId"] for line in lines) == sorted(door.submitted)
    (hello,) = door.hellos
    assert (hello.client_id, hello.desired_parallelism, hello.token) == ("clientA", 8, "pyoco_k.secret")
    assert "secret" not in said


@pytest.mark.parametrize(("variable", "argument", "cap"), [(None, [], 4), ("7", [], 7), ("7", [9], 9)])
def test_the_cap_is_the_argument_else_the_variable_else_four(
    door: FakeDoor, run: Run, monkeypatch: pytest.MonkeyPatch, variable: str | None, argument: list[int], cap: int
) -> None:
    """GRID-120, GRID-190"""
    if variable is not None:
        monkeypatch.setenv("CLIENT_DESIRED_PAR", variable)
    assert run("client", "127.0.0.1", door.port, "clientA", *argument)[0] == 0
    assert door.hellos[0].desired_parallelism == cap


def test_every_option_reaches_the_job(door: FakeDoor, run: Run, tmp_path: Path) -> None:
    """GRID-121"""
    (tmp_path / "in.txt").write_bytes(b"3\n")
    job_id = str(uuid4())
    options = ["--exec", "render", "--arg=--n", "--arg", "3", "--file", tmp_path / "in.txt", "--timeout-sec", "9"]
    code, (line,), _ = run("client", "127.0.0.1", door.port, "clientA", *options, "--job-id", job_id.upper())
    (request,) = door.submits
    assert (code, line["JobId"], line["Stdout"]) == (0, job_id, "--n 3")
    assert (request.exec_name, request.args, request.files, request.timeout_sec) == (
        "render",
        ("--n", "3"),
        {"in.txt": b"3\n"},
        9,
    )


def test_a_job_that_did_not_complete_gives_two(door: FakeDoor, run: Run) -> None:
    """GRID-120"""

    async def fail(talk: Talk, frame: Frame) -> None:
        is_first = len(door.submits) == 1
        status, code = (RunState.FAILED, ErrorCode.EXIT_NONZERO) if is_first else (RunState.COMPLETED, None)
        await talk.ack(frame)
        await door.end(talk, frame, status=status, error_code=code)

    door.on_submit = fail
    code, lines, _ = run("client", "127.0.0.1", door.port, "clientA")
    assert code == 2
    assert sorted(line["Status"] for line in lines) == ["COMPLETED", "COMPLETED", "FAILED"]


def test_a_job_that_is_refused_gives_one_and_says_why(door: FakeDoor, run: Run) -> None:
    """GRID-120, GRID-122"""

    async def refuse(talk: Talk, frame: Frame) -> None:
        await talk.refuse(frame, Code.FORBIDDEN)

    door.on_submit = refuse
    code, lines, said = run("client", "127.0.0.1", door.port, "clientA", "--count", 2)
    assert (code, lines) == (1, [])
    assert said.count("ERR-PYOCO-0044: FORBIDDEN") == 2


def test_a_client_that_is_refused_gives_one(door: FakeDoor, run: Run) -> None:
    """GRID-120, GRID-167"""

    async def refuse(talk: Talk, frame: Frame) -> None:
        await talk.refuse(frame, Code.UNAUTHENTICATED)

    door.on_hello = refuse
    code, lines, said = run("client", "127.0.0.1", door.port, "clientA")
    assert (code, lines) == (1, [])
    assert "UNAUTHENTICATED" in said


def test_no_door_gives_one(doors: Doors, door: FakeDoor, run: Run) -> None:
    """GRID-120, GRID-123"""
    doors.do(door.stop())
    code, lines, said = run("client", "127.0.0.1", door.port, "clientA", "--connect-timeout", 0.2)
    assert (code, lines) == (1, [])
    assert door.address in said


def test_archives_are_unpacked(door: FakeDoor, run: Run, tmp_path: Path) -> None:
    """GRID-97, GRID-121: one that came in the frame, one that was fetched, and none."""
    large = os.urandom(5_000_000)
    out = tmp_path / "out"

    async def answer(talk: Talk, frame: Frame) -> None:
        await talk.ack(frame)
        job_id = door.submitted[-1]
        if len(door.submits) == 1:
            door.objects[job_id] = zipped(**{"result.txt": large})
        archive = zipped(**{"result.txt": b"1", "more/deep.txt": b"2"}) if len(door.submits) == 2 else None
        await door.end(talk, frame, output_archive=archive)

    door.on_submit = answer
    code, lines, said = run("client", "127.0.0.1", door.port, "clientA", "--out", out)
    assert (code, said) == (0, "")
    fetched, inline, none = door.submitted
    assert (out / fetched / "result.txt").read_bytes() == large
    assert (out / inline / "result.txt").read_bytes() == b"1"
    assert (out / inline / "more" / "deep.txt").read_bytes() == b"2"
    assert sorted(each.name for each in out.iterdir()) == sorted([fetched, inline])
    told = {line["JobId"]: (line["Out"], line["OutputArchive"]) for line in lines}
    assert told == {
        fetched: (str(out / fetched), None),
        inline: (str(out / inline), None),
        none: (None, None),
    }


@pytest.mark.parametrize(
    "archive", [zipped(**{"../evil": b"x"}), zipped(**{"/evil": b"x"}), b"no zip"], ids=["above", "absolute", "none"]
)
def test_a_hostile_archive_is_refused_whole(door: FakeDoor, run: Run, tmp_path: Path, archive: bytes) -> None:
    """GRID-97"""

    async def answer(talk: Talk, frame: Frame) -> None:
        await talk.ack(frame)
        await door.end(talk, frame, output_archive=archive)

    door.on_submit = answer
    out = tmp_path / "out"
    code, (line,), said = run("client", "127.0.0.1", door.port, "clientA", "--count", 1, "--out", out)
    assert (code, line["Status"], line["Out"]) == (1, "COMPLETED", None)
    assert "could not be unpacked" in said
    assert [each for each in tmp_path.rglob("*") if each.is_file()] == []


def test_a_job_is_cancelled(door: FakeDoor, run: Run) -> None:
    """GRID-121, GRID-163"""
    job_id = str(uuid4())

    async def obey(talk: Talk, frame: Frame) -> None:
        ended = JobResult(
            job_id=job_id, client_id="clientA", exec_name="e", status=RunState.CANCELLED, run_id="r", attempt=1
        )
        await talk.say(Type.RESULT, ended, frame)

    door.on_cancel = obey
    code, (line,), _ = run("client", "127.0.0.1", door.port, "clientA", "--cancel", job_id)
    assert (code, line["Status"]) == (0, "CANCELLED")
    assert door.submits == []
    door.on_cancel = door.obey
    code, lines, said = run("client", "127.0.0.1", door.port, "clientA", "--cancel", job_id)
    assert (code, lines) == (1, [])
    assert "NOT_FOUND" in said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_and_says_what_goes_on(door: FakeDoor, run: Run, number: signal.Signals) -> None:
    """GRID-4: section 25.3."""

    async def interrupt(talk: Talk, frame: Frame) -> None:
        await talk.ack(frame)
        if len(door.submits) == 3:
            os.kill(os.getpid(), number)

    door.on_submit = interrupt
    code, lines, said = run("client", "127.0.0.1", door.port, "clientA")
    assert (code, lines) == (130, [])
    assert all(job_id in said for job_id in door.submitted)


def test_another_door_of_the_group_is_used(doors: Doors, door: FakeDoor, run: Run) -> None:
    """GRID-121"""
    second = doors.open()
    doors.do(door.stop())
    code, lines, _ = run("client", "127.0.0.1", door.port, "clientA", "--door", second.address)
    assert (code, len(lines), len(second.submits)) == (0, 3, 3)


def test_tls(doors: Doors, run: Run, tmp_path: Path) -> None:
    """GRID-166: with the right authority; without it, and without TLS at all."""
    authority = Authority(tmp_path)
    door = doors.open(tls=authority.context("127.0.0.1"))
    asked = ["client", "127.0.0.1", door.port, "clientA", "--count", 1]
    assert run(*asked, "--tls-ca", authority.ca_file)[0] == 0
    asked += ["--connect-timeout", 0.3]
    assert run(*asked, "--tls")[0] == 1
    assert run(*asked)[0] == 1
    code, _, said = run(*asked, "--tls-ca", tmp_path / "none.pem")
    assert code == 1
    assert "--tls-ca" in said


def test_clientx_splits_its_jobs_over_groups(doors: Doors, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """GRID-124, GRID-125: section 17.2."""
    groups = [doors.open(name) for name in "abc"]
    addresses = [door.address for door in groups]
    greeted = 3

    async def once_all_are_there(talk: Talk, frame: Frame) -> None:
        while sum(len(door.hellos) for door in groups) < greeted:
            await asyncio.sleep(0.001)
        await talk.door.accept(talk, frame)

    for door in groups:
        door.on_submit = once_all_are_there
    code, lines, said = run("clientx", "clientA", *addresses, 13, "--count", 30, "--stats", "--policy", "least")
    assert code == 0
    assert len({line["JobId"] for line in lines}) == 30
    assert [door.hellos[0].desired_parallelism for door in groups] == [5, 4, 4]
    stats = json.loads(said.splitlines()[-1])
    assert sum(group["results"] for group in stats["groups"]) == 30
    assert (stats["pending"], stats["failovers"], stats["late_results"]) == (0, 0, 0)
    monkeypatch.setenv("CLIENT_DESIRED_PAR", "2")
    greeted = 5
    assert run("clientx", "clientA", "|".join(addresses[:2]), addresses[2])[0] == 0
    assert groups[2].hellos[1].desired_parallelism == 1


def test_clientx_moves_jobs_of_a_group_that_is_gone(doors: Doors, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """GRID-129: after CLIENTX_GRACE_SEC."""
    first, second = doors.open("a"), doors.open("b")

    async def die(talk: Talk, frame: Frame) -> None:
        first.drop()
        first._server.close()  # type: ignore[union-attr]

    first.on_submit = die
    monkeypatch.setenv("CLIENTX_GRACE_SEC", "0.2")
    asked = ["clientx", "clientA", first.address, second.address]
    code, lines, said = run(*asked, "--count", 40, "--stats")
    assert (code, len(lines)) == (0, 40)
    assert {line["WorkerId"] for line in lines} == {"b"}
    assert json.loads(said.splitlines()[-1])["failovers"] > 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["client", "127.0.0.1", "0", "c"], "0"),
        (["client", "127.0.0.1", "5000"], "CLIENT_ID"),
        (["client", "127.0.0.1", "5000", "a.b"], "CLIENT_ID"),
        (["client", "clientA", "many"], "many"),
        (["client", "clientA"], "--frames-port"),
        (["client", "127.0.0.1", "5000", "c", "1", "2"], "CLIENT_ID"),
        (["client", "127.0.0.1", "5000", "c", "0"], "0"),
        (["client", "127.0.0.1", "5000", "c", "--exec", "a.b"], "BAD_EXEC_NAME"),
        (["client", "127.0.0.1", "5000", "c", "--job-id", "x"], "BAD_JOB_ID"),
        (["client", "127.0.0.1", "5000", "c", "--cancel", "x"], "BAD_JOB_ID"),
        (["client", "127.0.0.1", "5000", "c", "--job-id", str(uuid4()), "--count", "2"], "--count 1"),
        (["client", "127.0.0.1", "5000", "c", "--file", "/none/such"], "--file"),
        (["client", "127.0.0.1", "5000", "c", "--door", "nowhere"], "nowhere"),
        (["client", "127.0.0.1", "5000", "c", "--connect-timeout", "0"], "--connect-timeout"),
        (["client", "127.0.0.1", "5000", "c", "--tls-cert", "x"], "--tls-key"),
        # Of a variable that is not set: nothing is sent unencrypted then.
        (["client", "127.0.0.1", "1", "c", "--connect-timeout", "0.1", "--tls-ca", ""], "--tls-ca"),
        (["clientx", "c"], "--frames-port"),
        (["clientx", "c", "12"], "--frames-port"),
        (["clientx", "c", "0"], "0"),
        (["clientx", "c", "127.0.0.1:5000", "many"], "many"),
        (["clientx", "c", "127.0.0.1:5000", "--policy", "best"], "best"),
    ],
    ids=lambda each: " ".join(each)[-30:] if isinstance(each, list) and "--job-id" not in each else "",
)
def test_a_bad_call_gives_one_and_an_example(run: Run, arguments: list[str], said: str) -> None:
    """GRID-190"""
    code, lines, told = run(*arguments)
    assert (code, lines) == (1, [])
    assert said in told


def test_a_bad_variable_stops_the_command(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """GRID-193"""
    monkeypatch.setenv("CLIENT_DESIRED_PAR", "many")
    code, _, said = run("client", "127.0.0.1", "5000", "c")
    assert code == 1
    assert "CLIENT_DESIRED_PAR" in said


def test_a_file_that_no_frame_holds_names_the_way_out(run: Run, tmp_path: Path) -> None:
    """GRID-147"""
    with (tmp_path / "big").open("wb") as file:
        file.truncate(5_000_000)
    code, _, said = run("client", "127.0.0.1", "5000", "c", "--file", tmp_path / "big")
    assert code == 1
    assert "POST /jobs" in said
