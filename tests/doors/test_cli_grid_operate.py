"""`pyoco-server-admin program`, by its old spellings `pyoco-grid state`, `cap`, `acl` and `dlq`, on real NATS."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import click
import pytest

from pyoco_server.actions.programs.claim import free_slot
from pyoco_server.actions.programs.finish import finish_job
from pyoco_server.config import GridConfig, NatsBackendConfig
from pyoco_server.doors.cli import admin
from pyoco_server.doors.cli.grid.group import COMMANDS, cli
from pyoco_server.doors.cli.shell import outcome
from pyoco_server.ports.backend import OperatorBackend
from pyoco_server.ports.door_records.port import DoorRecord, DoorState
from pyoco_server.wiring import backend as wiring
from support.grid.acts import DONE, FAILED, claimed, job_submitted, run_of
from support.servers import NatsServer, quick_folder, unique


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    with quick_folder() as folder:
        server = NatsServer(folder)
        server.start()
        yield server
        server.kill()


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str

    @property
    def result(self) -> Any:
        assert (self.code, self.err) == (0, "")
        return json.loads(self.out)


class Operator:
    """The command, and a way to the same stores."""

    def __init__(self, server: NatsServer, capsys: pytest.CaptureFixture[str]) -> None:
        self.config, self._capsys = NatsBackendConfig(nats_url=server.url), capsys
        self.group = unique("g")

    def __call__(self, *arguments: str) -> Ended:
        code = outcome(cli, "pyoco-grid", [*arguments, "--nats", self.config.nats_url])
        said = self._capsys.readouterr()
        return Ended(code, said.out, said.err)

    def do(self, work: Callable[[OperatorBackend], Awaitable[Any]]) -> Any:
        async def all_of_it() -> Any:
            grid = GridConfig(exec_group=self.group, exec_queue_max_bytes=10**6)
            async with wiring.open_operator_backend(self.config, grid) as backend:
                return await work(backend)

        return asyncio.run(all_of_it())

    def bury(self, exec_name: str = "failn") -> str:
        """A job that failed; the id of its run."""

        async def work(backend: OperatorBackend) -> str:
            run = (await job_submitted(backend, exec_name=exec_name)).run
            attempt = await claimed(backend, run)
            await finish_job(backend, attempt, FAILED, ())
            assert attempt.slot is not None
            await free_slot(backend, attempt.slot)
            return run.run_id

        return str(self.do(work))


@pytest.fixture
def grid(server: NatsServer, capsys: pytest.CaptureFixture[str]) -> Operator:
    return Operator(server, capsys)


def test_the_state_of_a_group_is_shown(grid: Operator) -> None:
    """GRID-172"""

    async def work(backend: OperatorBackend) -> None:
        programs = backend.programs
        assert programs is not None
        runs = [(await job_submitted(backend)).run for _ in range(3)]
        await claimed(backend, runs[0])
        ended = await claimed(backend, runs[1], worker_id="w2")
        await finish_job(backend, ended, DONE, ())
        assert ended.slot is not None
        await free_slot(backend, ended.slot)
        await programs.doors.announce(
            DoorRecord(
                door_id=grid.group,
                addr="127.0.0.1:5000",
                group=grid.group,
                state=DoorState.SERVING,
                started_at=1.0,
                connections=2,
            )
        )

    grid.do(work)
    grid.bury()
    grid("cap", "set", "clientA", "7", "--group", grid.group)
    found = grid("state", "--group", grid.group, "--json").result
    (name,) = found["groups"]
    group = found["groups"][name]
    assert name == grid.group
    assert {name: (each["queued"], each["inflight"]) for name, each in group["queues"].items()} == {"calcA": (1, 1)}
    assert 0 <= group["queues"]["calcA"]["oldest_age_seconds"] < 300
    (job,) = group["inflight"].values()
    assert (job["exec"], job["client"], job["worker"], job["attempt"]) == ("calcA", "clientA", "w1", 1)
    assert (group["client_cap"], group["client_inflight"]) == ({"clientA": 7}, {"clientA": 1})
    assert group["dlq"]["count"] == 1
    assert [each["addr"] for each in group["doors"]] == ["127.0.0.1:5000"]
    assert set(group["replicas"]) >= {"PYOCO_EXEC", "KV_pyoco_runs", "PYOCO_DLQ"}
    assert grid.group in grid("state", "--json").result["groups"]
    shown = grid("state", "--group", grid.group)
    assert shown.code == 0
    lines = [line.split() for line in shown.out.splitlines()]
    assert ["group", grid.group] in lines
    assert ["clientA", "1", "7"] in lines
    assert ["dead", "letters:", "1,", "the", "newest", "is", str(group["dlq"]["last_sequence"])] in lines
    assert any(line[:1] == ["PYOCO_EXEC"] and line[-4:] == ["1", "of", "1", "current"] for line in lines)


def test_an_empty_group_has_a_state(grid: Operator) -> None:
    found = grid("state", "--group", grid.group, "--json").result["groups"][grid.group]
    assert (found["queues"], found["inflight"], found["client_cap"], found["dlq"]["count"]) == ({}, {}, {}, 0)
    assert "dead letters: 0" in grid("state", "--group", grid.group).out


def test_a_cap_is_set_and_shown(grid: Operator) -> None:
    """GRID-71"""
    before = grid("cap", "get", "clientA", "--group", grid.group).result
    assert (before["cap"], before["source"], before["inflight"]) == (4, "default", 0)
    assert grid("cap", "set", "clientA", "9", "--group", grid.group).result["cap"] == 9
    assert grid("cap", "get", "clientA", "--group", grid.group).result["cap"] == 9
    for bad in ("0", "10001", "many"):
        ended = grid("cap", "set", "clientA", bad, "--group", grid.group)
        assert (ended.code, "program cap set clientA 8" in ended.err) == (1, True)
    refused = grid("cap", "get", "no.good", "--group", grid.group)
    assert (refused.code, "ClientId" in refused.err) == (1, True)


def test_a_record_lowers_a_cap_and_that_is_said(grid: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    """GRID-168"""
    client = unique("c")
    monkeypatch.setenv("EXEC_AUTH", "api_key")
    grid("acl", "set", "client", client, "--key", "k1", "--exec", "*", "--max-cap", "3")
    ended = grid("cap", "set", client, "9", "--group", grid.group)
    assert (ended.code, json.loads(ended.out)["cap"]) == (0, 3)
    assert "allows no more than 3" in ended.err


def test_acl_records_are_written_shown_listed_and_deleted(grid: Operator) -> None:
    """GRID-168"""
    client, worker = unique("c"), unique("w")
    written = grid(
        "acl",
        "set",
        "client",
        client,
        "--key",
        "k1",
        "--key",
        "k2",
        "--exec",
        "calc*",
        "--in-group",
        "g?",
        "--max-cap",
        "4",
    ).result
    assert written == {
        "kind": "client",
        "id": client,
        "api_key_ids": ["k1", "k2"],
        "execs": ["calc*"],
        "max_cap": 4,
        "groups": ["g?"],
    }
    grid("acl", "set", "worker", worker, "--key", "k3", "--exec", "*")
    assert grid("acl", "get", "client", client).result == written
    assert [each["id"] for each in grid("acl", "list").result if each["id"] in {client, worker}] == [client, worker]
    assert grid("acl", "delete", "client", client).result == {"kind": "client", "id": client, "deleted": True}
    for command in ("get", "delete"):
        ended = grid("acl", command, "client", client)
        assert (ended.code, f"there is no record of client {client}" in ended.err) == (1, True)
    ended = grid("acl", "set", "worker", worker, "--key", "k3", "--exec", "*", "--max-cap", "4")
    assert (ended.code, "max_cap" in ended.err) == (1, True)
    assert grid("acl", "set", "nobody", "x", "--key", "k", "--exec", "*").code == 1


def test_dead_letters_are_listed_shown_requeued_and_deleted(grid: Operator) -> None:
    """GRID-88"""
    run_ids = [grid.bury() for _ in range(3)] + [grid.bury("other")]
    found = grid("dlq", "list", "--group", grid.group).result
    assert [each["run_id"] for each in found] == list(reversed(run_ids))
    assert "job" not in found[0]
    assert len(grid("dlq", "list", "--group", grid.group, "--exec", "failn", "--limit", "2").result) == 2
    assert grid("dlq", "list", "--group", grid.group, "--reason", "max_lost").result == []
    sequence = str(found[-1]["id"])
    shown = grid("dlq", "show", sequence).result
    assert (shown["run_id"], shown["reason"], shown["requeueable"]) == (run_ids[0], "execution_error", True)
    first, second = (grid("dlq", "requeue", sequence).result for _ in range(2))
    assert (first["duplicate"], second["duplicate"]) == (False, True)
    assert first["run_id"] == second["run_id"] != run_ids[0]

    async def look(backend: OperatorBackend) -> Any:
        return await run_of(backend, first["run_id"])

    program = grid.do(look).program
    assert (program.retry_of, program.group) == (run_ids[0], grid.group)
    assert grid("dlq", "delete", sequence).result == {"id": int(sequence), "deleted": True}
    for command in ("show", "requeue", "delete"):
        ended = grid("dlq", command, sequence)
        assert (ended.code, f"there is no dead letter {sequence}" in ended.err) == (1, True)


def test_without_nats_a_command_ends_with_1(
    unused_port: int, capsys: pytest.CaptureFixture[str], hasty_links: None
) -> None:
    """GRID-190"""
    assert outcome(cli, "pyoco-grid", ["state", "--nats", f"nats://127.0.0.1:{unused_port}"]) == 1
    assert "ERR-PYOCO-0003" in capsys.readouterr().err


def test_a_deployment_that_cannot_keep_its_promises_ends_with_3(
    grid: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GRID-6"""
    monkeypatch.setenv("EXEC_REPLICAS", "3")
    ended = grid("state")
    assert (ended.code, ended.out) == (3, "")
    assert "ERR-PYOCO-0045" in ended.err


def test_operator_commands_are_those_of_the_admin_command() -> None:
    """CLI-15: the old spellings work, and are not listed."""
    program = admin.cli.commands["program"]
    assert isinstance(program, click.Group)
    for name in ("state", "cap", "acl"):
        assert program.commands[name] is COMMANDS[name].load()
    assert all(COMMANDS[name].hidden for name in ("state", "cap", "acl", "dlq"))
