"""Doors beside HTTP with keys, and what a peer without a key reaches at an open door (SAFE-4)."""

from __future__ import annotations

import os
import secrets
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from pyoco_server.actions.programs.cancel import cancel_job
from pyoco_server.actions.programs.submit import Inline, submit_job
from pyoco_server.config import GridConfig, NatsBackendConfig
from pyoco_server.core.api_key import make_key
from pyoco_server.core.frames.codec import Type
from pyoco_server.core.frames.messages import CancelJob, Heartbeat, ObjectGet, RunningJob
from pyoco_server.core.programs.job import JobAsk
from pyoco_server.core.programs.names import client_key
from pyoco_server.core.run import Caller, Run
from pyoco_server.core.states import RunState
from pyoco_server.doors.cli.banner import banner
from pyoco_server.doors.cli.grid.group import cli
from pyoco_server.doors.cli.plan import ProcessPlan, UpOptions
from pyoco_server.doors.cli.shell import outcome
from pyoco_server.errors import ExposureRefused
from pyoco_server.ports.acl.port import AclRecord
from support.grid.peers import ClientPeer, OpenDoor, WorkerPeer, grid_config, open_door
from support.servers import config_for, unique
from support.waiting import eventually

PEPPER = "of these tests"
CLOSED = {"PYOCO_HTTP_AUTH_MODE": "api_key"}


# Settings and commands ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variables", "auth"),
    [
        ({}, "none"),
        ({"PYOCO_HTTP_AUTH_MODE": "none"}, "none"),
        (CLOSED, "api_key"),
        ({"PYOCO_HTTP_AUTH_MODE": " API_KEY "}, "api_key"),
        (CLOSED | {"EXEC_AUTH": "none"}, "none"),
        ({"EXEC_AUTH": "api_key"}, "api_key"),
        (CLOSED | {"EXEC_AUTH": "api_key"}, "api_key"),
    ],
)
def test_doors_ask_for_keys_where_http_does_unless_told_otherwise(variables: dict[str, str], auth: str) -> None:
    """SAFE-4"""
    assert GridConfig.read(variables).exec_auth == auth


def test_a_gateway_needs_acl_records_only_where_exec_auth_is_set() -> None:
    """SAFE-4: keys that submitted over HTTP before go on to do so"""
    assert GridConfig.read(CLOSED).at_gateway().exec_auth == "none"
    assert GridConfig.read(CLOSED | {"EXEC_AUTH": "api_key"}).at_gateway().exec_auth == "api_key"


ROUTER = ["router", "0", "--backend", "g1=127.0.0.1:1"]


@pytest.mark.parametrize("command", [["leader", "0"], ROUTER], ids=["leader", "router"])
@pytest.mark.usefixtures("hasty_links")
def test_an_open_door_beside_closed_http_needs_a_flag_and_warns(
    command: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """SAFE-4"""
    monkeypatch.setattr("pyoco_server.logs.configure_logging", lambda _: None)
    for name, value in (CLOSED | {"EXEC_AUTH": "none"}).items():
        monkeypatch.setenv(name, value)
    nowhere = ["--nats", "nats://127.0.0.1:1"]
    assert outcome(cli, "pyoco-grid", [*command, *nowhere]) == 3
    said = capsys.readouterr().err
    assert "ERR-PYOCO-0047" in said
    assert "--open-frames" in said
    assert outcome(cli, "pyoco-grid", [*command, *nowhere, "--open-frames"]) == 1  # continues, and finds no NATS
    assert "ERR-PYOCO-0047" not in capsys.readouterr().err
    assert "clients and workers need no key here, although HTTP requires one" in caplog.text


def _up(**more: Any) -> ProcessPlan:
    plain: dict[str, Any] = dict.fromkeys(UpOptions.__dataclass_fields__)
    told = {"host": "127.0.0.1", "port": 0, "workers": 0, "keeper": False, "programs": True, "frames_port": 0}
    flags = dict.fromkeys(("with_nats_bootstrap", "with_examples", "wheel_sync", "open_frames"), False)
    config = NatsBackendConfig.from_env({**os.environ, "PYOCO_LOAD_DOTENV": "0"})
    return ProcessPlan(UpOptions(**{**plain, **told, **flags, **more}), config)


def test_up_with_an_open_door_beside_closed_http_needs_the_flag_and_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """SAFE-4"""
    for name, value in CLOSED.items():
        monkeypatch.setenv(name, value)
    assert not _up().facts("http://x", tmp_path, "nats://x", "127.0.0.1:1").has_open_frames
    monkeypatch.setenv("EXEC_AUTH", "none")
    with pytest.raises(ExposureRefused, match="--open-frames"):
        _up()
    _up(frames_port=None)
    facts = _up(open_frames=True).facts("http://x", tmp_path, "nats://x", "127.0.0.1:1")
    assert "the TCP door requires no key" in banner(facts)


# At an open door ------------------------------------------------------------------------------------------------------


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def door(module_nats_url: str) -> AsyncIterator[OpenDoor]:
    config = config_for(module_nats_url, auth_pepper=PEPPER)
    async with open_door(module_nats_url, grid_config(), config) as opened:
        yield opened


async def a_key(door: OpenDoor, tenant: str) -> tuple[str, Caller]:
    plain, record = make_key(tenant, PEPPER, door.backend.clock(), secrets.token_hex, secrets.token_urlsafe)
    assert await door.backend.keys.add(record)
    return plain, record.caller


async def a_run_of(door: OpenDoor, caller: Caller, client_id: str, exec_name: str) -> Run:
    ask = JobAsk(job_id=str(uuid.uuid4()), group=door.door.context.group, client_id=client_id, exec_name=exec_name)
    return (await submit_job(door.backend, caller, ask, Inline({}))).run


@pytest.mark.asyncio(loop_scope="module")
async def test_a_client_without_a_key_finds_no_run_of_a_tenant(door: OpenDoor) -> None:
    """SAFE-4: neither its end nor its outputs, under the same client id; an unknown job is answered alike"""
    key, caller = await a_key(door, "team-a")
    client_id, exec_name = unique("c"), unique("x")
    run = await a_run_of(door, caller, client_id, exec_name)
    texts = set()
    async with await ClientPeer.connect(door) as nobody:
        await nobody.hello(client_id)
        for job_id in (run.run_id if run.program is None else run.program.job_id, str(uuid.uuid4())):
            await nobody.send(Type.CANCEL_JOB, CancelJob(job_id=job_id).to_payload())
            texts.add((await nobody.error("NOT_FOUND"))[1].message)
            ask = ObjectGet(job_id=job_id, name="stdout.txt", offset=0)
            await nobody.send(Type.OBJECT_GET, ask.to_payload())
            texts.add((await nobody.error("NOT_FOUND"))[1].message)
    assert len(texts) == 1
    assert (await door.run(run.run_id)).status is RunState.PENDING
    async with await ClientPeer.connect(door) as mine:
        await mine.hello(client_id, token=key)  # a valid key counts in mode none, too
        assert run.program is not None
        await mine.cancel(run.program.job_id)
        assert (await mine.result()).status is RunState.CANCELLED


@pytest.mark.asyncio(loop_scope="module")
async def test_a_client_with_a_key_finds_no_run_without_a_tenant_nor_of_another(door: OpenDoor) -> None:
    """SAFE-4"""
    key, _ = await a_key(door, "team-a")
    _, other = await a_key(door, "team-b")
    client_id, exec_name = unique("c"), unique("x")
    runs = [await a_run_of(door, caller, client_id, exec_name) for caller in (other, Caller())]
    async with await ClientPeer.connect(door) as mine:
        await mine.hello(client_id, token=key)
        for run in runs:
            assert run.program is not None
            await mine.cancel(run.program.job_id)
            await mine.error("NOT_FOUND")


@pytest.mark.asyncio(loop_scope="module")
async def test_a_worker_without_a_key_gets_no_run_of_a_tenant_and_it_waits(door: OpenDoor) -> None:
    """SAFE-4"""
    key, caller = await a_key(door, "team-a")
    foreign_key, foreigner = await a_key(door, "team-b")
    client_id, exec_name = unique("c"), unique("x")
    pattern = (f"job.assign.{exec_name}",)
    run = await a_run_of(door, caller, client_id, exec_name)
    async with await WorkerPeer.connect(door) as nobody, await WorkerPeer.connect(door) as foreign:
        await nobody.hello(patterns=pattern, credit=4)
        await foreign.hello(patterns=pattern, credit=4, token=foreign_key)
        open_run = await a_run_of(door, Caller(), client_id, exec_name)
        both = await _first_of(nobody, foreign)
        assert both == open_run.run_id
        assert await nobody.is_silent()
        assert await foreign.is_silent()
        assert (await door.run(run.run_id)).attempt == 0
        async with await WorkerPeer.connect(door) as mine:
            await mine.hello(patterns=pattern, credit=1, token=key)
            assert (await mine.assigned()).run_id == run.run_id
        # An operator's word makes a worker one for all tenants.
        acl = door.door.context.programs.acl
        assert foreigner.api_key_id is not None
        await acl.put("worker", foreign.worker_id, AclRecord(api_key_ids=(foreigner.api_key_id,), execs=("*",)))
        assert (await foreign.assigned()).run_id == run.run_id


async def _first_of(*workers: WorkerPeer) -> str:
    for worker in workers:
        if not await worker.is_silent(1.0):
            return (await worker.assigned()).run_id
    raise AssertionError("nobody was given the job")


@pytest.mark.asyncio(loop_scope="module")
async def test_a_worker_without_a_key_cannot_attach_or_end_an_attempt_of_a_tenant(door: OpenDoor) -> None:
    """SAFE-4: not even by its token, as one that was assigned it by a door of an earlier version"""
    key, caller = await a_key(door, "team-a")
    client_id, exec_name = unique("c"), unique("x")
    pattern = (f"job.assign.{exec_name}",)
    run = await a_run_of(door, caller, client_id, exec_name)
    async with await WorkerPeer.connect(door) as mine, await WorkerPeer.connect(door) as nobody:
        await mine.hello(patterns=pattern, credit=1, token=key)
        job = await mine.assigned()
        await nobody.hello(patterns=pattern)
        mine.abort()
        await eventually(lambda: run.run_id not in door.door.context.assigned)
        beat = Heartbeat((RunningJob(job.job_id, job.token),))
        await nobody.send(Type.HEARTBEAT, beat.to_payload())
        told = CancelJob.read((await nobody.next_of(Type.CANCEL_JOB)).payload)
        assert (told.job_id, told.reason) == (job.job_id, "superseded")
        assert await nobody.settled(job) == "stale"
        assert (await door.run(run.run_id)).status is not RunState.COMPLETED
        await cancel_job(door.backend, run.run_id, None, None)


@pytest.mark.asyncio(loop_scope="module")
async def test_the_caps_of_two_tenants_are_apart_at_one_door(door: OpenDoor) -> None:
    """SAFE-4"""
    client_id = unique("c")
    keys = {None: None, "team-a": (await a_key(door, "team-a"))[0], "team-b": (await a_key(door, "team-b"))[0]}
    caps = {None: 2, "team-a": 3, "team-b": 5}
    for tenant, key in keys.items():
        async with await ClientPeer.connect(door) as client:
            assert (await client.hello(client_id, cap=caps[tenant], token=key)).cap == caps[tenant]
    house = door.door.context
    for tenant, cap in caps.items():
        known = house.programs.slots.cap(house.group, client_key(client_id, tenant))
        assert known is not None
        assert known.cap == cap
