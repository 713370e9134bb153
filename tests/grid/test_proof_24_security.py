"""Who gets in, and how far: TLS, certificates, keys, ACL records. Each cell as it is written."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import re
import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from pyoco_server.core.api_key import make_key
from pyoco_server.core.frames.codec import Type
from pyoco_server.core.frames.messages import HelloClient, HelloWorker
from pyoco_server.core.programs.faults import GridRefused
from pyoco_server.errors import PyocoError
from pyoco_server.frames.tls import client_context
from pyoco_server.grid_client import GridClient, JobRequest, LinkSettings
from pyoco_server.ports.acl.port import AclRecord
from pyoco_server.ports.backend import DoorBackend
from pyoco_server.wiring import backend as wiring
from support.grid.peers import ClientPeer, Peer, WorkerPeer
from support.grid.processes import GridProcess
from support.priced.url_sites import Authority
from support.proofs.report import proof
from support.proofs.sizes import IS_FULL
from support.proofs.stage import Scene, scene
from support.waiting import eventually

_PEPPER = "of this proof"
#: `pyoco_<id>.<secret>`
_KEY = re.compile(r"pyoco_[0-9a-z]+\.[\w-]{20,}")


@dataclass(frozen=True)
class Cell:
    """What a client does at a door, and what it hears."""

    name: str
    door: str
    #: OK, or the code of a refusal, or UNREACHABLE: TLS did not come about.
    answer: str
    ca: Path | None = None
    chain: Path | None = None
    client_id: str = "anna"
    key: str | None = None
    exec_name: str = "calcA"


async def test_tls_keys_and_acl_let_in_whom_they_should_and_nobody_else(tmp_path: Path) -> None:
    """P24: GRID-165 to GRID-169"""
    with proof("P24", "TLS and ACL") as found:
        async with scene(tmp_path, doors=0, env={"PYOCO_AUTH_PEPPER": _PEPPER}) as grid:
            authority, stranger = (Authority(_made(tmp_path / name)) for name in ("authority", "stranger"))
            doors = await _open_doors(grid, authority)
            async with _backend(grid) as backend:
                cells = [*_tls_cells(authority, stranger), *await _acl_cells(backend)]
                await _run_cells(grid, doors, cells)
                found.note(cells=len(cells), by_command=IS_FULL)
                await _caps_and_workers(doors["keys"], backend)
            await _exposed(grid)
            wanted = {"tls_error", "auth_failed", "key_revoked"}
            await eventually(lambda: wanted <= {line.get("reason") for door in doors.values() for line in door.log})
            _assert_no_secret(grid)


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


async def _open_doors(grid: Scene, authority: Authority) -> dict[str, GridProcess]:
    """`tls`; `name`, whose certificate is of another address; `mutual`, which asks for certificates and looks at their
    names; `keys`, without TLS."""
    chains = {"tls": authority.chain("127.0.0.1"), "name": authority.chain("elsewhere.example")}
    doors = {
        name: grid.open_door("--tls-cert", chain, "--tls-key", chain, waits=False, name=f"leader-{name}")
        for name, chain in chains.items()
    }
    chain = chains["tls"]
    mutual = ("--tls-cert", chain, "--tls-key", chain, "--tls-ca", authority.ca_file)
    doors["mutual"] = grid.open_door(*mutual, waits=False, name="leader-mutual", env={"EXEC_TLS_BIND_CN": "1"})
    doors["keys"] = grid.open_door(waits=False, name="leader-keys", env={"EXEC_AUTH": "api_key"})
    for door in doors.values():
        await asyncio.to_thread(door.until_ready)
    # A worker at a TLS door does the work of all of them: one group, one queue. It has no key, so jobs that come with
    # one, and belong to a tenant, are left to a native worker (SAFE-4).
    grid.processes.worker(doors["tls"], "job.assign.calcA", "--tls-ca", authority.ca_file)
    grid.processes.nworker("job.assign.calcA")
    return doors


@contextlib.asynccontextmanager
async def _backend(grid: Scene) -> AsyncIterator[DoorBackend]:
    config = dataclasses.replace(grid.processes.config, auth_pepper=_PEPPER)
    async with wiring.open_door_backend(config, grid.grid_config) as backend:
        yield backend


def _tls_cells(authority: Authority, stranger: Authority) -> list[Cell]:
    ours, theirs = authority.ca_file, stranger.ca_file
    anna = authority.chain("anna")
    return [
        Cell("plain at a TLS door", "tls", "UNREACHABLE"),
        Cell("TLS", "tls", "OK", ca=ours),
        Cell("another authority", "tls", "UNREACHABLE", ca=theirs),
        Cell("another name", "name", "UNREACHABLE", ca=ours),
        Cell("no certificate of its own", "mutual", "UNREACHABLE", ca=ours),
        Cell("a certificate of another authority", "mutual", "UNREACHABLE", ca=ours, chain=stranger.chain("anna")),
        Cell("its own certificate", "mutual", "OK", ca=ours, chain=anna),
        Cell("its certificate, another id", "mutual", "FORBIDDEN", ca=ours, chain=anna, client_id="bert"),
        Cell("TLS at a plain door", "keys", "UNREACHABLE", ca=ours),
    ]


async def _acl_cells(backend: DoorBackend) -> list[Cell]:
    key, key_id = await _a_key(backend)
    other, _ = await _a_key(backend)
    revoked, revoked_id = await _a_key(backend)
    await backend.keys.revoke(revoked_id, backend.clock())
    wrong = key[:-1] + ("A" if key[-1] != "A" else "B")
    both = (key_id, revoked_id)
    await _grant(backend, "anna", AclRecord(api_key_ids=both, execs=("calc*",), max_cap=3))
    await _grant(backend, "elsewhere", AclRecord(api_key_ids=both, execs=("*",), groups=("other",)))
    return [
        Cell("no key", "keys", "UNAUTHENTICATED"),
        Cell("a wrong key", "keys", "UNAUTHENTICATED", key=wrong),
        Cell("a revoked key", "keys", "UNAUTHENTICATED", key=revoked),
        Cell("its key", "keys", "OK", key=key),
        Cell("another's key", "keys", "FORBIDDEN", key=other),
        Cell("an id without a record", "keys", "FORBIDDEN", key=key, client_id="nobody"),
        Cell("another group's client", "keys", "FORBIDDEN", key=key, client_id="elsewhere"),
        Cell("a program that is not allowed", "keys", "FORBIDDEN", key=key, exec_name="sleepn"),
    ]


async def _a_key(backend: DoorBackend) -> tuple[str, str]:
    plain, record = make_key("tenant-a", _PEPPER, backend.clock(), secrets.token_hex, secrets.token_urlsafe)
    assert await backend.keys.add(record)
    return plain, record.key_id


async def _grant(backend: DoorBackend, client_id: str, record: AclRecord) -> None:
    assert backend.programs is not None
    await backend.programs.acl.put("client", client_id, record)


async def _run_cells(grid: Scene, doors: dict[str, GridProcess], cells: list[Cell]) -> None:
    # A record is in force within 5 s (GRID-168).
    allowed = next(cell for cell in cells if cell.name == "its key")

    async def is_allowed() -> bool:
        return await _answer(doors[allowed.door], allowed) == "OK"

    await eventually(is_allowed, 5)
    answers = await asyncio.gather(*(_answer(doors[cell.door], cell) for cell in cells))
    assert dict(zip([cell.name for cell in cells], answers, strict=True)) == {cell.name: cell.answer for cell in cells}
    if IS_FULL:
        for cell in cells:
            code = await asyncio.to_thread(_command, grid, doors[cell.door], cell)
            assert code == (0 if cell.answer == "OK" else 1), cell


def _tls(cell: Cell) -> dict[str, str]:
    own = {} if cell.chain is None else {"cert": str(cell.chain), "key": str(cell.chain)}
    return {} if cell.ca is None else {"ca": str(cell.ca), **own}


async def _answer(door: GridProcess, cell: Cell) -> str:
    tls = client_context(**_tls(cell)) if cell.ca is not None else None
    # Who is to get in, or to be told why not, has the time that a busy machine needs for it.
    settings = LinkSettings(tls=tls, connect_timeout=3.0 if cell.answer == "UNREACHABLE" else 60.0)
    try:
        async with GridClient(door.host, door.port, cell.client_id, token=cell.key, settings=settings) as client:
            result = await client.run(JobRequest(exec_name=cell.exec_name))
            return "OK" if result.status == "COMPLETED" else str(result.error_code)
    except GridRefused as refused:
        return str(refused.code)
    except PyocoError:
        return "UNREACHABLE"


def _command(grid: Scene, door: GridProcess, cell: Cell) -> int:
    options = [part for name, value in _tls(cell).items() for part in (f"--tls-{name}", value)]
    env = {} if cell.key is None else {"PYOCO_API_KEY": cell.key}
    asks = ("--exec", cell.exec_name, "--count", 1, "--connect-timeout", 3)
    return grid.processes.client(door, cell.client_id, *asks, *options, env=env).code


async def _caps_and_workers(door: GridProcess, backend: DoorBackend) -> None:
    """A cap above `max_cap` is lowered; a worker needs a key and a record, and gets what that allows; who loses its key
    goes."""
    programs = backend.programs
    assert programs is not None
    key, key_id = await _a_key(backend)
    await _grant(backend, "carl", AclRecord(api_key_ids=(key_id,), execs=("*",), max_cap=3))
    await programs.acl.put("worker", "w1", AclRecord(api_key_ids=(key_id,), execs=("only",)))
    await eventually(lambda: _takes(door, key), 5)
    for worker_id, token, code in (("w1", None, "UNAUTHENTICATED"), ("w2", key, "FORBIDDEN")):
        async with await Peer.connect(door.port) as peer:
            hello = HelloWorker(worker_id=worker_id, patterns=("job.assign.*",), max_parallel=1, token=token)
            await peer.send(Type.HELLO_WORKER, hello.to_payload())
            await peer.error(code)
            assert await peer.ended() == []
    async with await ClientPeer.connect(door.port) as client, await WorkerPeer.connect(door.port) as worker:
        assert (await client.hello("carl", cap=100, token=key)).cap == 3
        await worker.hello("w1", patterns=["job.assign.only", "job.assign.never"], token=key, credit=5)
        await client.accepted(exec_name="never")
        ack = await client.accepted(exec_name="only")
        job = await worker.assigned()
        assert job.job_id == ack.job_id
        assert await worker.settled(job) == "recorded"
        assert (await client.result()).job_id == ack.job_id
        async with await ClientPeer.connect(door.port) as thief:  # of another connection's client
            await thief.send(Type.HELLO_CLIENT, HelloClient(client_id="anna", token=key).to_payload())
            await thief.error("FORBIDDEN")
        await backend.keys.revoke(key_id, backend.clock())
        assert await client.ended(60) == []
        assert await worker.ended(60) == []


async def _takes(door: GridProcess, key: str) -> bool:
    """Whether the door knows of w1, whose record was written last."""
    async with await Peer.connect(door.port) as peer:
        hello = HelloWorker(worker_id="w1", patterns=("job.assign.nothing",), max_parallel=1, token=key)
        await peer.send(Type.HELLO_WORKER, hello.to_payload())
        return (await peer.next()).type == Type.HELLO_ACK


async def _exposed(grid: Scene) -> None:
    """GRID-165: an address of other machines, and nobody asked for a key."""
    door = grid.processes.start("leader", 0, "--host", "0.0.0.0", waits=False, name="leader-exposed")
    finished = await asyncio.to_thread(door.finished)
    assert finished.code == 3
    assert "open to everybody" in finished.stderr


def _assert_no_secret(grid: Scene) -> None:
    """GRID-169"""
    for process in grid.processes.processes:
        assert _KEY.search(process.stdout + process.stderr) is None
