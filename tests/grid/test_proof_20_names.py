"""Names and archives that would land elsewhere: at the door, at the gateway, at both kinds of worker, at the client."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import zipfile
from collections.abc import AsyncIterator
from pathlib import Path

from pyoco_server.core.frames.codec import Frame
from pyoco_server.core.programs.job import InlineInputs, InputFile, Inputs, ObjectInputs, ProgramJob
from pyoco_server.core.programs.names import run_id_of
from pyoco_server.core.programs.report import ErrorCode
from pyoco_server.core.states import RunState
from pyoco_server.ports.programs import Programs
from pyoco_server.ports.runs.port import Stored
from pyoco_server.ports.wakeups.port import Wakeup
from support.doors_support import FORM, disposition, form
from support.grid.fake_door import Talk, fake_door
from support.grid.peers import ClientPeer, a_job_id
from support.grid.scripted_door import ScriptedDoor, an_assignment
from support.grid.scripted_door import open_door as scripted_door
from support.grid.stores import a_job, client_queue_of
from support.hostile_archives import HOSTILE, listed
from support.proofs.report import Findings, proof
from support.proofs.sizes import IS_FULL
from support.proofs.stage import GROUP, Scene, scene
from support.waiting import eventually

#: GRID-96, a list for each job.
_BAD_NAMES = [
    *(
        [name]
        for name in ("../x", "a/b", "/etc/passwd", "a\\b", "C:\\x", "..", ".", "a..b", "x\0", "", "\x07x", "x\x7f")
    ),
    *([name] for name in (" x", "x ", ".owner", ".owner.txt", "x" * 256, "é" * 128)),
    ["in.txt", "IN.TXT"],
    ["fine", "../x"],
]
_GOOD_NAMES = ["in.txt", "データ.csv", ".config", "a b.txt"]
_CONTENT = b"what the program is to read\n" * 1000


async def test_no_name_and_no_archive_lands_outside_of_its_directory(tmp_path: Path) -> None:
    """P20: GRID-96, GRID-97"""
    with proof("P20", "names and archives", names=len(_BAD_NAMES)) as found:
        settings = {"EXEC_MAX_ATTEMPTS": "1", "EXEC_OUTPUT_MAX_BYTES": str(2 * 2**20)}
        async with scene(tmp_path, doors=1, gateways=1, env=settings) as grid, scripted_door() as scripted:
            grid.start_worker("job.assign.calcA")
            grid.start_native("job.assign.echoenv")
            _made(tmp_path / "jobs-scripted")
            before = _outside(tmp_path)
            await _names_at_the_door(grid)
            await _names_at_the_gateway(grid)
            await _names_at_a_worker(grid, scripted)
            async with grid.programs() as programs:
                await _names_in_the_queue(grid, programs)
                await _zips_at_the_workers(grid, programs, found)
            await _zips_at_the_client(grid, found)
            assert _outside(tmp_path) == before
            assert not Path("/etc/x").exists()
            assert all(process.is_alive for process in [*grid.doors, *grid.gateways, *grid.workers, *grid.natives])


def _outside(folder: Path) -> set[str]:
    """Whatever lies there, but for job directories, logs, spools and what the gateway keeps."""
    kept = ("programs", "gateway-1", "nats", "out")
    return {
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.relative_to(folder).parts[0] not in kept
        and path.suffix not in (".out", ".err")
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    }


async def _names_at_the_door(grid: Scene) -> None:
    for names in _BAD_NAMES:
        async with await ClientPeer.connect(grid.doors[0].port) as client:
            await client.hello("anna")
            request = client.request(files=dict.fromkeys(names, b"x"))
            await client.submit(request)
            _, error = await client.error("BAD_FILE_NAME")
            assert error.job_id == request.job_id
    async with await ClientPeer.connect(grid.doors[0].port) as client:
        await client.hello("anna")
        await client.accepted(files=dict.fromkeys(_GOOD_NAMES, b"x"))
        assert (await client.result()).status is RunState.COMPLETED


async def _names_at_the_gateway(grid: Scene) -> None:
    async with grid.http() as http:
        for names in _BAD_NAMES:
            parts = [(disposition("file", name.replace('"', '\\"')), b"x") for name in names]
            body = form((disposition("exec_name"), b"calcA"), *parts)
            answer = await http.post("/jobs", content=body, headers=FORM)
            assert answer.status_code == 422, (names, answer.text)
            assert "BAD_FILE_NAME" in answer.text or names == [""], answer.text
        parts = [(disposition("file", name), b"x") for name in _GOOD_NAMES]
        answer = await http.post("/jobs", content=form((disposition("exec_name"), b"calcA"), *parts), headers=FORM)
        assert answer.status_code == 200


async def _names_at_a_worker(grid: Scene, scripted: ScriptedDoor) -> None:
    """From a door that checks nothing: inline, and by reference."""
    starting = asyncio.create_task(scripted.welcomed())
    process = grid.processes.start(
        "worker", "127.0.0.1", scripted.port, waits=False, env={"WORK_ROOT": str(grid.folder / "jobs-scripted")}
    )
    visitor = await starting
    visitor.settles_all = True
    for names in _BAD_NAMES:
        inline = an_assignment(files=dict.fromkeys(names, b"x"))
        by_reference = an_assignment(refs=tuple(InputFile(name, 1, hashlib.sha256(b"x").hexdigest()) for name in names))
        for job in (inline, by_reference):
            visitor.assign(job)
            result = await visitor.result(job)
            assert (result.status, result.error_code) == (RunState.FAILED, ErrorCode.BAD_FILE_NAME), (names, result)
    job = an_assignment(files=dict.fromkeys(_GOOD_NAMES, b"x"))
    visitor.assign(job)
    assert (await visitor.result(job)).status is RunState.COMPLETED
    assert process.is_alive


def _made(folder: Path) -> Path:
    folder.mkdir(mode=0o700)
    return folder


async def _names_in_the_queue(grid: Scene, programs: Programs) -> None:
    """Messages that no door has written: dead letters, and no program is begun."""
    sent = set()
    for names in _BAD_NAMES:
        job = await _put(programs, "echoenv", InlineInputs(dict.fromkeys(names, "eA==")))
        sent.add(job.run_id)

    async def are_buried() -> bool:
        letters = await grid.letters()
        return sent <= {letter["run_id"] for letter in letters if letter["reason"] == "invalid_job"}

    await eventually(are_buried, 60)


async def _put(programs: Programs, exec_name: str, inputs: Inputs, job_id: str = "") -> ProgramJob:
    job_id = job_id or a_job_id()
    run_id = run_id_of(job_id, GROUP)
    job = a_job(GROUP, exec_name, "anna", job_id=job_id, run_id=run_id, inputs=inputs)
    await programs.queue.add_client_queue(client_queue_of(job))
    await programs.queue.put(job)
    await programs.wakeups.tell(GROUP, Wakeup.NEW, f"{exec_name}.{job.client_id}")
    return job


async def _zips_at_the_workers(grid: Scene, programs: Programs, found: Findings) -> None:
    """Input objects that are not what a submission stores: alone, and with the right file beside."""
    archives = {**_some(HOSTILE), "right, and one more": listed(("in.txt", _CONTENT), ("more", b"x"))}
    archives["right, and one that leaves"] = listed(("in.txt", _CONTENT), ("zzz", b"x")).replace(b"zzz", b"../")
    archives["right"] = _right()
    jobs: dict[str, ProgramJob] = {}
    for exec_name in ("echoenv", "calcA"):
        for name, data in archives.items():
            jobs[f"{name} for {exec_name}"] = await _stored(programs, exec_name, data)
    found.note(input_archives=len(jobs))
    async with grid.backend() as backend:
        for name, job in jobs.items():

            async def is_over(job: ProgramJob = job) -> bool:
                stored = await backend.runs.find(job.run_id)
                return isinstance(stored, Stored) and stored.run.is_terminal

            await eventually(is_over, 60)
            stored = await backend.runs.find(job.run_id)
            assert isinstance(stored, Stored)
            wanted = RunState.COMPLETED if name.startswith("right for") else RunState.FAILED
            assert stored.run.status is wanted, (name, stored.run.error)


def _some(archives: dict[str, bytes]) -> dict[str, bytes]:
    """The small form has one of each kind."""
    few = {"absolute", "up", "link", "bomb"}
    return {name: data for name, data in archives.items() if IS_FULL or name in few}


def _right() -> bytes:
    """As a submission stores it."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("in.txt", _CONTENT)
    return buffer.getvalue()


async def _stored(programs: Programs, exec_name: str, data: bytes) -> ProgramJob:
    async def pieces() -> AsyncIterator[bytes]:
        yield data

    job_id = a_job_id()
    info = await programs.artifacts.put(f"{run_id_of(job_id, GROUP)}/in-0123456789abcdef.zip", pieces(), len(data) + 1)
    files = (InputFile("in.txt", len(_CONTENT), hashlib.sha256(_CONTENT).hexdigest()),)
    inputs = ObjectInputs(info.name, info.size_bytes, info.sha256_hex, files)
    return await _put(programs, exec_name, inputs, job_id)


async def _zips_at_the_client(grid: Scene, found: Findings) -> None:
    """Results of a door that lies: `client --out` unpacks the one that is right, and of the others nothing."""
    archives = {name: data for name, data in HOSTILE.items() if name not in ("too many", "nothing")}
    archives["too many"] = listed(*((str(number), b"") for number in range(10_001)))
    archives["right"] = listed(("result.txt", b"42"))
    waiting = list(archives.values())
    answered: dict[str, bytes] = {}

    async def lie(talk: Talk, frame: Frame) -> None:
        data = waiting.pop()
        answered[json.loads(frame.payload)["JobId"]] = data
        await talk.ack(frame)
        await talk.door.end(talk, frame, output_archive=data)

    out = grid.folder / "out"
    async with fake_door() as door:
        door.on_submit = lie
        process = grid.processes.start(
            "client", "127.0.0.1", door.port, "anna", "--exec", "calcA", "--count", len(archives), "--out", out
        )
        finished = await asyncio.to_thread(process.finished)
    assert finished.code != 0
    assert len(answered) == len(archives)
    (right,) = (job_id for job_id, data in answered.items() if data == archives["right"])
    files = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    assert files == {f"{right}/result.txt"}
    found.note(output_archives=len(archives))
