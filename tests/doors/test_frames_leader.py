"""`pyoco-grid leader` as a process."""

from __future__ import annotations

import signal
import socket
import ssl
from pathlib import Path

import httpx
import pytest

from pyoco_server.core.frames.codec import Type
from pyoco_server.core.frames.messages import HelloClient
from pyoco_server.doors.cli.grid import cli
from pyoco_server.doors.cli.shell import outcome
from support.grid.peers import ClientPeer, WorkerPeer
from support.grid.processes import GridProcess, grid
from support.priced.url_sites import Authority
from support.waiting import eventually

pytestmark = pytest.mark.usefixtures("real_nats")  # doors are processes


@pytest.mark.parametrize(
    ("arguments", "variables", "code", "says"),
    [
        ([], {}, 1, "PORT"),
        (["70000"], {}, 1, "70000"),
        (["0", "--role", "king"], {}, 1, "king"),
        (["0", "--peers", "nowhere"], {}, 1, "--peers"),
        (["0", "--advertise", "x:0"], {}, 1, "--advertise"),
        (["0", "--group", "a.b"], {}, 1, "EXEC_GROUP"),
        (["0", "--tls-cert", "x"], {}, 1, "--tls-key"),
        (["0", "--tls-cert", "x", "--tls-key", "y"], {}, 1, "certificate"),
        (["0"], {"EXEC_TLS_BIND_CN": "1"}, 1, "EXEC_TLS_BIND_CN"),
        (["0"], {"EXEC_MAX_CONNS": "many"}, 1, "EXEC_MAX_CONNS"),
        (["0"], {"EXEC_RUN_HEARTBEAT_SEC": "15"}, 1, "EXEC_LEASE_FRESH_SEC"),
        (["0"], {"EXEC_LEASE_FRESH_SEC": "30"}, 1, "PYOCO_CONSUMER_ACK_WAIT_SEC"),
        (["0", "--nats", "nats://127.0.0.1:1"], {}, 1, "127.0.0.1:1"),
        (["0", "--host", "0.0.0.0"], {}, 3, "EXEC_AUTH=api_key"),
    ],
    ids=str,
)
@pytest.mark.usefixtures("hasty_links")
def test_a_mistake_is_named_with_an_exit_code_of_its_own(
    arguments: list[str],
    variables: dict[str, str],
    code: int,
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """GRID-56, GRID-165, GRID-190, GRID-193, section 25.3"""
    monkeypatch.setattr("pyoco_server.logs.configure_logging", lambda _: None)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert outcome(cli, "pyoco-grid", ["leader", *arguments]) == code
    said = capsys.readouterr()
    assert says in said.err
    assert "READY" not in said.out


def test_a_port_that_is_taken_is_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """GRID-190"""
    monkeypatch.setattr("pyoco_server.logs.configure_logging", lambda _: None)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert outcome(cli, "pyoco-grid", ["leader", str(port)]) == 1
    assert f"port {port}" in capsys.readouterr().err


async def _metrics(door: GridProcess) -> str:
    [told] = [line for line in door.log if line["message"] == "metrics endpoint started"]
    async with httpx.AsyncClient(timeout=60) as client:
        return (await client.get(f"http://127.0.0.1:{told['port']}/metrics")).text


async def test_a_door_serves_drains_and_says_what_it_was_told(nats_url: str, tmp_path: Path) -> None:
    """GRID-41, GRID-175, GRID-190, GRID-193: READY, settings without secrets, SIGTERM, exit code 0."""
    with grid(nats_url, tmp_path, EXEC_DRAIN_SEC="120", PYOCO_AUTH_PEPPER="a-secret") as processes:
        door = processes.leader("--metrics-port", "0")
        assert door.stdout.splitlines().count(f"READY leader 127.0.0.1:{door.port}") == 1
        other = processes.leader("--advertise", "127.0.0.1:9")
        async with await ClientPeer.connect(door.port) as client, await WorkerPeer.connect(door.port) as worker:
            await client.hello()
            await worker.hello(credit=1)
            await client.accepted()
            job = await worker.assigned()
            await client.send(0x55)
            await client.error("UNKNOWN_TYPE")
            metrics = await _metrics(door)
            for line in (
                'pyoco_exec_connections{role="client"} 1',
                'pyoco_exec_protocol_errors_total{code="UNKNOWN_TYPE"} 1',
                f'pyoco_exec_credits{{worker="{worker.worker_id}"}} 0',
                f'pyoco_exec_inflight{{exec="calcA",group="{processes.group}"}} 1',
            ):
                assert line in metrics
            door.signal(signal.SIGTERM)
            assert (await client.not_leader()).leader == "127.0.0.1:9"
            await worker.not_leader()
            assert await worker.settled(job) == "recorded"
            await client.result()
        assert door.wait() == 0
        assert {line["service"] for line in door.log} == {"pyoco-grid:door"}
        [settings] = [line for line in door.log if line["message"] == "effective program settings"]
        assert settings["settings"]["EXEC_DRAIN_SEC"] == "120"
        assert settings["settings"]["EXEC_GROUP"] == processes.group
        assert "a-secret" not in door.stdout
        assert door.stderr == ""
        assert other.is_alive


async def test_signals(nats_url: str, tmp_path: Path) -> None:
    """GRID-43, section 25.3: SIGUSR1 promotes, SIGINT drains and a second one stops at once with 130."""
    with grid(nats_url, tmp_path, EXEC_DRAIN_SEC="600") as processes:
        standby = processes.leader("--role", "standby", "--peers", "127.0.0.1:7")
        async with await ClientPeer.connect(standby.port) as client:
            await client.send(Type.HELLO_CLIENT, HelloClient(client_id="c").to_payload())
            assert (await client.not_leader()).reason == "standby"
            standby.signal(signal.SIGUSR1)
            await eventually(lambda: any(line["message"] == "standby promoted" for line in standby.log))
            await client.hello("c")
            standby.signal(signal.SIGINT)
            await client.not_leader()
            assert standby.is_alive
            standby.signal(signal.SIGINT)
            assert standby.wait(120) == 130


async def test_a_killed_door_comes_back_on_its_port_and_goes_on(nats_url: str, tmp_path: Path) -> None:
    """GRID-40"""
    with grid(nats_url, tmp_path) as processes:
        door = processes.leader()
        client, worker = await ClientPeer.connect(door.port), await WorkerPeer.connect(door.port)
        await client.hello("stays")
        await worker.hello("stays-too", credit=1)
        request = client.request()
        await client.accepted(request)
        job = await worker.assigned()
        port = door.port
        door.kill()
        await client.close()
        await worker.close()
        door.start()
        assert door.port == port
        async with await ClientPeer.connect(port) as client, await WorkerPeer.connect(port) as worker:
            await client.hello("stays")
            assert (await client.accepted(request)).duplicate
            await worker.hello("stays-too")
            await worker.beat(job)
            assert await worker.settled(job, stdout="survived") == "recorded"
            result = await client.result()
            assert (result.stdout, result.attempt) == ("survived", 1)


async def test_tls_and_its_reload_in_a_process(nats_url: str, tmp_path: Path) -> None:
    """GRID-166, on the event loop that doors run on."""
    authority = Authority(tmp_path)
    chain = tmp_path / "door.pem"
    chain.write_bytes(authority.chain("127.0.0.1").read_bytes())
    with grid(nats_url, tmp_path) as processes:
        door = processes.leader("--tls-cert", chain, "--tls-key", chain)
        context = ssl.create_default_context(cafile=str(authority.ca_file))
        async with await ClientPeer.connect(door.port, context) as client:
            await client.hello()
            await client.accepted(files={"large": bytes(2_000_000)})
            chain.write_bytes(authority.chain("127.0.0.1", "renewed.example").read_bytes())
            door.signal(signal.SIGHUP)
            await eventually(lambda: any(line["message"] == "certificate reloaded" for line in door.log))
            async with await ClientPeer.connect(door.port, context, name="renewed.example") as newer:
                await newer.hello()
            await client.accepted()
            async with await ClientPeer.connect(door.port) as plain:
                await plain.send(Type.HELLO_CLIENT, HelloClient(client_id="plain").to_payload())
                assert await plain.ended() == []
            await eventually(lambda: any(line.get("reason") == "tls_error" for line in door.log))


def test_the_first_three_jobs(nats_url: str, tmp_path: Path) -> None:
    """P1, GRID-48, GRID-120: a door, a worker, and a client with its three sample jobs."""
    with grid(nats_url, tmp_path) as processes:
        door = processes.leader()
        processes.worker(door)
        done = processes.client(door, "clientA", "--out", tmp_path / "out")
        assert done.code == 0, done
        assert [line["Status"] for line in done.lines] == ["COMPLETED"] * 3
        folders = [tmp_path / "out" / line["JobId"] for line in done.lines]
        assert all((folder / "result.txt").is_file() for folder in folders)
        assert len(set(folders)) == 3
